"""Exactly once, through crashes and aborts around every commit, on every home. Counted from the logs at the end."""

import time
from collections import Counter
from pathlib import Path

import pytest

from connectors.snapshots import FolderSnapshots
from schemas.codec import encode
from schemas.errors import Fenced, TransactionAborted, Transient
from schemas.messages import Record
from schemas.records import Command, DeadLetter, JobAccepted, JobPlaced, LedgerEntry, NodeChanged
from streams.decide import Decide
from streams.engine import snapshot
from streams.observe import Observe
from streams.replay import restore_state
from streams.runner import ProcessorWorker
from tests.streams.conftest import Home
from tests.streams.facts import changed, drive, job, read, registered, sample, write
from tests.streams.faulty import Died, FaultyLog, seeded

SEEDS = (1, 2, 3)


def live_through(worker: ProcessorWorker, home: Home) -> bool:
    """Drive until nothing is left to do; True when the process died on the way."""
    while True:
        try:
            drive(worker, wait_ms=home.wait_ms)
        except Died:
            # On a broker the dead one's consumer would be in the group until its session ends: leave for it.
            if home.name == "kafka":
                worker.close(2_000)
            return True
        except TransactionAborted:
            continue
        except Transient:
            continue
        return False


@pytest.mark.parametrize("seed", SEEDS)
def test_decide(home: Home, tmp_path: Path, seed: int) -> None:
    log = home.open()
    fault = seeded(seed, 0.4)
    worker: ProcessorWorker | None = None

    def start() -> ProcessorWorker:
        return ProcessorWorker(
            FaultyLog(home.open(), fault),
            lambda: Decide("default", FolderSnapshots(tmp_path), version="test", snapshot_every=11),
        )

    worker = start()
    deaths = 0
    write(log, [changed(f"n{i}") for i in range(4)])
    rounds = 6 if home.name == "kafka" else 25
    for k in range(rounds):
        write(
            log, [job(f"j{k}-{i}", cards_milli=100) for i in range(4)] + [Record("jobs", b"bad", f"bad {k}".encode())]
        )
        while live_through(worker, home):
            deaths += 1
            worker = start()
    assert deaths > 0
    # A busy machine may take longer to hand out the last messages than the driver waits for them.
    deadline = time.monotonic() + 60
    while sum(isinstance(e, JobPlaced) for e in read(log, "ledger")) < 4 * rounds and time.monotonic() < deadline:
        while live_through(worker, home):
            worker = start()
    entries = [e for e in read(log, "ledger") if isinstance(e, LedgerEntry)]
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
    wanted = sorted(f"j{k}-{i}" for k in range(rounds) for i in range(4))
    assert sorted(e.job for e in entries if isinstance(e, JobAccepted)) == wanted
    placed = [e for e in entries if isinstance(e, JobPlaced)]
    assert sorted(e.job for e in placed) == wanted
    # One start command for each node of each placement; one dead letter for each bad message.
    starts = Counter(c.command_id for c in read(log, "commands") if isinstance(c, Command) and c.kind == "start")
    assert starts == Counter(f"default/{e.seq}/{n}" for e in placed for n in e.nodes)
    dead = Counter(r.value for r in read(log, "dead-letter") if isinstance(r, DeadLetter))
    assert dead == Counter(f"bad {k}".encode() for k in range(rounds))
    # What the survivor holds is what its ledger says.
    assert isinstance(worker.processor, Decide)
    replayed = restore_state(log, "default", 0, FolderSnapshots(tmp_path / "none"))
    assert snapshot(replayed.state) == snapshot(worker.processor.state)


@pytest.mark.parametrize("seed", SEEDS)
def test_observe(home: Home, seed: int) -> None:
    log = home.open()
    fault = seeded(seed, 0.4)

    def start() -> ProcessorWorker:
        return ProcessorWorker(FaultyLog(home.open(), fault), Observe)

    worker = start()
    deaths = 0
    nodes = [f"n{i}" for i in range(12)]
    rounds = 5 if home.name == "kafka" else 20
    write(log, [registered(n) for n in nodes])
    for k in range(1, rounds + 1):
        write(log, [sample(n, k, healthy=k % 2 + 1) for n in nodes])
        write(log, [Record("resource-telemetry", b"bad", f"bad {k}".encode())])
        while live_through(worker, home):
            deaths += 1
            worker = start()
    assert deaths > 0
    deadline = time.monotonic() + 60
    while (
        sum(isinstance(r, NodeChanged) for r in read(log, "changes")) < len(nodes) * (rounds + 1)
        or sum(isinstance(r, DeadLetter) for r in read(log, "dead-letter")) < rounds
    ) and time.monotonic() < deadline:
        while live_through(worker, home):
            worker = start()
    told = Counter((r.node, r.counter) for r in read(log, "changes") if isinstance(r, NodeChanged))
    # The registration (counter -1), then each round flips the healthy cards of each node: one change each.
    assert told == Counter((n, c) for n in nodes for c in (-1, *range(1, rounds + 1)))
    dead = Counter(r.value for r in read(log, "dead-letter") if isinstance(r, DeadLetter))
    assert dead == Counter(f"bad {k}".encode() for k in range(1, rounds + 1))


def test_a_stale_observe_of_the_same_slot_is_fenced(home: Home) -> None:
    log, names = home.open(), [f"n{i}" for i in range(16)]
    older, newer = ProcessorWorker(home.open(), Observe), ProcessorWorker(home.open(), Observe)
    write(log, [registered(n) for n in names])
    drive(older, wait_ms=home.wait_ms)
    newer.step(1, 0)  # it joins, which fences the older one
    # On a broker the older one keeps its share of the partitions until it leaves; some of the sixteen are there.
    write(log, [Record("resource-telemetry", n.encode(), encode(sample(n, 1, healthy=3))) for n in names])
    with pytest.raises(Fenced):
        drive(older, wait_ms=home.wait_ms)
    older.close(1_000)
    deadline = time.monotonic() + 60
    while True:
        drive(newer, wait_ms=home.wait_ms)
        told = sorted((r.node, r.cards_healthy) for r in read(log, "changes") if isinstance(r, NodeChanged))
        if len(told) == 32 or time.monotonic() > deadline:
            break
    assert told == sorted((n, healthy) for n in names for healthy in (8, 3))
