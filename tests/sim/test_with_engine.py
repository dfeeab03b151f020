"""Simulated nodes and the real engine together, faults and all: what the ledger says in the end must add up.

The account is kept apart from the engine's own state: from the ledger's entries alone, card by card.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from connectors.snapshots import FolderSnapshots
from connectors.sources import openb
from connectors.sources.found import Setting
from infra.demo_pipeline import Pipeline, Progress
from infra.sim import SOME, Faults, Pace, SimulatedInfrastructure
from schemas.records import (
    JobAccepted,
    JobEnded,
    JobInterrupted,
    JobPlaced,
    JobSubmitted,
    ReceiptRecorded,
    Row,
)
from schemas.topics import TOPICS
from streams.clock import ManualClock
from streams.decide import Decide
from streams.observe import Observe
from streams.runner import ProcessorWorker
from tests.streams.facts import read

START = 1_672_531_200_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PACE = Pace(heartbeat_ms=HOUR_MS, start_ms=(1_000, 5_000), release_ms=(1_000, 3_000), step_ms=1_000)
TRACE = openb.packaged(Setting("default", START))


def crowded(count: int) -> list[JobSubmitted]:
    """The trace's last jobs, an hour apart no more: they come faster than two nodes can take them."""
    jobs = [j for j in TRACE.jobs[-count * 2 :] if j.cards_milli <= 2_000][:count]
    return [j._replace(at=START + i * 20_000) for i, j in enumerate(jobs)]


def history(folder: Path, jobs: list[JobSubmitted], faults: Faults, seed: int) -> tuple[list[Row], Pipeline]:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    clock = ManualClock(START)
    simulated = SimulatedInfrastructure(log, "default", seed=seed, pace=PACE, faults=faults)
    simulated.register(TRACE.nodes[:4])
    pipeline = Pipeline(
        log,
        clock,
        jobs,
        simulated,
        ProcessorWorker(log, lambda: Observe(silence_ms=3 * HOUR_MS)),
        ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(folder), version="test")),
        None,
    )
    seen: list[Progress] = []
    pipeline.run(START + 40 * DAY_MS, seen.append)
    assert seen[-1].submitted == len(jobs)
    return read(log, "ledger"), pipeline


def check(ledger: list[Row], jobs: list[JobSubmitted]) -> None:
    assert [e.seq for e in ledger] == list(range(1, len(ledger) + 1))  # type: ignore[union-attr]
    cards = {n.node: n.cards for n in TRACE.nodes}
    used: dict[tuple[str, int], int] = defaultdict(int)
    held: dict[tuple[str, int, str], tuple[int, int]] = {}
    accepted, ended = Counter[str](), Counter[str]()
    attempts: dict[str, int] = defaultdict(int)
    for e in ledger:
        if isinstance(e, JobAccepted):
            accepted[e.job] += 1
        elif isinstance(e, JobEnded):
            ended[e.job] += 1
        elif isinstance(e, JobPlaced):
            assert ended[e.job] == 0, "nothing is placed after its end"
            assert e.attempt == attempts[e.job] + 1
            attempts[e.job] = e.attempt
            for node, mask in zip(e.nodes, e.card_masks, strict=True):
                held[(e.job, e.attempt, node)] = (mask, e.card_milli)
                for card in range(mask.bit_length()):
                    if mask >> card & 1:
                        assert card < cards[node]
                        used[(node, card)] += e.card_milli
                        assert used[(node, card)] <= 1_000, f"card {card} of {node} is given twice at seq {e.seq}"
        elif isinstance(e, ReceiptRecorded) and e.kind == "released":
            mask, milli = held.pop((e.job, e.attempt, e.node))
            for card in range(mask.bit_length()):
                if mask >> card & 1:
                    used[(e.node, card)] -= milli
    names = Counter(j.job for j in jobs)
    assert accepted == names
    assert ended == names
    assert not held
    assert not any(used.values())


def test_without_faults_every_job_ends_as_in_the_trace(tmp_path: Path) -> None:
    jobs = crowded(80)
    ledger, _ = history(tmp_path, jobs, Faults(), 0)
    check(ledger, jobs)
    failing = {j.job for j in jobs if "sim.exit_code=1" in j.labels}
    assert {e.job for e in ledger if isinstance(e, JobEnded) and e.outcome == "failed"} == failing
    assert not [e for e in ledger if isinstance(e, JobInterrupted)]
    # 80 jobs on 8 cards: some had to wait for others.
    assert max(e.waited_ms for e in ledger if isinstance(e, JobPlaced)) > 60_000


@pytest.mark.parametrize("seed", range(3))
def test_with_every_fault_nothing_is_lost_and_nothing_given_twice(seed: int, tmp_path: Path) -> None:
    faults = replace(SOME, lost=0.05, late=0.1, doubled=0.1, reordered=0.2, start_failed=0.05, deaths_per_day=2.0)
    jobs = crowded(60)
    ledger, _ = history(tmp_path, jobs, faults, seed)
    check(ledger, jobs)
    assert [e for e in ledger if isinstance(e, JobInterrupted)], "the faults were felt"


def test_one_seed_gives_one_ledger(tmp_path: Path) -> None:
    jobs = crowded(30)
    first, _ = history(tmp_path / "a", jobs, SOME, 7)
    again, _ = history(tmp_path / "b", jobs, SOME, 7)
    assert first == again
