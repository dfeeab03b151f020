"""A block on Kafka's own messages: values at once, the rest when somebody asks for it.

Made by `_kafka_source`. The hot paths look at values only; asking every message for its key, offset, time and headers
would cost as much as reading it.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, overload

import numpy as np
from confluent_kafka import Message

from schemas.messages import Block, Headers

# What is inside a message is bytes: no deserializer is at work here. Quoted, because it is generic for type checkers only.
Raw: TypeAlias = "Message[bytes, bytes]"


class _Times(Sequence[int]):
    """Times of messages. Usually one is asked for: the oldest."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Raw]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [m.timestamp()[1] for m in self._messages[index]]
        return self._messages[index].timestamp()[1]


class KafkaBlock(Block):
    """Messages of one partition as Kafka's client gave them."""

    __slots__ = ("_messages",)

    def __init__(self, topic: str, partition: int, messages: Sequence[Raw], next_offset: int) -> None:
        super().__init__(topic, partition, list(map(Message.value, messages)), next_offset)
        self._messages = messages

    @property
    def offsets(self) -> Sequence[int]:
        if len(self._offsets) != len(self._messages):
            self._offsets = [m.offset() or 0 for m in self._messages]
        return self._offsets

    @property
    def keys(self) -> Sequence[bytes | None]:
        if len(self._keys) != len(self._messages):
            self._keys = [m.key() for m in self._messages]
        return self._keys

    @property
    def timestamps_ms(self) -> Sequence[int]:
        return _Times(self._messages)

    @property
    def headers(self) -> Mapping[int, Headers]:
        if not self._headers:
            found = ((i, m.headers()) for i, m in enumerate(self._messages))
            self._headers = {i: _headers(h) for i, h in found if h}
        return self._headers


def _headers(found: Any) -> Headers:
    return tuple((k, v if isinstance(v, bytes) else (v or "").encode()) for k, v in found)


def by_partition(messages: list[Raw]) -> dict[tuple[str, int], list[Raw]]:
    """Messages by full topic name and partition, each in order. They come in long runs of one partition, often of one topic."""
    if not messages:
        return {}
    found: dict[tuple[str, int], list[Raw]] = {}
    if len(set(map(Message.topic, messages))) > 1:
        for key, together in groupby(messages, _key):
            found.setdefault(key, []).extend(together)
        return found
    partitions = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    first = 0
    for after in [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(messages)]:
        run = messages[first:after]
        key, first = _key(run[0]), after
        if key in found:
            found[key] += run
        else:
            found[key] = run
    return found


def _key(message: Raw) -> tuple[str, int]:
    return message.topic() or "", message.partition() or 0
