"""A log that fails on purpose: crashes and aborts around a commit, on top of any home."""

import random
from collections.abc import Callable, Mapping, Sequence

from schemas.errors import TransactionAborted, Transient
from schemas.log import Appender, Listener, Log, Member, PlanStep, Reader, Span
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.topics import TopicSpec


class Died(Exception):
    """The process died here: nothing it held is used again."""


class FaultyMember:
    """A member whose commits go wrong as `fault` says."""

    def __init__(self, inner: Member, fault: Callable[[], str]) -> None:
        self._inner = inner
        self._fault = fault

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        return self._inner.poll(max_records, timeout_ms)

    def commit(self, positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        fault = self._fault()
        if fault == "dies before":
            raise Died
        if fault == "aborted":
            raise TransactionAborted("aborted on purpose", retry_after_ms=0)
        if fault == "away":
            raise Transient("away on purpose", retry_after_ms=0)
        self._inner.commit(positions, records)
        if fault == "dies after":
            raise Died

    def assignment(self) -> frozenset[TopicPartition]:
        return self._inner.assignment()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._inner.seek(partition, offset)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._inner.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._inner.resume(partitions)

    def lag(self) -> Mapping[TopicPartition, int]:
        return self._inner.lag()

    def close(self, timeout_ms: int) -> None:
        self._inner.close(timeout_ms)


class FaultyLog:
    """A log whose members fail."""

    def __init__(self, inner: Log, fault: Callable[[], str]) -> None:
        self._inner = inner
        self._fault = fault

    def provision(self, topics: Sequence[TopicSpec], *, dry_run: bool) -> list[PlanStep]:
        return self._inner.provision(topics, dry_run=dry_run)

    def partitions(self, topic: str) -> int:
        return self._inner.partitions(topic)

    def span(self, topic: str) -> dict[int, Span]:
        return self._inner.span(topic)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        return self._inner.committed(group, partitions)

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return self._inner.reader(positions)

    def member(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        owner: str | None = None,
        assign_all: bool = False,
    ) -> Member:
        return FaultyMember(
            self._inner.member(group, topics, listener, owner=owner, assign_all=assign_all), self._fault
        )

    def appender(self, name: str) -> Appender:
        return self._inner.appender(name)

    def close(self) -> None:
        self._inner.close()


def scripted(*faults: str) -> Callable[[], str]:
    """These faults in turn, then none."""
    left = list(faults)
    return lambda: left.pop(0) if left else ""


def seeded(seed: int, share: float) -> Callable[[], str]:
    """A random fault in this share of commits, the same for the same seed."""
    rng = random.Random(seed)
    kinds = ("dies before", "dies after", "aborted", "away")
    return lambda: rng.choice(kinds) if rng.random() < share else ""
