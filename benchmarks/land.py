"""How many ledger entries a second land in ClickHouse's engine (chDB), exactly once on.

Run by `python -m benchmarks land`. The ledger is one that a cluster of this mix writes (accepted, placed, three receipts, started,
ended), in the embedded log; landing plans, inserts and confirms as it ships. The peer inserts the same rows, decoded, column by
column through the same client, without any guarantee. Asserts no speed, but every row must be there once.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, cast

import analytics
from benchmarks._frame import QUICK_RUNS, RUNS
from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.landing import Lander
from connectors.clickhouse.migrate import migrate
from connectors.log.embedded import EmbeddedLog
from schemas.codec import decode_rows, encode, snake
from schemas.messages import Record, TopicPartition
from schemas.records import JobAccepted, JobEnded, JobPlaced, JobStarted, LedgerEntry, ReceiptRecorded
from schemas.topics import TOPICS
from streams.metrics import Metrics

JOBS: Final = 60_000
AT: Final = 1_767_000_000_000
COLUMNS: Final = {
    snake(t.__name__): [*t._fields, "_topic", "_partition", "_offset", "_schema_id"]
    for t in (JobAccepted, JobPlaced, ReceiptRecorded, JobStarted, JobEnded)
}


def _job(i: int) -> list[LedgerEntry]:
    """The entries of one job's life."""
    job, node, at, seq = f"team-{i % 40}-train-{i:07}", f"gpu-node-{i % 1213:04}", AT + i * 20, i * 7
    src = f"receipts/{i % 4}@{i}"
    user, queue = f"user-{i % 200}", f"queue-{i % 12}"
    return [
        JobAccepted(
            "default", seq + 1, at, f"jobs/{i % 4}@{i}", job, at - 5, user, queue, 0, 1, 1000, ("A100-SXM4-80GB",), 0, 8000, 64 << 30,
            "", 0, 3_600_000, ("python", "train.py"), ("project=demo",), ("priority", "members"),
        ),
        JobPlaced(
            "default", seq + 2, at, "", job, 1, user, queue, (node,), (1,), (1 << (i % 8),), 1000, 1000, "node", node, 12, 310,
            "tightest of 310 nodes that can hold it", at + 60_000,
        ),
        *(
            cast(LedgerEntry, ReceiptRecorded("default", seq + 3 + k, at + k, src, job, 1, node, kind, 0, ""))
            for k, kind in enumerate(("started", "finished", "released"))
        ),
        JobStarted("default", seq + 6, at + 900, src, job, 1, 900),
        JobEnded("default", seq + 7, at + 1_000, src, job, 1, user, queue, "finished", "all members finished", 0, 12, 100, 1000),
    ]  # fmt: skip


def _count(database: Database) -> tuple[int, int]:
    union = " UNION ALL ".join(f"SELECT seq FROM {t}" for t in COLUMNS)
    n, distinct = database.query(f"SELECT count(), uniqExact(seq) FROM ({union})").rows[0]
    return int(str(n)), int(str(distinct))


def _empty(database: Database) -> None:
    for table in COLUMNS:
        database.command(f"TRUNCATE TABLE {table}")


def _peer(log: EmbeddedLog, database: Database) -> None:
    """The same rows, decoded in bulk and inserted as columns by the same client."""
    reader = log.reader({TopicPartition("ledger", 0): 0})
    while blocks := reader.poll(50_000, 0):
        rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)
        for block in blocks:
            for i, row in decode_rows(block).rows:
                rows[snake(type(row).__name__)].append((*row, "ledger", 0, block.offsets[i], 1))
        for table, values in rows.items():
            database._client.insert(f"{database.database}.{table}", values, column_names=COLUMNS[table])
    reader.close()


def run(quick: bool) -> dict[str, float]:
    """`rows_per_s`, and `decoded_insert_per_s` of the peer."""
    jobs = JOBS // 10 if quick else JOBS
    rates, peers = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = EmbeddedLog(folder / "log", "normal")
        log.provision(TOPICS, dry_run=False)
        appender = log.appender("benchmark")
        for i in range(jobs):
            for entry in _job(i):
                appender.send(Record("ledger", b"default", encode(entry)))
        appender.close(120_000)
        database = connect(f"chdb:{folder / 'clickhouse'}")
        try:
            migrate(database, analytics.migrations())
            # `present`: a group without a position looks for rows that are there; here there are none.
            for turn in range(1 + (QUICK_RUNS if quick else RUNS)):
                lander = Lander(log, lambda: database, f"run-{turn}", Metrics(), linger_ms=0)
                lander.group = f"land-{turn}"
                begun = time.perf_counter()
                while lander.step(AT, 0):
                    pass
                rates.append(7 * jobs / (time.perf_counter() - begun))
                lander.close(1_000)
                if _count(database) != (7 * jobs, 7 * jobs):
                    raise RuntimeError(
                        f"{_count(database)} rows where {7 * jobs} must be: the figure would be worth nothing"
                    )
                _empty(database)
                if turn < 3:
                    begun = time.perf_counter()
                    _peer(log, database)
                    peers.append(7 * jobs / (time.perf_counter() - begun))
                    _empty(database)
        finally:
            database.close()
            log.close()
    return {"rows_per_s": statistics.median(rates[1:]), "decoded_insert_per_s": statistics.median(peers)}
