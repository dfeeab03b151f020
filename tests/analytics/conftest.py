"""A small history with figures that can be worked out by hand, landed in a real engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import analytics
from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.migrate import migrate
from connectors.log.memory import MemoryLog
from schemas.records import (
    EngineStarted,
    JobAccepted,
    JobEnded,
    JobInterrupted,
    JobPending,
    JobPlaced,
    JobStarted,
    LedgerEntry,
    NodeRecorded,
)
from schemas.topics import TOPICS
from tests.land.ledger import land_all, lander, write

DAY = 86_400_000
HOUR = 3_600_000
START = 1_767_225_600_000  # 1 January 2026, 00:00 UTC


def history() -> list[LedgerEntry]:
    """Two nodes of 8 cards. `a` (8 cards) runs at once, 0:00 to 12:00. `b` (16 cards) waits 12 hours for it, runs 6 hours, is
    interrupted, waits 6 hours, and runs from 24:00 to 36:00. `c` (half a card) still waits at the end."""
    made: list[LedgerEntry] = []
    seq = iter(range(1, 100))

    def at(hours: float) -> tuple[str, int, int, str]:
        return ("default", next(seq), START + int(hours * HOUR), "")

    def node(name: str) -> NodeRecorded:
        return NodeRecorded(
            *at(0),
            name,
            "s",
            "",
            "",
            "",
            "",
            "",
            8,
            "A100-SXM4-80GB",
            80 << 30,
            64_000,
            1 << 40,
            0,
            "",
            (),
            "",
            "up",
            8,
            "registered",
        )

    def accepted(job: str, hours: float, members: int, cards_milli: int, queue: str) -> JobAccepted:
        return JobAccepted(
            *at(hours),
            job,
            START + int(hours * HOUR),
            "ada",
            queue,
            0,
            members,
            cards_milli,
            (),
            0,
            0,
            0,
            "",
            0,
            0,
            (),
            (),
            (),
        )

    def placed(
        job: str, hours: float, attempt: int, queue: str, nodes: tuple[str, ...], milli: int, waited_h: float
    ) -> JobPlaced:
        ones = tuple(1 for _ in nodes)
        return JobPlaced(
            *at(hours), job, attempt, "ada", queue, nodes, ones, tuple(255 for _ in nodes), 1000, milli, "node", nodes[0],
            int(waited_h * HOUR), 1, "fits", 0,
        )  # fmt: skip

    made.append(EngineStarted(*at(0), "test", 0))
    made += [node("n1"), node("n2")]
    made.append(accepted("a", 0, 1, 8_000, "q1"))
    made.append(placed("a", 0, 1, "q1", ("n1",), 8_000, 0))
    made.append(JobStarted(*at(0), "a", 1, 0))
    made.append(accepted("b", 0, 2, 8_000, "q2"))
    made.append(JobPending(*at(0), "b", 0, "no_room", "needs 2 nodes, 1 is free", 1))
    made.append(JobEnded(*at(12), "a", 1, "ada", "q1", "finished", "", 0, 0, 12 * HOUR, 8_000))
    made.append(placed("b", 12, 1, "q2", ("n1", "n2"), 16_000, 12))
    made.append(JobStarted(*at(12), "b", 1, 12 * HOUR))
    made.append(JobInterrupted(*at(18), "b", 1, "node_lost", "n2 is silent", 6 * HOUR, True))
    made.append(JobPending(*at(18), "b", 1, "node_away", "n2 is away", 1))
    made.append(placed("b", 24, 2, "q2", ("n1", "n2"), 16_000, 6))
    made.append(JobStarted(*at(24), "b", 2, 6 * HOUR))
    made.append(accepted("c", 30, 1, 500, "q1"))
    made.append(JobPending(*at(30), "c", 0, "no_room", "no card is free", 1))
    made.append(JobEnded(*at(36), "b", 2, "ada", "q2", "failed", "exit code 1", 1, 12 * HOUR, 12 * HOUR, 16_000))
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    opened = connect(f"chdb:{tmp_path / 'c'}")
    try:
        migrate(opened, analytics.migrations())
        yield opened
    finally:
        opened.close()


@pytest.fixture
def db(empty: Database) -> Database:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    write(log, history())
    land_all(lander(log, lambda: empty))
    log.close()
    return empty
