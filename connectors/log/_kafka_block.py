"""Kafka's messages taken apart into blocks, a few thousand at a time.

Used by `_kafka_source`. A message of the client is four Python objects around its value. Fifty thousand of them at once would push
each other out of the processor's cache and cost half as much again, so they live only until their fields have been taken.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
from confluent_kafka import Message

from schemas.collector import asleep
from schemas.messages import Block, Headers

# What is inside a message is bytes: no deserializer is at work here. Quoted, because it is generic for type checkers only.
Raw: TypeAlias = "Message[bytes, bytes]"
# Measured: 2,000 to 8,000 cost the same; 25,000 a third more.
CHUNK: Final = 4_000


class _Run:
    """Fields of messages of one partition, in order."""

    __slots__ = ("headers", "keys", "offsets", "oldest_ms", "values")

    def __init__(self, first: Raw) -> None:
        self.oldest_ms = first.timestamp()[1]
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.offsets: Sequence[int] = range(0)
        self.headers: dict[int, Headers] = {}

    def add(self, messages: list[Raw]) -> None:
        if any(map(Message.headers, messages)):
            n = len(self.values)
            self.headers |= {i: _headers(h) for i, m in enumerate(messages, n) if (h := m.headers())}
        self.values += map(Message.value, messages)
        self.keys += map(Message.key, messages)
        self._add_offsets(messages)

    def _add_offsets(self, messages: list[Raw]) -> None:
        first, last = messages[0].offset() or 0, messages[-1].offset() or 0
        # Offsets rise, so as many messages as numbers from the first to the last leave no gap.
        found = range(first, last + 1) if last - first == len(messages) - 1 else [m.offset() or 0 for m in messages]
        if not self.offsets:
            self.offsets = found
        elif isinstance(self.offsets, range) and isinstance(found, range) and self.offsets.stop == first:
            self.offsets = range(self.offsets.start, found.stop)
        else:
            self.offsets = [*self.offsets, *found]


class Gathered:
    """What one poll found."""

    def __init__(self) -> None:
        # Ends of partitions and errors, which come between the messages.
        self.marks: list[Raw] = []
        self._runs: dict[tuple[str, int], _Run] = {}

    def __bool__(self) -> bool:
        return bool(self._runs or self.marks)

    def gather(self, ask: Callable[[int], list[Raw]], most: int) -> None:
        """All that `ask` has at once, at most so many. Python's collector sleeps meanwhile: none of these is garbage before its
        fields are taken, and then none is left to be looked at."""
        with asleep():
            while most > 0 and (chunk := ask(min(most, CHUNK))):
                most -= len(chunk)
                self.add(chunk)

    def add(self, messages: list[Raw]) -> None:
        if any(map(Message.error, messages)):
            self.marks += [m for m in messages if m.error() is not None]
            messages = [m for m in messages if m.error() is None]
        for key, run in _runs(messages):
            found = self._runs.get(key)
            if found is None:
                found = self._runs[key] = _Run(run[0])
            found.add(run)

    def blocks(self, named: Callable[[str], str]) -> Iterator[Block]:
        for (topic, partition), run in self._runs.items():
            yield Block(
                named(topic), partition, run.values, run.offsets[-1] + 1, offsets=run.offsets, keys=run.keys,
                oldest_ms=run.oldest_ms, headers=run.headers,
            )  # fmt: skip


def _runs(messages: list[Raw]) -> Iterator[tuple[tuple[str, int], list[Raw]]]:
    """Neighbours of one full topic name and partition. They come in long runs of one partition, often of one topic."""
    if not messages:
        return
    topics = list(map(Message.topic, messages))
    if topics.count(topics[0]) != len(topics):
        for key, together in groupby(messages, _key):
            yield key, list(together)
        return
    partitions = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    first = 0
    for after in [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(messages)]:
        yield _key(messages[first]), messages[first:after]
        first = after


def _headers(found: Any) -> Headers:
    return tuple((k, v if isinstance(v, bytes) else (v or "").encode()) for k, v in found)


def _key(message: Raw) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0
