"""Reading from Kafka, and the readers without a group: what is there at once, in blocks, with a position map of its own.

`KafkaReader` and `_kafka_member` use `Source`. The client's own position says what was fetched; what counts here is what
was handed on. Never commits.
"""

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from connectors.log._kafka_block import Gathered, Raw
from connectors.log._kafka_wire import Until, Wire
from schemas.errors import LockstepError
from schemas.messages import Block, TopicPartition

T = TypeVar("T")
# Silence and an outage look alike; one question tells them apart.
PROBE_S: Final = 1.0
# Told by the client for information; a rebalance, a new fetch or the listener's `revoked` follows.
_PASSING: Final = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError._AUTO_OFFSET_RESET})


def _close(consumer: Consumer) -> None:
    with contextlib.suppress(KafkaException, RuntimeError):
        consumer.close()


class Source:
    """A consumer, and where its partitions are."""

    def __init__(self, wire: Wire, consumer: Consumer, doing: str) -> None:
        self.consumer = consumer
        # The next offset of each partition that is ours; messages of others are not handed on.
        self.positions: dict[TopicPartition, int] = {}
        self._wire = wire
        self._doing = doing
        self._paused: set[TopicPartition] = set()
        # An error that came with good messages, or in a callback: raised when these have been handed on.
        self.failure: LockstepError | None = None
        # Also when nobody closes it: a client that is destroyed in a rebalance without having been closed never ends.
        self.close = weakref.finalize(self, _close, consumer)

    def named(self, tp: TopicPartition, offset: int | None = None) -> KafkaPartition:
        name = self._wire.full(tp.topic)
        return KafkaPartition(name, tp.partition) if offset is None else KafkaPartition(name, tp.partition, offset)

    def tp_of(self, partition: KafkaPartition) -> TopicPartition:
        return TopicPartition(self._wire.short(partition.topic), partition.partition)

    def take(self, start: Mapping[TopicPartition, int]) -> list[KafkaPartition]:
        """Count these partitions as ours from these offsets; returns what the client is to be given."""
        self.positions.update(start)
        # An offset that retention has taken meanwhile goes to what is left, by `auto.offset.reset`.
        return [self.named(tp, offset if offset > 0 else OFFSET_BEGINNING) for tp, offset in start.items()]

    def drop(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self.positions.pop(tp, None)
            self._paused.discard(tp)

    def poll(self, max_records: int, timeout_ms: int, *, ends: bool) -> list[Block]:
        """Blocks; with `ends` also empty ones, which say that a position moved over what no message tells of."""
        self._raise()
        until = Until(timeout_ms / 1000)
        while True:
            # What waits already, else one message with the time-out and then what came with it: asking for many with
            # a time-out would wait for all of them.
            found = Gathered()
            found.gather(self._waiting, max_records)
            if not found and not until.over() and self.failure is None:
                first = self._call(lambda: self.consumer.poll(until.left()))
                if first is not None:
                    found.add([first])
                    if max_records > 1 and not found.marks:
                        found.gather(self._waiting, max_records - 1)
            blocks = self._blocks(found, ends=ends)
            if blocks:
                return blocks
            self._raise()
            if until.over() and not found:
                self._wire.check()
                if self._wire.doubtful:
                    self._call(lambda: self.consumer.list_topics(timeout=PROBE_S))
                    self._wire.doubtful = False
                return []

    def _waiting(self, most: int) -> list[Raw]:
        """What was fetched already."""
        return self._call(lambda: self.consumer.consume(most, 0))

    def _call(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as e:
            raise self._wire.failure(e, self._doing) from None

    def _raise(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _blocks(self, found: Gathered, *, ends: bool) -> list[Block]:
        blocks: list[Block] = []
        for block in found.blocks(self._wire.short):
            if block.tp not in self.positions:
                continue
            self.positions[block.tp] = block.next_offset
            blocks.append(block)
        for mark in found.marks:
            self._mark(mark, blocks if ends else None)
        return blocks

    def _mark(self, mark: Raw, blocks: list[Block] | None) -> None:
        error = mark.error()
        assert error is not None
        tp = TopicPartition(self._wire.short(mark.topic() or ""), mark.partition() or 0)
        if error.code() == KafkaError._PARTITION_EOF:
            end = mark.offset() or 0
            if end > self.positions.get(tp, end):
                self.positions[tp] = end
                if blocks is not None:
                    blocks.append(Block(tp.topic, tp.partition, (), end))
        elif error.code() not in _PASSING:
            self.failure = self._wire.failure(error, self._doing, tp if mark.topic() else None)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from `offset`; what was fetched and not handed on is forgotten."""
        try:
            self.consumer.seek(self.named(tp, offset))
        except KafkaException:
            # The partition does not fetch yet, and then there is nothing to forget: give it anew.
            self._call(lambda: self.consumer.incremental_unassign([self.named(tp)]))
            self._call(lambda: self.consumer.incremental_assign([self.named(tp, offset)]))
            if tp in self._paused:
                self._call(lambda: self.consumer.pause([self.named(tp)]))
        self.positions[tp] = offset

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        mine = [tp for tp in partitions if tp in self.positions]
        self._paused.update(mine)
        self._call(lambda: self.consumer.pause([self.named(tp) for tp in mine]))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        mine = [tp for tp in partitions if tp in self._paused]
        self._paused.difference_update(mine)
        self._call(lambda: self.consumer.resume([self.named(tp) for tp in mine]))

    def lag(self) -> dict[TopicPartition, int]:
        """From what the last fetch told of the ends; before the first one, and while paused, a question to the broker."""
        found = {}
        for tp, at in self.positions.items():
            low, high = self._ends(tp)
            found[tp] = max(0, high - max(at, low))
        return found

    def _ends(self, tp: TopicPartition) -> tuple[int, int]:
        low, high = self._call(lambda: self.consumer.get_watermark_offsets(self.named(tp), cached=True))
        if high < 0 or tp in self._paused:
            low, high = self._call(lambda: self.consumer.get_watermark_offsets(self.named(tp), timeout=5))
        return max(0, low), high


class KafkaReader:
    """`schemas.log.Reader` on Kafka. An empty block moves the position over the markers of transactions."""

    def __init__(self, wire: Wire, positions: Mapping[TopicPartition, int]) -> None:
        self._source = Source(wire, wire.consumer("reader"), "reading")
        self._source.consumer.assign(self._source.take(positions))

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        return self._source.poll(max_records, timeout_ms, ends=True)

    def close(self) -> None:
        self._source.close()
