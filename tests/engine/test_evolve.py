"""`evolve` takes only the next entry of its domain; what it keeps is bounded; timers are exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.records import (
    CapacityQuarantined,
    EngineStarted,
    JobEnded,
    JobInterrupted,
    JobPlaced,
    JobStarted,
    LedgerEntry,
    ReceiptRecorded,
)
from streams.engine import State, _state, accept, commands, decide, evolve, next_wake, restore, snapshot
from streams.engine import inspect as look
from streams.engine._classes import cards_of
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


def test_a_removed_node_keeps_what_it_held_and_its_job_until_it_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.engine._evolve.KEEP_ENDED", 1)
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=1), node("n2", cards=1), job("gang", members=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, cancel("gang"), "", NOW)
    decide(state, NOW)
    accept(state, node("n1", state="removed"), "", NOW)
    accept(state, receipt("gang", "n2", "released"), "", NOW)
    assert state.jobs["gang"].held_nodes == 1
    _three_jobs_end(state, "j")
    assert list(state.jobs) == ["gang"], "its id is not free while n1 may run it"
    (entry,) = accept(state, receipt("gang", "n1", "released"), "", NOW)
    assert isinstance(entry, ReceiptRecorded)
    assert (state.holdings, state.gone, state.gone_held, state.unreleased) == ({}, {}, 0, {})
    assert accept(state, receipt("gang", "n1", "released"), "", NOW) == []
    _three_jobs_end(state, "k")
    assert list(state.jobs) == ["k2"]


def _three_jobs_end(state: State, name: str) -> None:
    for i in range(3):
        accept(state, job(f"{name}{i}"), "", NOW)
        accept(state, cancel(f"{name}{i}"), "", NOW)
        decide(state, NOW)


def test_a_quarantine_ends_with_the_release() -> None:
    state = _quarantined()
    assert list(state.quarantined) == [("j", 1, "n1")]
    assert look.cards_milli(state) == (2000, 0)
    accept(state, receipt("j", "n1", "released"), "", NOW)
    assert state.quarantined == {}
    assert state.holdings == {}
    assert look.cards_milli(state) == (2000, 2000)


def _quarantined() -> State:
    """Two cards of n1 that j holds and did not give back: cancelled at NOW, overdue at NOW + 120 s."""
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=2), job("j", cards=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, cancel("j"), "", NOW)
    decide(state, NOW)
    (entry,) = decide(state, NOW + 120_000)
    assert isinstance(entry, CapacityQuarantined)
    assert (entry.node, entry.card_mask, entry.card_milli) == ("n1", 0b11, 1000)
    return state


def test_a_quarantine_ends_with_its_node_and_begins_anew_when_that_returns_and_is_silent_about_it() -> None:
    state = _quarantined()
    accept(state, node("n1", state="removed"), "", NOW + 130_000)
    assert (state.quarantined, state.releasing, next_wake(state)) == ({}, {}, None)
    assert (look.nodes(state), look.cards_milli(state)) == ([], (0, 0))
    assert decide(state, NOW + 10**9) == []
    back = NOW + 2 * 10**9
    (entry,) = accept(state, node("n1", cards=2), "", back)
    (told,) = commands(state, entry)
    assert (told.kind, told.job, told.attempt, told.node, told.card_mask) == ("release", "j", 1, "n1", 0b11)
    assert look.cards_milli(state) == (2000, 0)
    assert look.nodes(state)[0].jobs == ("j",)
    assert next_wake(state) == back + 120_000
    assert decide(state, back + 119_999) == []
    (quarantined,) = decide(state, back + 120_000)
    assert isinstance(quarantined, CapacityQuarantined)
    assert quarantined.node == "n1"
    accept(state, receipt("j", "n1", "released"), "", back + 120_000)
    assert look.cards_milli(state) == (2000, 2000)


def test_a_node_that_left_and_returned_between_two_rounds_is_given_up_and_asked_to_release() -> None:
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=2), job("j", cards=2, at=NOW), job("other", cards=1)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, receipt("j", "n1", "started"), "", NOW)
    decide(state, NOW)
    accept(state, node("n1", state="removed"), "", NOW + 1_000)
    (entry,) = accept(state, node("n1", cards=2), "", NOW + 1_000)
    # Nothing says yet that the attempt is over: its command comes with the interruption.
    assert commands(state, entry) == []
    assert (state.jobs["j"].trouble, state.releasing) == ("node_lost", {})
    entries = decide(state, NOW + 1_000)
    told = [c for e in entries for c in commands(state, e)]
    assert [(c.kind, c.job, c.attempt, c.node) for c in told] == [("release", "j", 1, "n1")]
    interrupted = entries[0]
    assert isinstance(interrupted, JobInterrupted)
    assert (interrupted.code, interrupted.requeued) == ("node_lost", True)
    assert not any(isinstance(e, JobPlaced) for e in entries), "both cards may still be at work"
    assert state.releasing == {("j", 1, "n1"): NOW + 1_000}
    accept(state, receipt("j", "n1", "released"), "", NOW + 2_000)
    (placed, *_) = decide(state, NOW + 2_000)
    assert isinstance(placed, JobPlaced)
    assert (placed.job, placed.attempt, placed.card_masks) == ("j", 2, (0b11,))


def test_each_node_of_a_gang_has_its_own_time_to_confirm() -> None:
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=1), node("n2", cards=1), job("gang", members=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, node("n2", state="removed"), "", NOW)
    entries = decide(state, NOW)
    # Asked although it is gone: it may be there and work, only not on the map.
    assert [c.node for e in entries for c in commands(state, e)] == ["n1", "n2"]
    assert state.releasing == {("gang", 1, "n1"): NOW}
    accept(state, node("n2", cards=1), "", NOW + 60_000)
    assert state.releasing == {("gang", 1, "n1"): NOW, ("gang", 1, "n2"): NOW + 60_000}
    overdue = {s: decide(state, NOW + s * 1000) for s in (119, 120, 179, 180)}
    assert {s: [e.node for e in es if isinstance(e, CapacityQuarantined)] for s, es in overdue.items()} == {
        119: [], 120: ["n1"], 179: [], 180: ["n2"],
    }  # fmt: skip


def test_a_member_that_had_finished_holds_its_card_through_removal_and_return() -> None:
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=1), node("n2", cards=1), job("gang", members=2)):
        accept(state, row, "", NOW)
    decide(state, NOW)
    accept(state, receipt("gang", "n1", "finished"), "", NOW)
    accept(state, node("n1", state="removed"), "", NOW)
    assert decide(state, NOW) == [], "n2 goes on"
    (entry,) = accept(state, node("n1", cards=1), "", NOW)
    assert commands(state, entry) == [], "the attempt is not over"
    assert (look.cards_milli(state), state.releasing) == ((2000, 0), {})
    accept(state, receipt("gang", "n2", "finished"), "", NOW)
    entries = decide(state, NOW)
    assert [c.node for e in entries for c in commands(state, e)] == ["n1", "n2"]
    assert list(state.releasing) == [("gang", 1, "n1"), ("gang", 1, "n2")]


@pytest.mark.parametrize("restarts", [False, True])
def test_of_nodes_that_are_gone_the_oldest_holdings_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """Three nodes with two cards, each with two jobs; four holdings are kept. Removed: n2, n0, n1."""
    monkeypatch.setattr("streams.engine._evolve.KEEP_GONE", 4)
    monkeypatch.setattr("streams.engine._evolve.KEEP_ENDED", 0)
    state = State.empty(DOMAIN)
    ledger: list[LedgerEntry] = []
    for i in range(3):
        ledger += accept(state, node(f"n{i}", cards=2), "", NOW)
        for k in range(2):
            ledger += accept(state, job(f"j{i}{k}"), "", NOW)
        ledger += decide(state, NOW)
        assert [state.jobs[f"j{i}{k}"].nodes for k in range(2)] == [(f"n{i}",)] * 2
    for i in range(3):
        for k in range(2):
            ledger += accept(state, cancel(f"j{i}{k}"), "", NOW)
    ledger += decide(state, NOW)
    kept = []
    for name in ("n2", "n0", "n1"):
        ledger += accept(state, node(name, state="removed"), "", NOW)
        kept.append({n: [j for j, _ in held] for n, held in state.holdings.items() if n in state.gone})
        if restarts:
            state = restore(snapshot(state))
    assert kept == [
        {"n2": ["j20", "j21"]},
        {"n0": ["j00", "j01"], "n2": ["j20", "j21"]},
        {"n0": ["j00", "j01"], "n1": ["j10", "j11"]},
    ]
    assert (list(state.gone), state.gone_held) == (["n0", "n1"], 4)
    assert {name: j.held_nodes for name, j in state.jobs.items()} == {
        "j00": 1, "j01": 1, "j10": 1, "j11": 1, "j20": 0, "j21": 0,
    }  # fmt: skip
    assert {key[0] for key in state.unreleased} == {"j00", "j01", "j10", "j11"}
    # One more is one too many: j00 is the oldest of the oldest.
    for row in (node("n3", cards=1), job("j3")):
        ledger += accept(state, row, "", NOW)
    ledger += decide(state, NOW)
    ledger += accept(state, node("n3", state="removed"), "", NOW)
    assert [key for n in state.gone for key in state.holdings[n]] == [("j01", 1), ("j10", 1), ("j11", 1), ("j3", 1)]
    assert list(state.gone) == ["n0", "n1", "n3"]
    # What is forgotten is free when its node returns, what is remembered is not.
    ledger += decide(state, NOW)
    ledger += accept(state, cancel("j3"), "", NOW)
    ledger += decide(state, NOW)
    for name in ("n2", "n0"):
        ledger += accept(state, node(name, cards=2), "", NOW)
    assert {v.node: v.cards_free_milli for v in look.nodes(state)} == {"n0": 1000, "n2": 2000}
    assert state.gone_held == 3
    # Jobs of which all is forgotten go like any other; two are looked at for each that ends, so three that stay keep three.
    ledger += accept(state, receipt("j01", "n0", "released"), "", NOW)
    for i in range(8):
        ledger += accept(state, job(f"k{i}"), "", NOW)
        ledger += accept(state, cancel(f"k{i}"), "", NOW)
        ledger += decide(state, NOW)
    assert set(state.jobs) == {"j10", "j11", "j3", "k5", "k6", "k7"}
    replayed = State.empty(DOMAIN)
    for e in ledger:
        evolve(replayed, e)
    assert snapshot(replayed) == snapshot(state) == snapshot(restore(snapshot(state)))


def test_one_removal_may_forget_more_than_one_node_and_part_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.engine._evolve.KEEP_GONE", 2)
    state = State.empty(DOMAIN)
    for i, cards in enumerate((1, 1, 3)):
        accept(state, node(f"n{i}", cards=cards), "", NOW)
        for k in range(cards):
            accept(state, job(f"j{i}{k}"), "", NOW)
        decide(state, NOW)
    for i in range(3):
        accept(state, node(f"n{i}", state="removed"), "", NOW)
    assert state.holdings.keys() == {"n2"}
    assert (list(state.holdings["n2"]), list(state.gone), state.gone_held) == ([("j21", 1), ("j22", 1)], ["n2"], 2)
    # Work that is forgotten is given up all the same.
    lost = [(e.job, e.code) for e in decide(state, NOW) if isinstance(e, JobInterrupted)]
    assert lost == [(name, "node_lost") for name in ("j00", "j10", "j20", "j21", "j22")]
    assert state.unreleased == {("j21", 1): {"n2": None}, ("j22", 1): {"n2": None}}


def test_cards_that_an_older_ledger_gave_twice_are_owed_however_the_state_came_about() -> None:
    """Ledgers are not rewritten: one holds a placement on cards of a node that had returned with old work."""
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=2), job("old"), job("new")):
        accept(state, row, "", NOW)
    found = decide(state, NOW)
    placed = {e.job: e for e in found if isinstance(e, JobPlaced)}
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=2), job("old"), job("new")):
        accept(state, row, "", NOW)
    state.settle()
    for name in ("old", "new"):
        evolve(state, placed[name]._replace(seq=state.seq + 1, card_masks=(0b01,)))
    assert look.cards_milli(state) == look.cards_milli(restore(snapshot(state))) == (2000, 1000)
    for i, name in enumerate(("old", "new")):
        accept(state, cancel(name), "", NOW)
        decide(state, NOW)
        accept(state, receipt(name, "n1", "released"), "", NOW)
        free = (1000, 2000)[i]
        assert look.cards_milli(state) == look.cards_milli(restore(snapshot(state))) == (2000, free)


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


def test_the_bounds_are_what_the_documentation_says() -> None:
    assert (_state.KEEP_ENDED, _state.KEEP_GONE) == (20_000, 10_000)


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
