"""Where a gang fits: the smallest place that holds it, the tightest of those, and its cards there; or why nowhere.

Vector scans over the node arrays, asked by `decide` and `inspect`. Pure questions: nothing here changes a state.
"""

from typing import Final, NamedTuple

import numpy as np

from streams.engine._classes import I64, WHOLE, Choice, Scan
from streams.engine._costs import GRAINS_PER_CARD, Costs
from streams.engine._nodes import LEVELS, Nodes
from streams.engine._reason import cards, cores, gib, times
from streams.engine._request import Request

# From the narrowest place to the widest.
WIDENING: Final = (*reversed(LEVELS), "domain")
# More members than any gang has: what a node holds of members that need nothing. Sums over 10^6 nodes stay far below 2^63.
_NO_LIMIT: Final = 1 << 30
_MISFIT: Final = 1 << 60
_NONE: Final[I64] = np.zeros(0, np.int64)
_NO_CHOICE: Final[Choice] = np.zeros(0, np.int8)
# Cells of remembered scans, 16 bytes each: 64 MB. A map of 1,200 nodes, each in a condition of its own, has 1,700 kinds.
MAX_SCAN_CELLS: Final = 1 << 22
# New classes that are looked at one by one; beyond, the vectors are quicker.
FEW_CLASSES: Final = 8
ALL: Final = slice(None)
# Above any free amount of a card, milli-cards: cards without room for the share sort last.
_NO_ROOM: Final = 1 << 20


class Fit(NamedTuple):
    """A place for a whole gang: rows of nodes in topology order, members and card mask on each."""

    rows: tuple[int, ...]
    members: tuple[int, ...]
    masks: tuple[int, ...]
    card_milli: int
    level: str
    place: str
    candidates: int
    reason: str


class NoFit(NamedTuple):
    """Why a gang does not fit now: stable code, one sentence with figures."""

    code: str
    reason: str


def find(
    nodes: Nodes, request: Request, scans: dict[Request, Scan] | None = None, costs: Costs | None = None
) -> Fit | NoFit:
    """1. count members that fit on each node; 2. narrowest level with a place that holds all of them on one card model; 3. of
    such places the tightest, of the model that costs least; 4. fill it with as few nodes as possible; 5. choose cards on
    each. `scans`: what earlier searches found."""
    if not nodes.names:
        return NoFit("no_nodes", "no node is registered")
    scan = _scan(nodes, request, scans if scans is not None else {}, costs)
    members, classes = request.members, nodes.classes
    there = classes.nodes
    score = np.where(there > 0, scan.score, _MISFIT)
    best = int(score.argmin())
    if score[best] < _MISFIT:
        # Of equal ones the lowest row.
        equal = np.flatnonzero(score == score[best]).tolist()
        row = min([classes.lowest(c, nodes.class_of) for c in equal])
        candidates = int(there[score < _MISFIT].sum())
        c = int(nodes.class_of[row])
        free = classes.conditions[c].card_free
        mask = _mask(free, members, request) if costs is None else costs.mask(free, request, int(scan.choice[c]))
        reason = _beat(score, int(score[best]), candidates, "tightest" if costs is None else "cheapest")
        milli = min(request.cards_milli, WHOLE)
        return Fit((row,), (members,), (mask,), milli, "node", nodes.names[row], candidates, reason)
    found = _gang(nodes, request, scan.fit, costs) if members > 1 and request.adjacency != "node" else None
    return found if found is not None else _why_not(nodes, request, scan.fit)


def _gang(nodes: Nodes, request: Request, fit: I64, costs: Costs | None) -> Fit | None:
    """A place of several nodes: the narrowest level that has one, of such places the tightest of the cheapest model. `fit`: by
    class."""
    members, there = request.members, nodes.classes.nodes
    by_model = {
        model: of_it[nodes.class_of]
        for model, of_it in _of_one_model(nodes, request, fit).items()
        if int(of_it @ there) >= members
    }
    for level in WIDENING[1:] if by_model else ():
        starts = nodes.starts[level]
        found: list[tuple[int, int, str, int, int]] = []
        for model, by_row in by_model.items():
            sums = np.add.reduceat(by_row, starts)
            good = np.flatnonzero(sums >= members)
            if good.size:
                place = int(good[np.argmin(sums[good])])
                price = costs.price(model) if costs is not None else 0
                found.append((price, int(sums[place]), model, place, int(good.size)))
        if found:
            _, _, model, place, _ = min(found)
            start = int(starts[place])
            stop = int(starts[place + 1]) if place + 1 < starts.size else len(nodes.names)
            candidates = sum(count for *_, count in found)
            return _fill(nodes, request, by_model[model], start, stop, level, candidates)
        if level == request.adjacency:
            break
    return None


def _of_one_model(nodes: Nodes, request: Request, fit: I64) -> dict[str, I64]:
    """A gang's cards are all of one model: members that fit on a node of each class, for each model that some do."""
    if request.members == 1 or not request.cards_milli:
        return {"": fit}
    classes = nodes.classes
    model_of = [t.card_model for t in classes.types]
    models = sorted({model_of[t] for t in set(classes.type[fit > 0].tolist())})
    if len(models) <= 1:
        return dict.fromkeys(models, fit)
    return {m: np.where(np.array([of == m for of in model_of], np.bool_)[classes.type], fit, 0) for m in models}


def _beat(score: I64, best: int, candidates: int, superlative: str) -> str:
    """What a node beat, and by how much."""
    if candidates == 1:
        return "only node that can hold it"
    reason = f"{superlative} of {candidates} nodes that can hold it"
    if superlative == "tightest":
        return reason
    dearer = score[(score > best) & (score < _MISFIT)]
    next_best = f", the next {int(dearer.min()) / GRAINS_PER_CARD:.2f}" if dearer.size else ", as any other"
    return f"{reason}: takes {best / GRAINS_PER_CARD:.2f} cards of use from others{next_best}"


def _scan(nodes: Nodes, request: Request, scans: dict[Request, Scan], costs: Costs | None) -> Scan:
    """What fits on a node of each class: the last answer, with the classes that are new looked at."""
    known, n = scans.get(request), len(nodes.classes)
    model = 0 if costs is None else costs.version
    if known is None or known.epoch != nodes.epoch or known.model != model:
        known = Scan(nodes.epoch, model, _NONE, _NONE, _NO_CHOICE)
        scans.pop(request, None)
        while len(scans) * n > MAX_SCAN_CELLS:
            del scans[next(iter(scans))]
        scans[request] = known
    begin = known.fit.size
    if begin == n:
        return known
    rows = slice(begin, n)
    if costs is None and n - begin <= FEW_CLASSES:
        looked = [_look_at(nodes, request, c) for c in range(begin, n)]
        fit, score = np.array([f for f, _ in looked], np.int64), np.array([s for _, s in looked], np.int64)
        choice = np.zeros(n - begin, np.int8)
    else:
        fit = members_that_fit(nodes, request, rows)
        if costs is None:
            score, choice = _tightness(nodes, request, rows), np.zeros(n - begin, np.int8)
        else:
            score, choice = costs.of(nodes, request, begin)
        score[fit < request.members] = _MISFIT
    if begin == 0:
        known.fit, known.score, known.choice = fit, score, choice
    else:
        known.fit = np.concatenate((known.fit, fit))
        known.score = np.concatenate((known.score, score))
        known.choice = np.concatenate((known.choice, choice))
    return known


def _look_at(nodes: Nodes, request: Request, c: int) -> tuple[int, int]:
    """`members_that_fit` and `_tightness` of one class, in plain integers: for a few the vectors' set-up is most of the cost."""
    classes = nodes.classes
    condition = classes.conditions[c]
    if not (classes.types[condition.type].takes and nodes.may(request)[c]):
        return 0, _MISFIT
    milli = request.cards_milli
    left = condition.card_free.count(WHOLE)
    if milli == 0:
        fit = _NO_LIMIT
    elif milli >= WHOLE:
        fit = left // (milli // WHOLE)
    else:
        room = [f for f in condition.card_free if f >= milli]
        fit = len(room)
        left += 64 * min(room, default=_NO_ROOM)
    if request.cpu_milli:
        fit = min(fit, condition.cpu_free // request.cpu_milli)
    if request.memory_bytes:
        fit = min(fit, condition.memory_free // request.memory_bytes)
    fit = max(fit, 0)
    if fit < request.members:
        return fit, _MISFIT
    return fit, left * 4096 + min(max(condition.cpu_free // 1000, 0), 4095)


def members_that_fit(
    nodes: Nodes,
    request: Request,
    rows: slice = ALL,
    *,
    empty: bool = False,
    everywhere: bool = False,
    cpu: bool = True,
    memory: bool = True,
) -> I64:
    """Members that a node of each class (of `rows`) could hold now. `empty`: if nothing ran on it; `everywhere`: also where
    no new work is taken; not `cpu`, not `memory`: were those unlimited."""
    classes = nodes.classes
    kind = classes.type[rows]

    def of_type(field: str) -> I64:
        values: I64 = np.array([getattr(t, field) for t in classes.types], np.int64)[kind]
        return values

    fit: I64
    if request.cards_milli == 0:
        fit = np.full(kind.shape, _NO_LIMIT, np.int64)
    elif request.cards_milli >= WHOLE:
        fit = (of_type("cards") if empty else classes.whole_free[rows]) // (request.cards_milli // WHOLE)
    elif empty:
        fit = of_type("cards")
    else:
        # Shares of one gang sit on cards of their own: a mask says which cards, not how often.
        fit = np.count_nonzero(classes.card_free[rows] >= request.cards_milli, axis=1)
    if cpu and request.cpu_milli:
        np.minimum(fit, (of_type("cpu_milli") if empty else classes.cpu_free[rows]) // request.cpu_milli, out=fit)
    if memory and request.memory_bytes:
        free = of_type("memory_bytes") if empty else classes.memory_free[rows]
        np.minimum(fit, free // request.memory_bytes, out=fit)
    may = nodes.may(request)[rows]
    fit *= may if everywhere else may & of_type("takes").astype(np.bool_)
    # Below zero: a node that shrank owes what it no longer has.
    np.maximum(fit, 0, out=fit)
    return fit


def _tightness(nodes: Nodes, request: Request, rows: slice) -> I64:
    """Best fit, least first: leave the least behind. Shared cards fill cards already begun; CPU-only work keeps off free
    cards. Where nothing was learned yet."""
    classes = nodes.classes
    left = classes.whole_free[rows]
    if 0 < request.cards_milli < WHOLE:
        free = classes.card_free[rows]
        left = left + 64 * np.where(free >= request.cards_milli, free, _NO_ROOM).min(axis=1).astype(np.int64)
    # Equal ones: the least CPU left, in cores, so that a card is seldom left without CPU.
    cores_left = np.clip(classes.cpu_free[rows] // 1000, 0, 4095)
    tightness: I64 = left * 4096 + cores_left
    return tightness


def _mask(free: tuple[int, ...], members: int, request: Request) -> int:
    """Cards for these members on a node: lowest whole cards, or the fullest cards that still have the share."""
    milli = request.cards_milli
    if milli == 0:
        return 0
    if milli < WHOLE:
        fullest = sorted((f, card) for card, f in enumerate(free) if f >= milli)
        return sum(1 << card for _, card in fullest[:members])
    need = members * (milli // WHOLE)
    mask = 0
    for card, f in enumerate(free):
        if need and f == WHOLE:
            mask |= 1 << card
            need -= 1
    return mask


def _fill(nodes: Nodes, request: Request, fit: I64, start: int, stop: int, level: str, candidates: int) -> Fit:
    """Take nodes of one place, those that hold most members first; the last one is the tightest that holds the rest."""
    part = fit[start:stop]
    # No node holds the whole gang: all counts are below it. Short integers are sorted by radix, in linear time.
    size = np.int16 if request.members < 1 << 15 else np.int32
    falling = np.negative(part.astype(size))
    order = np.argsort(falling, kind="stable")[: np.count_nonzero(part)]
    held = part[order]
    # Nodes to fill whole: while the sum stays within the gang.
    full = int(np.searchsorted(np.cumsum(held), request.members, side="right"))
    rest = request.members - int(held[:full].sum())
    rows, members = order[:full] + start, held[:full]
    if rest:
        # Of the others, in falling order, the last that holds the rest.
        last = full + int(np.searchsorted(-held[full:], -rest, side="right")) - 1
        rows, members = np.append(rows, start + order[last]), np.append(members, rest)
    by_row = np.argsort(rows, kind="stable")
    rows, members = rows[by_row], members[by_row]
    conditions = nodes.classes.conditions
    known: dict[tuple[int, int], int] = {}
    masks: list[int] = []
    counts: list[int] = members.tolist()
    for key in zip(nodes.class_of[rows].tolist(), counts, strict=True):
        mask = known.get(key)
        if mask is None:
            mask = known[key] = _mask(conditions[key[0]].card_free, key[1], request)
        masks.append(mask)
    room = int(part.sum())
    spare = (
        f"room for {room - request.members} more stays" if request.cards_milli else "CPU and memory were all it needs"
    )
    of = f"tightest of {candidates} places" if candidates > 1 else "only place"
    reason = f"{of} of level {level} that can hold {times(request.members, 'member')}; {spare}"
    place, milli = nodes.place(level, start), min(request.cards_milli, WHOLE)
    return Fit(tuple(rows.tolist()), tuple(counts), tuple(masks), milli, level, place, candidates, reason)


def _why_not(nodes: Nodes, request: Request, fit: I64) -> NoFit:
    """The most basic cause first: what could never be, then who is away, then what is not free now. `fit`: by class."""
    members, classes = request.members, nodes.classes
    there = classes.nodes

    def in_all(by_class: I64) -> int:
        return max((int(fit @ there) for fit in _of_one_model(nodes, request, by_class).values()), default=0)

    level = request.adjacency or "domain"

    def largest_place(by_class: I64) -> int:
        models = _of_one_model(nodes, request, by_class).values()
        return max((int(np.add.reduceat(fit[nodes.class_of], nodes.starts[level]).max()) for fit in models), default=0)

    may = nodes.may(request) & (there > 0)
    if not may.any():
        wanted = " or ".join(request.card_models) or "a card"
        memory = f" with {gib(request.card_memory_bytes)} for each share" if request.card_memory_bytes else ""
        return NoFit("no_such_model", f"no node of the map has {wanted}{memory}")
    most = members_that_fit(nodes, request, empty=True, everywhere=True)
    if not most[may].any():
        best = max((classes.types[k] for k in set(classes.type[may].tolist())), key=lambda t: t[2:3] + t[4:])
        return NoFit(
            "too_big_for_any_node",
            f"a member needs {_member(request)}; the largest node that may be used has {times(best.cards, 'card')}, "
            f"{cores(best.cpu_milli)} and {gib(best.memory_bytes)}",
        )
    one = " of one card model" if len(_of_one_model(nodes, request, most * (there > 0))) > 1 else ""
    if in_all(most) < members:
        return NoFit(
            "larger_than_the_map", f"{times(members, 'member')}; all nodes{one} together hold {in_all(most)} when empty"
        )
    largest = largest_place(most)
    if largest < members:
        return NoFit(
            "adjacency_too_narrow",
            f"{times(members, 'member')} in one {level}; the largest holds {largest}{one} when empty",
        )
    largest = largest_place(members_that_fit(nodes, request, empty=True))
    if largest < members:
        takes = np.array([t.takes for t in classes.types], np.bool_)[classes.type]
        away = int(there[may & ~takes].sum())
        return NoFit(
            "nodes_away",
            f"{times(away, 'node')} that could hold {'it' if members == 1 else 'members'} {'is' if away == 1 else 'are'} silent, "
            f"draining or in maintenance; the others hold {largest} of {members} when empty",
        )
    free = in_all(fit)
    if free >= members:
        return NoFit(
            "scattered",
            f"{times(members, 'member')} in one {level}; the best has room for {largest_place(fit)} now, all{one} together for {free}",
        )
    needs = f"needs {times(members, 'member')} × {_member(request)}"
    by_cards = in_all(members_that_fit(nodes, request, cpu=False, memory=False))
    if by_cards < members:
        return NoFit("short_of_cards", f"{needs}; there are free cards{one} for {by_cards} now")
    enough = f"free cards for {by_cards}, but" if request.cards_milli else ""
    for code, what, sum_of in (
        ("short_of_cpu", "CPU", in_all(members_that_fit(nodes, request, memory=False))),
        ("short_of_memory", "memory", in_all(members_that_fit(nodes, request, cpu=False))),
    ):
        if sum_of < members:
            return NoFit(code, f"{needs}; {enough} nodes with enough {what} too hold {sum_of} now".replace(";  ", "; "))
    return NoFit(
        "short_of_cpu_and_memory",
        f"{needs}; {enough} nodes with enough CPU and memory hold {free} now".replace(";  ", "; "),
    )


def _member(request: Request) -> str:
    """What one member asks for, for people."""
    asked = [cards(request.cards_milli)] if request.cards_milli else []
    asked += [cores(request.cpu_milli)] if request.cpu_milli else []
    asked += [gib(request.memory_bytes)] if request.memory_bytes else []
    return " + ".join(asked) or "nothing"
