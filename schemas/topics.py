"""The topic catalogue: every topic of Lockstep, declared once.

Provisioning, the runner, `lockstep topics` and `docs/events.md` read this table. Names have no prefix here; a
deployment's prefix (`lockstep.` by default) is added by the log's home. `resources` and `resource-telemetry`, `links`
and `link-telemetry` are co-partitioned with `changes`, which is their changelog: same key, same number of partitions.
"""

from dataclasses import dataclass
from typing import Final, Literal

from schemas.records import (
    LEDGER_TYPES,
    Command,
    DeadLetter,
    JobCancelled,
    JobProgress,
    JobSubmitted,
    LinkChanged,
    LinkRegistered,
    LinkRemoved,
    LinkTelemetry,
    NodeChanged,
    NodeRegistered,
    NodeRemoved,
    NodeTelemetry,
    Receipt,
    Row,
)

DAY_MS: Final = 24 * 3600 * 1000
MEBIBYTE: Final = 1 << 20
# A dead letter carries its whole message: twice the largest input, so that no input is too big to be refused.
MAX_INPUT_BYTES: Final = 4 * MEBIBYTE
MAX_DEAD_LETTER_BYTES: Final = 2 * MAX_INPUT_BYTES
# What is written because of an input carries its texts and some more: it must never be too large to be written.
MAX_OUTPUT_BYTES: Final = 2 * MAX_INPUT_BYTES


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic. `retention_ms` -1: for ever. `partitions` is the default of a new deployment."""

    name: str
    records: tuple[type[Row], ...]
    key: str
    partitions: int
    cleanup: Literal["delete", "compact"]
    retention_ms: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    purpose: str
    max_message_bytes: int = MAX_INPUT_BYTES


TOPICS: Final[tuple[TopicSpec, ...]] = (
    TopicSpec("resources", (NodeRegistered, NodeRemoved), "node", 4, "compact", -1, ("infrastructure",), ("observe",), "Nodes that exist"),
    TopicSpec("resource-telemetry", (NodeTelemetry,), "node", 4, "delete", DAY_MS, ("infrastructure",), ("observe",), "Health of nodes, and their heartbeat"),
    TopicSpec("links", (LinkRegistered, LinkRemoved), "link", 4, "compact", -1, ("infrastructure",), ("observe",), "Links that exist"),
    TopicSpec("link-telemetry", (LinkTelemetry,), "link", 4, "delete", DAY_MS, ("infrastructure",), ("observe",), "Traffic and latency of links"),
    TopicSpec("jobs", (JobSubmitted, JobCancelled), "job", 4, "delete", 30 * DAY_MS, ("users",), ("decide",), "What users ask for"),
    TopicSpec("receipts", (Receipt, JobProgress), "job", 4, "delete", 30 * DAY_MS, ("infrastructure",), ("decide",), "What nodes say about members they run"),
    TopicSpec("changes", (NodeChanged, LinkChanged), "`node/<name>` or `link/<name>`, in the partition that the bare name has in `resources` or `links`", 4, "compact", -1, ("observe",), ("decide", "observe"), "Material changes of nodes and links; observe's changelog", MAX_OUTPUT_BYTES),
    TopicSpec("ledger", LEDGER_TYPES, "domain", 1, "delete", -1, ("decide",), ("land", "decide"), "The one truth: every fact of a scheduling domain, in order", MAX_OUTPUT_BYTES),
    TopicSpec("commands", (Command,), "node, in the partition of its domain's ledger", 1, "delete", 7 * DAY_MS, ("decide",), ("infrastructure",), "What nodes are to do", MAX_OUTPUT_BYTES),
    TopicSpec("dead-letter", (DeadLetter,), "source topic", 1, "delete", 90 * DAY_MS, ("observe", "decide", "land"), ("land", "operators"), "Messages that could not be used, whole", MAX_DEAD_LETTER_BYTES),
)  # fmt: skip

TOPIC: Final[dict[str, TopicSpec]] = {t.name: t for t in TOPICS}
