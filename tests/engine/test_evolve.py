"""`evolve` takes only the next entry of its domain; what it keeps is bounded; timers are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.records import CapacityQuarantined, EngineStarted, JobEnded, JobStarted
from streams.engine import State, _state, accept, decide, evolve, snapshot
from streams.engine import inspect as look
from streams.engine._nodes import cards_of
from streams.engine._state import Timers
from tests.engine.rows import DOMAIN, NOW, cancel, job, node, receipt


def started(seq: int, at: int = NOW, domain: str = DOMAIN) -> EngineStarted:
    return EngineStarted(domain, seq, at, "", "test", 0)


@pytest.mark.parametrize(
    "entry",
    [
        started(1),
        started(3),
        started(2, domain="elsewhere"),
        started(2, at=NOW - 1),
        JobStarted(DOMAIN, 2, NOW, "", "nobody", 1, 0),
    ],
)
def test_a_ledger_that_does_not_fit_is_corrupted(entry: EngineStarted | JobStarted) -> None:
    state = State.empty(DOMAIN)
    evolve(state, started(1))
    before = snapshot(state)
    with pytest.raises(Corrupted):
        evolve(state, entry)
    assert snapshot(state) == before


def test_ended_jobs_are_kept_up_to_a_bound_but_never_while_a_node_may_hold_their_cards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streams.engine._evolve.KEEP_ENDED", 3)
    state = State.empty(DOMAIN)
    accept(state, node("n1", cards=1), "", NOW)
    accept(state, job("held"), "", NOW)
    decide(state, NOW)
    accept(state, receipt("held", "n1", "finished"), "", NOW)
    decide(state, NOW)
    for i in range(6):
        accept(state, job(f"j{i}"), "", NOW)
        accept(state, cancel(f"j{i}"), "", NOW)
        decide(state, NOW)
    assert {"held"} < set(state.jobs)
    assert len(state.jobs) <= 4
    # Its id cannot be taken again while its first holder has not let go.
    assert accept(state, job("held"), "", NOW) == []
    accept(state, receipt("held", "n1", "released"), "", NOW)
    for i in range(6, 12):
        accept(state, job(f"j{i}"), "", NOW)
        accept(state, cancel(f"j{i}"), "", NOW)
        decide(state, NOW)
    assert "held" not in state.jobs
    assert list(state.jobs) == ["j9", "j10", "j11"]


def test_a_removed_node_holds_nothing_and_lets_go_of_old_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.engine._evolve.KEEP_ENDED", 1)
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=1), node("n2", cards=1), job("gang", members=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, cancel("gang"), "", NOW)
    decide(state, NOW)
    accept(state, node("n1", state="removed"), "", NOW)
    accept(state, receipt("gang", "n2", "released"), "", NOW)
    for i in range(3):
        accept(state, job(f"j{i}"), "", NOW)
        accept(state, cancel(f"j{i}"), "", NOW)
        decide(state, NOW)
    assert list(state.jobs) == ["j2"]


@pytest.mark.parametrize("how", ["confirmed late", "removed"])
def test_a_quarantine_ends_with_the_release_or_the_node(how: str) -> None:
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=2), job("j", cards=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, cancel("j"), "", NOW)
    decide(state, NOW)
    (entry,) = decide(state, NOW + 120_000)
    assert isinstance(entry, CapacityQuarantined)
    assert (entry.node, entry.card_mask, entry.card_milli) == ("n1", 0b11, 1000)
    assert list(state.quarantined) == [("j", 1, "n1")]
    assert look.cards_milli(state) == (2000, 0)
    accept(state, receipt("j", "n1", "released") if how == "confirmed late" else node("n1", state="removed"), "", NOW)
    assert state.quarantined == {}
    assert state.holdings == {}
    accept(state, node("n1", cards=2), "", NOW)
    assert look.cards_milli(state) == (2000, 2000)


def test_nothing_stays_behind_of_kinds_that_no_longer_wait() -> None:
    state = State.empty(DOMAIN)
    accept(state, job("first"), "", NOW)
    decide(state, NOW)
    accept(state, job("second"), "", NOW)
    views = {v.job: v for v in look.jobs(state)}
    assert (views["first"].code, views["first"].position) == ("no_nodes", 1)
    assert (views["second"].code, views["second"].position) == ("", 2), "not yet told"
    for name in ("first", "second"):
        accept(state, cancel(name), "", NOW)
    decide(state, NOW)
    assert (len(state.order), state.line, state.told, state.memo, state.unexplained, state.attention) == (
        0, {}, {}, {}, {}, {},
    )  # fmt: skip


def test_the_bound_is_what_the_documentation_says() -> None:
    assert _state.KEEP_ENDED == 20_000


def test_waits_and_runs_are_measured_from_the_ledgers_times() -> None:
    state = State.empty(DOMAIN)
    accept(state, node("n1", cards=1), "", NOW)
    accept(state, job("j", at=NOW - 5_000), "", NOW)
    decide(state, NOW)
    accept(state, receipt("j", "n1", "started"), "", NOW + 2_000)
    decide(state, NOW + 3_000)
    accept(state, receipt("j", "n1", "finished"), "", NOW + 10_000)
    (ended,) = decide(state, NOW + 10_000)
    assert isinstance(ended, JobEnded)
    assert (ended.waited_ms, ended.ran_ms, ended.cards_milli_total) == (8_000, 7_000, 1_000)
    view = look.job(state, "j")
    assert view is not None
    assert (view.submitted_at, view.placed_at, view.started_at, view.ended_at) == (
        NOW - 5_000, NOW, NOW + 3_000, NOW + 10_000,
    )  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 20))), max_size=200))
def test_timers_are_a_dictionary_that_knows_its_earliest(steps: list[tuple[str, int | None]]) -> None:
    timers = Timers()
    plain: dict[str, int] = {}
    for name, when in steps:
        if when is None:
            timers.drop(name)
            plain.pop(name, None)
        else:
            timers.set(name, when)
            plain[name] = when
        assert timers.first() == min(plain.values(), default=None)
        for now in (0, 10, 20):
            assert timers.due(now) == [n for w, n in sorted((w, n) for n, w in plain.items()) if w <= now]
    assert timers.at == plain


@given(st.integers(0, 2**63 - 1))
def test_cards_of_a_mask(mask: int) -> None:
    assert sum(2**card for card in cards_of(mask)) == mask
    assert list(cards_of(mask)) == sorted(cards_of(mask))
