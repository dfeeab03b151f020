"""How many messages of 120 bytes a second the embedded log and real Kafka take and give, and what one transaction costs.

Run by `python -m benchmarks log`. The embedded log is measured as it ships: every batch of 10,000 messages is synced to the
disk before the next. The peer is SQLite with a row per message and the same sync. Asserts no speed.
"""

import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks._frame import QUICK_RUNS, RUNS
from connectors.log.embedded import EmbeddedLog
from schemas.messages import Committed, Record, TopicPartition
from schemas.topics import TOPIC, TOPICS

MESSAGES: Final = 500_000
NODES: Final = 2_500
BATCH: Final = 10_000
TRANSACTIONS: Final = 500
TELEMETRY: Final = "resource-telemetry"
PARTITIONS: Final = TOPIC[TELEMETRY].partitions


class _Deaf:
    """A listener that has nothing to do."""

    def assigned(self, committed: object) -> dict[TopicPartition, int]:
        return {}

    def revoked(self, partitions: object, *, lost: bool) -> None:
        return None


def _messages(count: int) -> list[Record]:
    return [Record(TELEMETRY, b"node-%05d" % (i % NODES), (b"%010d" % i) * 12) for i in range(count)]


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _append(log: EmbeddedLog, records: list[Record]) -> None:
    appender = log.appender("benchmark")
    for record in records:
        appender.send(record)
    appender.close(60_000)


def _read(log: EmbeddedLog, count: int) -> None:
    reader = log.reader({TopicPartition(TELEMETRY, p): 0 for p in range(PARTITIONS)})
    got = 0
    while blocks := reader.poll(BATCH, 0):
        got += sum(map(len, blocks))
    if got != count:
        raise RuntimeError(f"read {got} messages of {count}")


def _commits(log: EmbeddedLog, count: int) -> list[float]:
    """Milliseconds of each of `count` transactions of one position and two records."""
    member = log.member("benchmark", [TELEMETRY], _Deaf(), owner="benchmark", assign_all=True)
    records = [Record("ledger", b"default", bytes(120)), Record("commands", b"node-1", bytes(120))]
    times = []
    for i in range(count):
        position = {TopicPartition(TELEMETRY, 0): Committed(i)}
        times.append(1_000 * _timed(lambda position=position: member.commit(position, records)))  # type: ignore[misc]
    member.close(1_000)
    return times


def _rows(folder: Path, records: list[Record]) -> None:
    """The peer: the same messages, a row each, the same batches, the same sync."""
    connection = sqlite3.connect(folder / "rows.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, key BLOB, value BLOB, at_ms INTEGER)")
    for start in range(0, len(records), BATCH):
        connection.execute("BEGIN")
        rows = [(r.key, r.value, 0) for r in records[start : start + BATCH]]
        connection.executemany("INSERT INTO messages (key, value, at_ms) VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    connection.close()


def embedded(quick: bool) -> dict[str, float]:
    """Append, read and commit on a fresh file each time; the peer in turn with it."""
    count = MESSAGES // 10 if quick else MESSAGES
    records = _messages(count)
    appends, reads, peers, commits = [], [], [], []
    for _ in range(QUICK_RUNS if quick else RUNS):
        folder = Path(tempfile.mkdtemp(prefix="lockstep-log-"))
        try:
            log = EmbeddedLog(folder)
            log.provision(TOPICS, dry_run=False)
            appends.append(count / _timed(lambda log=log: _append(log, records)))  # type: ignore[misc]
            reads.append(count / _timed(lambda log=log: _read(log, count)))  # type: ignore[misc]
            commits += _commits(log, TRANSACTIONS // 10 if quick else TRANSACTIONS)
            log.close()
            peers.append(count / _timed(lambda folder=folder: _rows(folder, records)))  # type: ignore[misc]
        finally:
            shutil.rmtree(folder)
    return {
        "embedded_append_per_s": statistics.median(appends),
        "embedded_read_per_s": statistics.median(reads),
        "embedded_transaction_p50_ms": statistics.median(commits),
        "sqlite_row_each_append_per_s": statistics.median(peers),
    }


def kafka(quick: bool) -> dict[str, float]:
    """The same on a real broker: `kafka_round_trip_per_s`, `kafka_transaction_p50_ms`."""
    from benchmarks import _log_kafka

    return _log_kafka.run(quick)


def run(quick: bool) -> dict[str, float]:
    """All figures."""
    return {**embedded(quick), **kafka(quick)}
