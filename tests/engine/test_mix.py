"""What is learned of the mix of requests, and what placing makes of it. Right values: by hand, or from the definition, spelled out."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import JobPlaced, MixLearned
from streams.engine import State, accept, decide, restore, snapshot
from streams.engine._classes import Holding
from streams.engine._costs import GRAIN, MICRO, Costs
from streams.engine._mix import FIRST, HALVE_AT, MAX_KINDS, Mix, card_values, due, learn
from streams.engine._nodes import Nodes
from streams.engine._place import members_that_fit
from streams.engine._request import Request
from tests.engine.rows import DOMAIN, GIB, NOW, job, node, receipt

THIRD = 333_333


def request(
    cards: float = 1, *, members: int = 1, models: tuple[str, ...] = (), cpu: int = 1, memory: int = 1
) -> Request:
    return Request(members, round(1000 * cards), models, 0, 1000 * cpu, memory * GIB, "")


def mapped(*nodes: object) -> State:
    state = State.empty(DOMAIN)
    for n in nodes:
        accept(state, n, "", NOW)  # type: ignore[arg-type]
    return state


@pytest.mark.parametrize(
    ("shares", "worth"),
    [
        ({}, {0: 0, 37: 370_000, 100: MICRO}),
        ({50: 1.0}, {49: 0, 50: MICRO // 2, 99: MICRO // 2, 100: MICRO}),
        ({34: 1.0}, {33: 0, 34: MICRO // 2, 67: MICRO // 2, 68: MICRO}),
        ({30: 7.0}, {29: 0, 30: THIRD, 60: 2 * THIRD + 1, 89: 2 * THIRD + 1, 90: MICRO}),
        # A share of 0.6 needs a card of its own, as nothing of 0.5 fits beside it.
        ({50: 1.0, 60: 1.0}, {50: MICRO // 2, 59: MICRO // 2, 60: MICRO, 99: MICRO}),
        # 0.7 and 0.3 fill a card; of 0.3 alone three do. With more of 0.3 than of 0.7 those that are over cost a third each.
        ({30: 9.0, 70: 1.0}, {30: THIRD, 69: 2 * THIRD + 1, 70: 2 * THIRD + 1, 90: MICRO}),
        # With more of 0.7 every one of them costs a card and 0.3 comes for nothing.
        ({30: 1.0, 70: 9.0}, {30: 0, 69: 0, 70: MICRO}),
    ],
)
def test_value_of_a_part_of_a_card(shares: dict[int, float], worth: dict[int, int]) -> None:
    values = card_values(shares)
    for step, value in worth.items():
        assert values[step] == pytest.approx(value, abs=1), step


@given(st.dictionaries(st.integers(12, 100), st.floats(0.1, 9), min_size=1, max_size=4))
@settings(max_examples=60)
def test_values_are_the_optimal_dual_of_cutting_stock(shares: dict[int, float]) -> None:
    """No pattern is worth more than a card (all there are are tried), and each size has one that is worth a card, or is itself
    worth nothing: complementary slackness."""
    values = card_values(shares)
    sizes = sorted(shares)
    assert values[100] == MICRO
    assert list(values) == sorted(values)
    patterns = [p for p in product(*(range(100 // s + 1) for s in sizes)) if sum(map(int.__mul__, p, sizes)) <= 100]
    for p in patterns:
        assert sum(n * values[s] for n, s in zip(p, sizes, strict=True)) <= MICRO + 4 * len(sizes)
    tight = [
        p for p in patterns if sum(n * values[s] for n, s in zip(p, sizes, strict=True)) >= MICRO - 20 * len(sizes)
    ]
    for i, size in enumerate(sizes):
        assert any(p[i] for p in tight) or values[size] == 0


def test_what_goes_with_a_card_and_what_is_stranded_without() -> None:
    """16 jobs of 1 card, 8 cores, 32 GiB on nodes of 4 cards, 32 cores. By hand: 12 cores for 3 cards leave 1.5 of them stranded."""
    state = mapped(node("n1", cards=4, cpu=32, memory=512), node("n2", cards=3, cpu=12, memory=512))
    for i in range(FIRST):
        state.mix.accepted(request(cpu=8, memory=32))
        assert due(state.mix) == (i == FIRST - 1)
    nodes = state.settle()
    model = learn(state.mix, nodes)
    assert model is not None
    by_need = dict(zip(model.stranding_cpu_milli, model.stranding_share_micro, strict=True))
    # The prior is 15 cards of 0.1 pseudo-jobs: 1.5 of 17.5 cards, at half the map's 44 cores for 7 cards.
    assert by_need == {8000: pytest.approx(MICRO * 16 / 17.5, abs=1), 3142: pytest.approx(MICRO * 1.5 / 17.5, abs=5)}
    costs = Costs(MixLearned(DOMAIN, 1, NOW, "", *model))
    cost, _ = costs.of(nodes, request(cpu=4, memory=32), 0)
    n1, n2 = (int(cost[nodes.class_of[nodes.index[n]]]) * GRAIN / MICRO for n in ("n1", "n2"))
    # n1: a card goes, nothing is stranded that was not. n2: before, 3 cards with 12 cores stranded 1.5 of them; afterwards
    # 2 with 8 cores strand 1: a card of 16 in 17.5 goes at half a card's gain, weighed one and a half times.
    places = 0.2 * (0.1 * 2 + 0.1 * 4 + 0.1 * 8) / 17.5  # at most: members of several cards lost
    idle = 0.1 / 128
    assert n1 == pytest.approx(1 + idle * 28, abs=places * 7 + 0.02)
    assert n2 == pytest.approx(1 - 1.5 * 0.5 * 16 / 17.5 + idle * 8, abs=places * 7 + 0.02)


def test_a_model_that_others_need_costs_more() -> None:
    state = mapped(node("a", model="A100"), node("h", model="H100", cards=2))
    for i in range(FIRST):
        state.mix.accepted(request(models=("H100",) if i % 2 else ()))
    model = learn(state.mix, state.settle())
    assert model is not None
    price = dict(zip(model.price_card_models, model.price_micro, strict=True))
    # By hand, but for the prior: half the demand may have any of 10 cards, half only the 2: (½ · 10/10 + ½ · 10/2) = 3, and ½.
    assert price["H100"] / MICRO == pytest.approx(1 + 1.5 * (3 - 1), rel=0.1)
    assert price["A100"] / MICRO == pytest.approx(1 + 1.5 * (0.5 - 1), abs=0.1)


def test_long_runs_weigh_more() -> None:
    """As many short ones as long ones: what stands on the map at a time are the long ones."""
    mix = Mix()
    for _ in range(500):
        for kind, ran_ms in ((request(cpu=2), 1_000), (request(cpu=20), 99_000)):
            mix.accepted(kind)
            mix.ended(kind, ran_ms)
    state = mapped(node("n", cpu=128))
    model = learn(mix, state.settle())
    assert model is not None
    share = dict(zip(model.stranding_cpu_milli, model.stranding_share_micro, strict=True))
    assert share[20_000] > 0.95 * MICRO


def test_the_counts_are_bounded_and_forget() -> None:
    mix = Mix()
    for i in range(3 * MAX_KINDS):
        mix.accepted(request())
        mix.accepted(request(memory=2 + i))
    assert len(mix.kinds) <= MAX_KINDS
    assert mix.kinds[request()].jobs == 3 * MAX_KINDS, "what is frequent is kept"
    mix.counted = HALVE_AT - 1
    mix.accepted(request())
    assert mix.kinds[request()].jobs == (3 * MAX_KINDS + 1) // 2
    assert mix.counted == sum(seen.jobs for seen in mix.kinds.values())


conditions = st.lists(
    st.builds(
        lambda cards, cpu, memory, model: (cards, cpu, memory, model),
        st.lists(st.sampled_from((0, 100, 250, 400, 500, 1000, 1000)), max_size=4),
        st.integers(0, 40), st.integers(0, 200), st.sampled_from(("A100", "H100")),
    ), min_size=1, max_size=12,
)  # fmt: skip
kinds = st.builds(
    request,
    st.sampled_from((0, 0.1, 0.25, 0.4, 0.5, 1, 2, 4)),
    members=st.sampled_from((1, 1, 2, 3)),
    models=st.sampled_from(((), ("H100",))),
    cpu=st.integers(0, 12),
    memory=st.integers(0, 40),
)


def busy(found: list[tuple[list[int], int, int, str]]) -> Nodes:
    """Nodes whose cards are free in part: single shares hold the rest."""
    state = mapped(*(node(f"n{i}", cards=len(c), cpu=cpu, memory=memory, model=model, rack=f"r{i}")
                     for i, (c, cpu, memory, model) in enumerate(found)))  # fmt: skip
    nodes = state.settle()
    for i, (cards, *_) in enumerate(found):
        for card, free in enumerate(cards):
            if free < 1000:
                nodes.take(f"n{i}", Holding(1 << card, 1000 - free, 0, 0))
    return nodes


@given(conditions, st.lists(kinds, min_size=16, max_size=30), kinds)
@settings(max_examples=80, deadline=None)
def test_one_class_costs_the_same_alone_and_among_others(
    found: list[tuple[list[int], int, int, str]], seen: list[Request], asked: Request
) -> None:
    """And what is chosen is right: enough cards, each with room, and no other choice of cards is cheaper."""
    nodes = busy(found)
    mix = Mix()
    for kind in seen:
        mix.accepted(kind)
    model = learn(mix, nodes)
    if model is None:
        return
    learned = MixLearned(DOMAIN, 1, NOW, "", *model)
    all_, choices = Costs(learned).of(nodes, asked, 0)
    fit = members_that_fit(nodes, asked)
    costs = Costs(learned)
    one_by_one = np.concatenate([costs.of(nodes, asked, c)[0][:1] for c in range(len(nodes.classes))])
    assert all_.tolist() == one_by_one.tolist()
    for c in np.flatnonzero(fit >= asked.members).tolist():
        free = nodes.classes.conditions[c].card_free
        mask = costs.mask(free, asked, int(choices[c]))
        taken = [card for card in range(len(free)) if mask >> card & 1]
        assert all(free[card] >= min(asked.cards_milli, 1000) for card in taken)
        per_member = max(1, asked.cards_milli // 1000) if asked.cards_milli else 0
        assert len(taken) == asked.members * per_member


def test_a_restart_at_any_entry_decides_alike() -> None:
    """The model is a fact of the ledger: who restores a snapshot places as who lived through it."""

    def history(*, restarts: bool) -> list[object]:
        state = mapped(*(node(f"n{i}", cards=4, cpu=24 + 8 * (i % 2), memory=128, rack=f"r{i % 3}") for i in range(9)))
        placed: list[object] = []
        for i in range(90):
            now = NOW + 1000 * i
            size = (0.3, 1, 0.5, 2, 0.7)[i % 5]
            accept(state, job(f"j{i}", cards=size, cpu=2 + i % 7, memory=4), "", now)
            for e in decide(state, now):
                if isinstance(e, JobPlaced):
                    placed.append((e.job, e.nodes, e.card_masks, e.reason))
                    for kind in ("started", "finished"):
                        accept(state, receipt(e.job, e.nodes[0], kind), "", now + i % 3)
            if i % 4 == 0:
                for name in [n for n, j in state.jobs.items() if j.phase == "ended" and j.held_nodes]:
                    accept(state, receipt(name, state.jobs[name].nodes[0], "released"), "", now)
            if restarts:
                state = restore(snapshot(state))
        assert state.mix.learned is not None
        return placed

    assert history(restarts=True) == history(restarts=False)
