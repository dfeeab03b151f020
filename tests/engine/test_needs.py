"""Which waiting kinds could use what was freed: against the definition, kind by kind; and that the others are not tried."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import JobPlaced
from streams.engine import State, _decide, accept, decide
from streams.engine._classes import Condition
from streams.engine._needs import Needs
from streams.engine._place import Fit, NoFit, find
from streams.engine._request import Request
from tests.engine.rows import DOMAIN, NOW, job, node, receipt

kinds = st.builds(
    Request,
    st.integers(1, 3), st.sampled_from((0, 250, 500, 1000, 2000)), st.just(()), st.just(0), st.integers(0, 3), st.integers(0, 3),
    st.just(""),
)  # fmt: skip
conditions = st.builds(
    Condition, st.just(0), st.integers(-2, 3), st.integers(-2, 3), st.lists(st.sampled_from((-100, 0, 250, 400, 1000)), max_size=3).map(tuple)
)  # fmt: skip


def holds(free: Condition, kind: Request) -> bool:
    cards = sorted((c for c in free.card_free), reverse=True)
    if kind.cards_milli >= 1000:
        enough = cards.count(1000) >= kind.cards_milli // 1000
    else:
        enough = kind.cards_milli == 0 or (bool(cards) and cards[0] >= kind.cards_milli)
    cpu = kind.cpu_milli == 0 or kind.cpu_milli <= free.cpu_free
    return enough and cpu and (kind.memory_bytes == 0 or kind.memory_bytes <= free.memory_free)


@given(st.lists(st.tuples(st.booleans(), kinds), max_size=40), conditions)
@settings(max_examples=200)
def test_kinds_that_fit_are_those_by_definition(steps: list[tuple[bool, Request]], free: Condition) -> None:
    needs, waiting = Needs(), set[Request]()
    for add, kind in steps:
        if add and kind not in waiting:
            needs.add(kind)
            waiting.add(kind)
        elif not add and kind in waiting:
            needs.remove(kind)
            waiting.remove(kind)
    assert len(needs) == len(waiting)
    found = needs.that_fit(free)
    assert len(found) == len(set(found))
    assert set(found) == {kind for kind in waiting if holds(free, kind)}


def test_what_is_freed_is_offered_to_those_who_could_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand kinds wait for two cards and more; one card comes free: none of them is searched for, who wants one gets it."""
    tried: list[Request] = []

    def counted(*args: object) -> Fit | NoFit:
        tried.append(args[1])  # type: ignore[arg-type]
        return find(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(_decide, "find", counted)
    state = State.empty(DOMAIN)
    accept(state, node("n", cards=4), "", NOW)
    for name in ("a", "b", "c", "d"):
        accept(state, job(name), "", NOW)
    decide(state, NOW)
    for i in range(1000):
        accept(state, job(f"hopeless-{i}", cards=2, memory=1 + i / 1000), "", NOW)
    accept(state, job("hopeful"), "", NOW)
    decide(state, NOW)
    tried.clear()
    for kind in ("started", "finished"):
        accept(state, receipt("b", "n", kind), "", NOW)
    decide(state, NOW)
    accept(state, receipt("b", "n", "released"), "", NOW)
    placed = [e.job for e in decide(state, NOW) if isinstance(e, JobPlaced)]
    assert placed == ["hopeful"]
    assert len(tried) == 1
    # The next one makes two: all who wait for two are searched for, once; and not again while nothing changes.
    for name in ("a", "c"):
        for kind in ("started", "finished"):
            accept(state, receipt(name, "n", kind), "", NOW)
    decide(state, NOW)
    for name in ("a", "c"):
        accept(state, receipt(name, "n", "released"), "", NOW)
    tried.clear()
    assert [e.job for e in decide(state, NOW) if isinstance(e, JobPlaced)] == ["hopeless-0"]
    assert len(tried) == 1000
    tried.clear()
    assert decide(state, NOW + 1) == []
    assert tried == []
