"""Messages as they travel: what a log hands to a processor and what a processor hands back.

Reading is columnar: a `Block` is a run of messages of one partition. Used by every home of the log, the runner and the codecs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

Headers = tuple[tuple[str, bytes], ...]


class TopicPartition(NamedTuple):
    """A partition; `topic` never has the deployment's prefix."""

    topic: str
    partition: int


class Committed(NamedTuple):
    """A committed position of a group: the next offset to read, and a note kept with it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A message to be written. `partition` None: the key decides (`partition_of`)."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers = ()


class Block:
    """Messages of one partition in offset order.

    `values[i]` is the message body (None: tombstone). `next_offset` is the position to commit once the whole block
    is processed; offsets may have gaps (transaction markers, compaction), so it is not `first + len`.
    """

    __slots__ = ("headers", "keys", "next_offset", "offsets", "oldest_ms", "partition", "topic", "values")

    def __init__(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None],
        next_offset: int,
        *,
        offsets: Sequence[int] = (),
        keys: Sequence[bytes | None] = (),
        oldest_ms: int = 0,
        headers: Mapping[int, Headers] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.values = values
        self.next_offset = next_offset
        # Of each message.
        self.offsets = offsets
        self.keys = keys
        # When the log took the first message, or its writer made it, milliseconds.
        self.oldest_ms = oldest_ms
        # By index in the block, only of messages that have any.
        self.headers: Mapping[int, Headers] = headers or {}

    def __len__(self) -> int:
        return len(self.values)

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def part(self, start: int, end: int, next_offset: int) -> "Block":
        """Its messages number `start` up to `end`. `oldest_ms` stays that of the whole."""
        return Block(
            self.topic, self.partition, self.values[start:end], next_offset, offsets=self.offsets[start:end],
            keys=self.keys[start:end], oldest_ms=self.oldest_ms,
            headers={i - start: h for i, h in self.headers.items() if start <= i < end},
        )  # fmt: skip


@lru_cache(maxsize=1 << 16)
def partition_of(key: bytes, partitions: int) -> int:
    """Partition of a key: Kafka's murmur2 with the sign bit cleared, modulo `partitions`.

    All homes and all clients use it, so that co-partitioned topics stay so whoever wrote them.
    Source: org.apache.kafka.common.utils.Utils.murmur2 (Apache-2.0).
    """
    length = len(key)
    m = 0x5BD1E995
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    for i in range(0, length - 3, 4):
        k = int.from_bytes(key[i : i + 4], "little")
        k = (k * m) & 0xFFFFFFFF
        k ^= k >> 24
        k = (k * m) & 0xFFFFFFFF
        h = ((h * m) & 0xFFFFFFFF) ^ k
    tail = key[length & ~3 :]
    if len(tail) >= 3:
        h ^= tail[2] << 16
    if len(tail) >= 2:
        h ^= tail[1] << 8
    if tail:
        h = ((h ^ tail[0]) * m) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * m) & 0xFFFFFFFF
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions
