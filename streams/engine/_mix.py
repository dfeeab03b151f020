"""The mix of requests seen, and what it says about free capacity: a model that placing uses, learned online.

Cards are lost less to fragmentation than to stranding: a card left without the CPU or memory that its next job will ask for. So
the model says what a partly free card is worth for the shares that come, how much CPU and memory go with a card, which nodes could
take members of several cards, and how scarce each card model is. `evolve` counts what is accepted and what ran (`Mix`); `decide`
learns from the counts when they have grown enough (`learn`), and what was learned is a ledger entry, `MixLearned`: exact after
every restart, open to SQL. Values of cards: dual prices of the one-dimensional cutting-stock problem by column generation (Gilmore
and Gomory, Operations Research 1961). All figures are integers, millionths, so that every machine places alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.records import MixLearned
from streams.engine._classes import WHOLE, Bools
from streams.engine._costs import MICRO, Stranding, free_value, slots_of
from streams.engine._nodes import Nodes
from streams.engine._request import Request

# Kinds counted at most; the rarest half is forgotten beyond. Part of the ledger's meaning, as everything that `evolve` uses.
MAX_KINDS: Final = 4096
# Arrivals in the counts from which they are halved: the mix of a year ago says little about today's.
HALVE_AT: Final = 1 << 20
# Arrivals at which something is learned first, then at every doubling until ...
FIRST: Final = 16
DOUBLING_UNTIL: Final = 1024
# ... and then after a quarter more, at least and at most this many.
MOST_MORE: Final = 16_384
# Arrivals after which prices and slot costs, which depend on what is free, are worked out again.
REPRICE_AFTER: Final = 512
# Steps of a card for which its value is tabled: hundredths.
STEPS: Final = 100
# Shares of demand that the model looks at: the rest are rare kinds.
STRANDING_COVERS: Final = 0.95
SLOTS_COVER: Final = 0.98
MAX_SLOT_TYPES: Final = 64
PRIOR_JOBS: Final = 0.1
PRIOR_CARDS: Final = (1, 2, 4, 8)
# How much a lost slot of members of several cards weighs, and how much a card model's scarcity.
SLOT_WEIGHT: Final = 0.2
PRICE_WEIGHT: Final = 1.5
# Ended jobs of a kind that outweigh the mean of all.
RUN_TIME_SHRINKAGE: Final = 8

Doubles = npt.NDArray[np.float64]


@dataclass(slots=True)
class Seen:
    """Jobs of a kind that were accepted, those that ran and ended, and how long those ran in all."""

    jobs: int = 0
    ended: int = 0
    ran_ms: int = 0


@dataclass(slots=True)
class Mix:
    """What was asked for, by kind, and what was learned from it last. `arrivals`: ever; the counts are halved now and then."""

    arrivals: int = 0
    counted: int = 0
    kinds: dict[Request, Seen] = field(default_factory=dict)
    learned: MixLearned | None = None

    def accepted(self, request: Request) -> None:
        self.arrivals += 1
        self.counted += 1
        seen = self.kinds.get(request)
        if seen is None:
            if len(self.kinds) >= MAX_KINDS:
                self._forget_rarest()
            seen = self.kinds[request] = Seen()
        seen.jobs += 1
        if self.counted >= HALVE_AT:
            self._halve()

    def ended(self, request: Request, ran_ms: int) -> None:
        seen = self.kinds.get(request)
        if seen is not None and ran_ms > 0:
            seen.ended += 1
            seen.ran_ms += ran_ms

    def _forget_rarest(self) -> None:
        # In the order they were first seen: `sorted` keeps it among equals.
        kept = sorted(self.kinds.items(), key=lambda item: -item[1].jobs)[: MAX_KINDS // 2]
        self.kinds = dict(kept)
        self.counted = sum(seen.jobs for seen in self.kinds.values())

    def _halve(self) -> None:
        for seen in self.kinds.values():
            seen.jobs, seen.ended, seen.ran_ms = seen.jobs // 2, seen.ended // 2, seen.ran_ms // 2
        self.kinds = {kind: seen for kind, seen in self.kinds.items() if seen.jobs}
        self.counted = sum(seen.jobs for seen in self.kinds.values())


class Model(NamedTuple):
    """What `MixLearned` holds after its header. `card_value_micro[h]`: what a card with h hundredths free is worth, millionths
    of a card. `stranding_*`: CPU and bytes that go with a card, and the share of the demand they are asked by. `slot_*`: members
    of several cards, the models they may have (joined by a comma, all: ''), and what one place less for them costs. `price_*`:
    what a card of each model costs, millionths of one that is not scarce."""

    arrivals: int
    fitted_at_arrivals: int
    kinds: int
    card_value_micro: tuple[int, ...]
    stranding_cpu_milli: tuple[int, ...]
    stranding_memory_bytes: tuple[int, ...]
    stranding_share_micro: tuple[int, ...]
    slot_cards: tuple[int, ...]
    slot_cpu_milli: tuple[int, ...]
    slot_memory_bytes: tuple[int, ...]
    slot_card_models: tuple[str, ...]
    slot_cost_micro: tuple[int, ...]
    price_card_models: tuple[str, ...]
    price_micro: tuple[int, ...]


def due(mix: Mix) -> bool:
    """Whether the counts have grown enough to learn from them again."""
    last = mix.learned
    if last is None:
        return mix.arrivals >= FIRST
    return mix.arrivals >= min(last.arrivals + REPRICE_AFTER, _refit_at(last.fitted_at_arrivals))


def _refit_at(fitted_at: int) -> int:
    if fitted_at < DOUBLING_UNTIL:
        return 2 * fitted_at
    return fitted_at + min(max(DOUBLING_UNTIL, fitted_at // 4), MOST_MORE)


class _Kind(NamedTuple):
    """A kind of member: what it asks for, on which card models of the map, and its weight (jobs × members × run time)."""

    cards_milli: int
    cpu_milli: int
    memory_bytes: int
    card_models: str
    weight: float

    @property
    def demand(self) -> float:
        """Cards."""
        return self.weight * self.cards_milli / WHOLE


def learn(mix: Mix, nodes: Nodes) -> Model | None:
    """A new model; None where the map has no cards. Takes some milliseconds for each 100 kinds of shares and classes of nodes."""
    classes = nodes.classes
    count = classes.nodes
    cards = np.array([t.cards for t in classes.types], np.int64)[classes.type] * count
    total = int(cards.sum())
    if not total:
        return None
    kinds = _kinds(mix, nodes, total)
    last = mix.learned
    if last is not None and mix.arrivals < _refit_at(last.fitted_at_arrivals):
        fitted_at, value = last.fitted_at_arrivals, last.card_value_micro
        stranding = (last.stranding_cpu_milli, last.stranding_memory_bytes, last.stranding_share_micro)
    else:
        fitted_at, value = mix.arrivals, card_values(_shares(kinds))
        stranding = _stranding(kinds)
    model = Model(mix.arrivals, fitted_at, len(mix.kinds), value, *stranding, (), (), (), (), (), (), ())
    return _priced(model, kinds, nodes)


def _kinds(mix: Mix, nodes: Nodes, total_cards: int) -> list[_Kind]:
    """Kinds of members that ask for cards, with their weights, and the prior's."""
    classes = nodes.classes
    ended = sum(seen.ended for seen in mix.kinds.values())
    mean_ms = sum(seen.ran_ms for seen in mix.kinds.values()) / ended if ended else 1.0
    found: dict[tuple[int, int, int, str], float] = {}
    for request, seen in mix.kinds.items():
        if not request.cards_milli:
            continue
        # With departures, what stands on the map at a time is as many as arrive times as long as they run.
        runs = (seen.ran_ms / mean_ms + RUN_TIME_SHRINKAGE) / (seen.ended + RUN_TIME_SHRINKAGE)
        models = _models(nodes, request)
        key = (request.cards_milli, request.cpu_milli, request.memory_bytes, models)
        found[key] = found.get(key, 0.0) + seen.jobs * request.members * runs
    with_cards = np.array([t.cards > 0 for t in classes.types], np.bool_)[classes.type]

    def per_card(field: str) -> int:
        amounts = np.array([getattr(t, field) for t in classes.types], np.float64)[classes.type]
        return int((amounts * classes.nodes)[with_cards].sum() / total_cards)

    cpu, memory = per_card("cpu_milli") // 2, per_card("memory_bytes") // 2
    for k in PRIOR_CARDS:
        key = (k * WHOLE, k * cpu, k * memory, "")
        found[key] = found.get(key, 0.0) + PRIOR_JOBS
    return [_Kind(*key, weight) for key, weight in sorted(found.items())]


def _models(nodes: Nodes, request: Request) -> str:
    """Card models of the map that a request may use, joined; '': all."""
    may = nodes.may(request)
    types = [nodes.classes.types[t] for t in set(nodes.classes.type.tolist()) if nodes.classes.types[t].cards]
    allowed_types = set(nodes.classes.type[may].tolist())
    allowed = {nodes.classes.types[t].card_model for t in allowed_types}
    present = {t.card_model for t in types}
    return "" if present <= allowed else ",".join(sorted(allowed))


def _shares(kinds: Iterable[_Kind]) -> dict[int, float]:
    """Sizes of shares, hundredths of a card upwards -> weight."""
    found: dict[int, float] = {}
    for k in kinds:
        if k.cards_milli < WHOLE:
            size = -(-k.cards_milli * STEPS // WHOLE)
            found[size] = found.get(size, 0.0) + k.weight
    return found


def card_values(shares: dict[int, float]) -> tuple[int, ...]:
    """What a card with 0 … 100 hundredths free is worth to shares of these sizes (hundredths -> weight), millionths.

    The best that fits in, at the dual prices of "fewest cards that hold all shares"; proportional where no shares are asked for."""
    if not shares:
        return tuple(step * MICRO // STEPS for step in range(STEPS + 1))
    # Here, as only who learns from shares needs it.
    import highspy  # noqa: PLC0415

    class Quiet(highspy.Highs):
        """Without callbacks, which nobody needs here and which print a banner when they are set."""

        def enableCallbacks(self) -> None:  # noqa: N802
            pass

    sizes = sorted(shares)
    weights = np.array([shares[s] for s in sizes])
    lp = Quiet()  # type: ignore[no-untyped-call]
    lp.setOptionValue("output_flag", False)
    lp.setOptionValue("threads", 1)
    n = len(sizes)
    lp.addVars(n, np.zeros(n), np.ones(n))
    lp.changeColsCost(n, np.arange(n, dtype=np.int32), -weights / weights.sum())
    for i, size in enumerate(sizes):
        lp.addRow(-highspy.kHighsInf, 1.0, 1, np.array([i], np.int32), np.array([float(STEPS // size)]))
    prices = np.zeros(n)
    for _ in range(10 * STEPS):
        lp.run()
        prices = np.maximum(np.array(lp.getSolution().col_value), 0.0)
        pattern, worth = _knapsack(sizes, prices.tolist())
        if worth[STEPS] <= 1 + 1e-7:
            break
        used = np.flatnonzero(pattern).astype(np.int32)
        lp.addRow(-highspy.kHighsInf, 1.0, used.size, used, np.array(pattern, np.float64)[used])
    worth = _knapsack(sizes, prices.tolist())[1]
    return (*(min(MICRO, round(w * MICRO)) for w in worth[:STEPS]), MICRO)


def _knapsack(sizes: list[int], prices: list[float]) -> tuple[list[int], list[float]]:
    """Best use of 0 … 100 hundredths: the pattern of a whole card, and what each is worth."""
    worth = [0.0] * (STEPS + 1)
    last = [-1] * (STEPS + 1)
    for room in range(1, STEPS + 1):
        worth[room] = worth[room - 1]
        for i, size in enumerate(sizes):
            if size > room:
                break
            if worth[room - size] + prices[i] > worth[room] + 1e-12:
                worth[room], last[room] = worth[room - size] + prices[i], i
    pattern, room = [0] * len(sizes), STEPS
    while room > 0:
        i = last[room]
        if i < 0:
            room -= 1
        else:
            pattern[i] += 1
            room -= sizes[i]
    return pattern, worth


def _most(demand: dict[tuple[int, ...], float], share: float) -> list[tuple[tuple[int, ...], float]]:
    """The largest of them that make up a share of all."""
    found = []
    left = share * sum(demand.values())
    for key, d in sorted(demand.items(), key=lambda item: (-item[1], item[0])):
        if left <= 0:
            break
        found.append((key, d))
        left -= d
    return found


def _stranding(kinds: Iterable[_Kind]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """CPU and memory that go with a card, and how much of the demand asks for so much, millionths."""
    demand: dict[tuple[int, ...], float] = {}
    for k in kinds:
        key = (max(1, k.cpu_milli * WHOLE // k.cards_milli), max(1, k.memory_bytes * WHOLE // k.cards_milli))
        demand[key] = demand.get(key, 0.0) + k.demand
    groups = _most(demand, STRANDING_COVERS)
    total = sum(d for _, d in groups)
    return (
        tuple(cpu for (cpu, _), _ in groups),
        tuple(memory for (_, memory), _ in groups),
        tuple(round(MICRO * d / total) for _, d in groups),
    )


def _priced(model: Model, kinds: list[_Kind], nodes: Nodes) -> Model:
    """The model with slot costs and prices as of what is free now."""
    classes = nodes.classes
    count = classes.nodes.astype(np.float64)
    model_of = [t.card_model if t.cards else "" for t in classes.types]
    names = sorted({model_of[t] for t in set(classes.type[classes.nodes > 0].tolist())} - {""})

    def within(card_models: str) -> Bools:
        allowed = set(card_models.split(",") if card_models else names)
        of_type = np.array([m in allowed for m in model_of], np.bool_)
        return of_type[classes.type] & (classes.nodes > 0)

    total = sum(k.demand for k in kinds)
    free = free_value(np.array(model.card_value_micro, np.int64), classes.card_free)
    stranding = Stranding.of(model.stranding_cpu_milli, model.stranding_memory_bytes, model.stranding_share_micro)
    lost = stranding.of_free(classes.cpu_free, classes.memory_free, free)
    # Cards that are idle, and usable: what of them is not stranded.
    idle = float(classes.card_free.clip(0).sum(axis=1) @ count) / WHOLE
    usable = {m: float(((free - lost) * count)[within(m)].sum()) / MICRO for m in names}
    all_usable = sum(usable.values())

    demand: dict[tuple[int, ...], float] = {}
    of_models: dict[str, float] = {}
    sets = sorted({k.card_models for k in kinds})
    for k in kinds:
        of_models[k.card_models] = of_models.get(k.card_models, 0.0) + k.demand
        if k.cards_milli >= 2 * WHOLE:
            key = (k.cards_milli // WHOLE, k.cpu_milli, k.memory_bytes, sets.index(k.card_models))
            demand[key] = demand.get(key, 0.0) + k.demand
    slots = _most(demand, SLOTS_COVER)[:MAX_SLOT_TYPES]
    costs = []
    for (cards, cpu, memory, models), d in slots:
        there = slots_of(cards, cpu, memory, classes.whole_free, classes.cpu_free, classes.memory_free)
        room = float((there * count)[within(sets[models])].sum())
        costs.append(round(MICRO * SLOT_WEIGHT * d / total * idle / max(1.0, room)))
    prices = []
    for name in names:
        price = 0.0
        for joined, d in sorted(of_models.items()):
            allowed = joined.split(",") if joined else names
            if name in allowed:
                price += d / total * all_usable / max(1.0, sum(usable.get(m, 0.0) for m in allowed))
        # A model that nobody asks for is cheap, but never for nothing.
        prices.append(max(MICRO // 10, round(MICRO * (1 + PRICE_WEIGHT * (price - 1)))))
    return model._replace(
        slot_cards=tuple(cards for (cards, *_), _ in slots),
        slot_cpu_milli=tuple(cpu for (_, cpu, *_), _ in slots),
        slot_memory_bytes=tuple(memory for (_, _, memory, _), _ in slots),
        slot_card_models=tuple(sets[models] for (*_, models), _ in slots),
        slot_cost_micro=tuple(costs),
        price_card_models=tuple(names),
        price_micro=tuple(prices),
    )
