"""Rows for tests, each with values that can be, and small helpers to write and read a log by topic."""

from collections.abc import Mapping, Sequence

from schemas.codec import decode_rows, encode
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import (
    JobSubmitted,
    LinkRegistered,
    LinkTelemetry,
    NodeChanged,
    NodeRegistered,
    NodeTelemetry,
    Receipt,
    Row,
)
from streams.runner import ProcessorWorker

NOW = 1_800_000_000_000  # 2027-01-15, milliseconds
DAY_MS = 86_400_000
YEAR_2087_MS = 3_692_217_600_000


def registered(node: str = "n1", at: int = NOW, cards: int = 8, admin_state: str = "active") -> NodeRegistered:
    return NodeRegistered(
        node, at, "default", "site-1", "north", "", "dc-1", "", "rack-1", cards, "A100-SXM4-80GB", 80 << 30, 128_000, 1 << 40,
        1 << 42, "", ("zone=a",), "", admin_state,
    )  # fmt: skip


def sample(
    node: str = "n1", counter: int = 1, healthy: int = 8, at: int = NOW, utilization: float = 50.0
) -> NodeTelemetry:
    return NodeTelemetry(node, at, counter, healthy, utilization, 1 << 30, 4_000, 1 << 34, 2_400.0)


def link(name: str = "a-b", at: int = NOW, capacity: float = 100.0) -> LinkRegistered:
    return LinkRegistered(name, at, "default", "a", "b", capacity, 10.0, 0.02, "active")


def link_sample(name: str, counter: int, used: float, latency: float = 10.0, at: int = NOW) -> LinkTelemetry:
    return LinkTelemetry(name, at, counter, used, latency, 0.0)


def job(name: str = "j1", at: int = NOW, members: int = 1, cards_milli: int = 1000) -> JobSubmitted:
    return JobSubmitted(
        name,
        at,
        "default",
        "ada",
        "default",
        0,
        members,
        cards_milli,
        (),
        0,
        1_000,
        1 << 30,
        "",
        0,
        0,
        ("true",),
        (),
        (),
    )


def changed(node: str = "n1", at: int = NOW, cards: int = 8, state: str = "up") -> NodeChanged:
    r = registered(node, at, cards)
    return NodeChanged(node, at, "default", *r[3:18], state=state, cards_healthy=cards, reason="registered", counter=-1)


def receipt(name: str, node: str, kind: str, attempt: int = 1, at: int = NOW) -> Receipt:
    return Receipt(name, at, "default", attempt, node, kind, 0, "")


TOPIC_OF = {
    "NodeRegistered": "resources", "NodeRemoved": "resources", "NodeTelemetry": "resource-telemetry", "LinkRegistered": "links",
    "LinkRemoved": "links", "LinkTelemetry": "link-telemetry", "JobSubmitted": "jobs", "JobCancelled": "jobs",
    "Receipt": "receipts", "JobProgress": "receipts", "NodeChanged": "changes", "LinkChanged": "changes",
}  # fmt: skip


def record(row: Row) -> Record:
    """The row on its topic, keyed as its writer would."""
    return Record(TOPIC_OF[type(row).__name__], str(row[0]).encode(), encode(row))


def write(log: Log, records: Sequence[Record | Row]) -> None:
    appender = log.appender("tests")
    for r in records:
        appender.send(r if isinstance(r, Record) else record(r))
    appender.flush(20_000)
    appender.close(5_000)


def ends(log: Log, topic: str) -> dict[int, int]:
    """End of each partition: a mark to read from later."""
    return {p: s.end for p, s in log.span(topic).items()}


def read(log: Log, topic: str, since: Mapping[int, int] | None = None) -> list[Row]:
    """All rows of a topic, by partition and offset; `since` a mark of `ends`."""
    found: list[Row] = []
    for partition, span in sorted(log.span(topic).items()):
        position = (since or {}).get(partition, span.begin)
        if position >= span.end:
            continue
        reader = log.reader({TopicPartition(topic, partition): position})
        while position < span.end:
            blocks = reader.poll(10_000, 5_000)
            assert blocks, f"{topic}/{partition} stops at {position} of {span.end}"
            for block in blocks:
                decoded = decode_rows(block)
                assert not decoded.poison
                found += [row for _, row in decoded.rows]
                position = block.next_offset
        reader.close()
    return found


def drive(worker: ProcessorWorker, now: int = NOW, wait_ms: int = 0) -> None:
    """Step until three steps in a row had nothing to do. `wait_ms` for a log whose messages take time to arrive."""
    idle = 0
    while idle < 3:
        ready = worker.health().ready
        handled = worker.step(now, wait_ms if ready else 300)
        idle = 0 if handled or not ready else idle + 1
