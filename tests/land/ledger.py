"""A ledger to land: entries of all types, written as decide writes them. No scheduling in it."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from connectors.clickhouse.client import Database
from connectors.clickhouse.landing import Lander
from schemas.codec import encode
from schemas.log import Log
from schemas.messages import Record
from schemas.records import LEDGER_TYPES, JobPending, LedgerEntry
from streams.metrics import Metrics
from tests.schemas.values import newest, plain_values

DAY_MS = 86_400_000
START_MS = 1_767_000_000_000  # 29 December 2025: a few days on there is another month, hence another partition


def entries(n: int, first_seq: int = 1) -> list[LedgerEntry]:
    """`n` entries of all types in turn, an hour apart."""
    made = []
    for seq in range(first_seq, first_seq + n):
        record = LEDGER_TYPES[seq % len(LEDGER_TYPES)]
        row = cast(LedgerEntry, record(**plain_values(newest(record).avsc)))
        made.append(row._replace(domain="default", seq=seq, at=START_MS + seq * 3_600_000))
    return made


def pendings(n: int, first_seq: int = 1) -> list[LedgerEntry]:
    """`n` entries of one type."""
    return [
        JobPending("default", seq, START_MS + seq, "", f"job-{seq}", 1, "no_room", "needs 8 cards", seq)
        for seq in range(first_seq, first_seq + n)
    ]


def write(log: Log, rows: Iterable[LedgerEntry], *more: Record) -> None:
    appender = log.appender("test")
    for row in rows:
        appender.send(Record("ledger", row.domain.encode(), encode(row)))
    for record in more:
        appender.send(record)
    appender.flush(10_000)
    appender.close(10_000)


def lander(
    log: Log, database: Callable[[], Database], metrics: Metrics | None = None, max_rows: int = 50_000
) -> Lander:
    return Lander(log, database, "test", metrics or Metrics(), linger_ms=0, max_rows=max_rows)


def land_all(worker: Lander) -> None:
    while worker.step(START_MS, 0):
        pass


def seqs(database: Database, tables: Sequence[str]) -> list[int]:
    """`seq` of every row of the ledger's tables, sorted."""
    union = " UNION ALL ".join(f"SELECT seq FROM {t}" for t in tables)
    return [int(str(r[0])) for r in database.query(f"SELECT seq FROM ({union}) ORDER BY seq").rows]
