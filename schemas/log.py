"""The log's protocol: what a processor may ask of Kafka, of the embedded log and of the one in memory alike.

Processors and the runner see only this; the homes are in `connectors/log`. One contract suite
(`tests/log/`) holds all homes to every sentence below. Unless said otherwise calls block, are made from one thread per
object, and raise `Transient` (retry), `Fenced`/`Corrupted`/`StorageFull` (stop) from `schemas.errors`.
Topic names are always without the deployment's prefix; a home adds it at its edge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.topics import TopicSpec


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of provisioning: what will be (or was) done to one topic, and why; `refuse` steps are never applied."""

    action: Literal["create", "alter", "keep", "refuse"]
    topic: str
    detail: str


@dataclass(frozen=True, slots=True)
class Span:
    """Readable offsets of a partition: `begin` is the oldest kept, `end` the one after the newest committed."""

    begin: int
    end: int


class Listener(Protocol):
    """Told of a member's partitions, delta first, from inside `Member.poll` or `Member.close`."""

    def assigned(self, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        """New partitions with their committed positions (None: none yet). Returns where to start reading each;
        a partition left out starts at its committed offset, or at its begin. May block to restore state."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        """Partitions going away. Work processed so far may still be committed by calling `Member.commit`, unless
        `lost`. State of them must be dropped."""
        ...


class Member(Protocol):
    """A reader with committed positions, and with `owner` also the one writer of its slot."""

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        """Messages that are there, read-committed, at most `max_records`, blocks in offset order per partition.
        Waits up to `timeout_ms` for the first one only, never for a full batch. [] when nothing came."""
        ...

    def commit(self, positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        """Commit positions with their metadata, and records, all or nothing; durable when it returns.

        Raises `Fenced` when a newer member has the same `owner`, or (without `owner`) when this member no longer
        owns the partitions; `TransactionAborted` when nothing happened and the caller must rewind (`seek`).
        Without `owner`, `records` must be empty. Records without positions are fenced by `owner` alone, not by the group. Safe to retry after `Transient`."""
        ...

    def assignment(self) -> frozenset[TopicPartition]: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def lag(self) -> Mapping[TopicPartition, int]:
        """Messages between what was polled and the end, by partition; cheap, may be slightly old."""
        ...

    def close(self, timeout_ms: int) -> None:
        """Leave the group at once. Idempotent."""
        ...


class Reader(Protocol):
    """Reads partitions from given positions, read-committed, without a group."""

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]: ...

    def close(self) -> None: ...


class Appender(Protocol):
    """Writes records without a slot: sources, the SDK, the CLI. Buffers; `flush` makes durable."""

    def send(self, record: Record) -> None:
        """Queue one record; blocks when the buffer is full. An earlier failure is raised here or by `flush`."""
        ...

    def flush(self, timeout_ms: int) -> None:
        """Return when every record sent so far is durable, else raise `Transient` naming how many are not."""
        ...

    def close(self, timeout_ms: int) -> None: ...


class Log(Protocol):
    """One log: where it is, and the objects that read and write it. Thread-safe."""

    def provision(self, topics: Sequence[TopicSpec], *, dry_run: bool) -> list[PlanStep]:
        """Bring topics to their specification; never deletes, never shrinks. `dry_run`: only the plan."""
        ...

    def partitions(self, topic: str) -> int:
        """Number of partitions. Raises `Fatal` for an unknown topic."""
        ...

    def span(self, topic: str) -> dict[int, Span]: ...

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]: ...

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader: ...

    def member(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        owner: str | None = None,
        assign_all: bool = False,
    ) -> Member:
        """Join `group`. `owner`: stable name of the slot; joining fences any earlier member with the same name before
        its first `assigned` call. Topics with equally many partitions are dealt by partition number: one member has all of a
        number. `assign_all`: take every partition of `topics` without sharing them in the group
        (the single-writer engine)."""
        ...

    def appender(self, name: str) -> Appender: ...

    def close(self) -> None: ...
