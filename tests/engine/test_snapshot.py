"""Snapshots: the same bytes from the same ledger, and damage never passes for a state."""

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import Corrupted
from schemas.records import LedgerEntry, Receipt
from streams.engine import State, accept, commands, decide, evolve, next_wake, restore, snapshot
from streams.engine import inspect as look
from tests.engine.rows import DOMAIN, NOW, cancel, job, node, progress, receipt


def a_day(seed: int, steps: int = 60) -> tuple[State, list[LedgerEntry]]:
    """A state and the ledger that made it: nodes, jobs, receipts, a cancellation, a loss; seeded."""
    chance = random.Random(seed)
    state = State.empty(DOMAIN)
    ledger: list[LedgerEntry] = []
    asked: list[Receipt] = []
    now = NOW
    for i in range(6):
        ledger += accept(state, node(f"n{i}", cards=4, rack=f"r{i % 2}"), f"changes/0@{i}", now)
    for step in range(steps):
        now += chance.randrange(0, 40_000)
        ledger += accept(
            state,
            job(f"j{step}", members=chance.choice((1, 1, 2, 5)), cards=chance.choice((0.5, 1, 2)), at=now),
            "",
            now,
        )
        if step % 7 == 3:
            ledger += accept(state, cancel(f"j{step - 1}"), "", now)
            ledger += accept(state, progress(f"j{step - 2}", 0.3, checkpoint="s3://c/ü", checkpoint_at=now), "", now)
        if step % 11 == 5:
            ledger += accept(
                state, node("n1", cards=4, rack="r1", state=chance.choice(("silent", "removed", "up"))), "", now
            )
        chance.shuffle(asked)
        for row in asked[: chance.randrange(0, 6)]:
            ledger += accept(state, row, "", now)
        decided = decide(state, now)
        ledger += decided
        for c in (c for e in decided for c in commands(state, e)):
            kinds = ("started", "finished") if c.kind == "start" else ("released",)
            asked += [receipt(c.job, c.node, kind, attempt=c.attempt) for kind in kinds]
    return state, ledger


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_a_restart_at_any_entry_gives_the_same_state(seed: int) -> None:
    state, ledger = a_day(seed)
    final = snapshot(state)
    for cut in range(0, len(ledger) + 1, 1 + len(ledger) // 12):
        other = State.empty(DOMAIN)
        for e in ledger[:cut]:
            evolve(other, e)
        other = restore(snapshot(other))
        for e in ledger[cut:]:
            evolve(other, e)
        assert snapshot(other) == final
        assert look.nodes(other) == look.nodes(state)
        assert look.jobs(other) == look.jobs(state)
        assert next_wake(other) == next_wake(state)


def test_a_restored_engine_goes_on_as_the_first_one_would() -> None:
    state, _ = a_day(7)
    twin = restore(snapshot(state))
    for step in range(20):
        now = state.at + 30_000
        row = job(f"later{step}", members=1 + step % 3, at=now)
        assert accept(state, row, "", now) == accept(twin, row, "", now)
        assert decide(state, now) == decide(twin, now)
    assert snapshot(state) == snapshot(twin)


def test_what_removed_nodes_hold_outlives_a_restart() -> None:
    """A gang on three nodes of which one is gone, one returned and one is quarantined: the same bytes, and the same decisions after."""
    state = State.empty(DOMAIN)
    for i in range(3):
        accept(state, node(f"n{i}", cards=1), "", NOW)
    accept(state, job("gang", members=3), "", NOW)
    decide(state, NOW)
    for name in ("n0", "n1"):
        accept(state, node(name, state="removed"), "", NOW)
    decide(state, NOW)
    decide(state, NOW + 120_000)
    accept(state, node("n1", cards=1), "", NOW + 130_000)
    twin = restore(snapshot(state))
    for one in (state, twin):
        assert (list(one.gone), one.gone_held, one.jobs["gang"].held_nodes) == (["n0"], 1, 3)
        assert one.unreleased == {("gang", 1): {"n0": None, "n1": None, "n2": None}}
        assert one.releasing == {("gang", 1, "n1"): NOW + 130_000}
        assert one.quarantined == {("gang", 1, "n2"): NOW + 120_000}
    assert snapshot(twin) == snapshot(state)
    (entry,) = accept(state, node("n0", cards=1), "", NOW + 140_000)
    assert accept(twin, node("n0", cards=1), "", NOW + 140_000) == [entry]
    assert commands(twin, entry) == commands(state, entry) != []
    for seconds in (140, 250, 260):
        assert decide(twin, NOW + seconds * 1000) == decide(state, NOW + seconds * 1000)
    assert list(state.quarantined) == list(twin.quarantined) == [("gang", 1, n) for n in ("n2", "n1", "n0")]
    assert snapshot(twin) == snapshot(state)


def test_every_damage_is_noticed() -> None:
    data = snapshot(a_day(1, 10)[0])
    assert restore(data).seq
    for i in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[i] ^= 0x40
        with pytest.raises(Corrupted):
            restore(bytes(damaged))
    for end in (0, 1, 37, 38, len(data) // 2, len(data) - 1):
        with pytest.raises(Corrupted):
            restore(data[:end])


def test_another_format_is_refused_by_name() -> None:
    data = bytearray(snapshot(State.empty(DOMAIN)))
    data[4:6] = (7).to_bytes(2, "big")
    with pytest.raises(Corrupted, match="format 7, this version reads format 3"):
        restore(bytes(data))


def test_the_document_inside_is_readable_without_us() -> None:
    """The layout that the module's first lines promise: 38 bytes of head, then zlib and JSON."""
    data = snapshot(a_day(2, 5)[0])
    assert data[:4] == b"LKSS"
    assert zlib.decompress(data[38:]).startswith(b'{"domain":"default","seq":')
