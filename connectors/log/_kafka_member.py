"""`Member` on Kafka: a group's partitions delta first, positions committed alone or, for an owner, with records.

`KafkaLog.member` makes it; processors and landing drive it through `schemas.log.Member`. Rebalances happen inside `poll`
and `close` only. The coordinator refuses members it no longer knows; an owner's transactions are fenced by its slot.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from connectors.log._kafka_slot import Slot
from connectors.log._kafka_source import Source
from connectors.log._kafka_wire import ASK_S, NO_MEMBER, Electing, Until, Wire, error_of
from schemas.errors import Fatal, Fenced, LockstepError, TransactionAborted
from schemas.log import Listener
from schemas.messages import Block, Committed, Record, TopicPartition

# The coordinator refuses positions for as long as a rebalance takes: others join within a heartbeat or two.
COMMIT_S: Final = 10.0
AGAIN_S: Final = 0.1


def _weak(told: Callable[[Consumer, list[KafkaPartition]], None]) -> Callable[[Consumer, list[KafkaPartition]], None]:
    """The callback without holding its member: one that is dropped without `close` must be found by the collector."""
    method = weakref.WeakMethod(told)

    def tell(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        alive = method()
        if alive is not None:
            alive(consumer, partitions)

    return tell


class KafkaMember:
    """`Member` on Kafka."""

    def __init__(
        self,
        wire: Wire,
        group: str,
        partitions: Sequence[TopicPartition],
        listener: Listener,
        limit: Callable[[str], int],
        *,
        owner: str | None,
        assign_all: bool,
    ) -> None:
        self._wire = wire
        self._group = group
        self._listener = listener
        self._shared = not assign_all
        self._closed = False
        # The slot first: from here on an earlier owner writes nothing, so the positions read below are the last.
        self._slot = Slot(wire, owner, limit) if owner is not None else None
        self._consumer = wire.consumer(group)
        self._source = Source(wire, self._consumer, f"group {group}")
        # Ours by the group, but the listener has not taken them: not yet, or it failed.
        self._untaken: set[TopicPartition] = set(partitions) if assign_all else set()
        self._taking: frozenset[TopicPartition] = frozenset()
        self._member_id: str | None = None
        # Topics with equally many partitions (more than one) are dealt by partition number: one is subscribed to, and the others'
        # partitions of a number go with its. No assignor of this client keeps numbers together and moves partitions one by one.
        counts = Counter(tp.topic for tp in partitions)
        together = len(set(counts.values())) == 1 and max(counts.values()) > 1
        self._led = list(counts)[1:] if together else []
        if self._shared:
            self._consumer.subscribe(
                [wire.full(topic) for topic in counts if topic not in self._led],
                on_assign=_weak(self._on_assign),
                on_revoke=_weak(self._on_revoke),
                on_lost=_weak(self._on_lost),
            )

    # --- partitions -------------------------------------------------------------------------------------------------

    def _known(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """Committed positions; again, while the cluster makes out who keeps them."""
        until = Until(ASK_S)
        while True:
            try:
                return self._ask(partitions)
            except Electing:
                if until.over():
                    raise
                time.sleep(AGAIN_S)

    def _ask(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        doing = f"group {self._group}: reading positions"
        try:
            found = self._consumer.committed([self._source.named(tp) for tp in partitions], timeout=ASK_S)
        except KafkaException as e:
            raise self._wire.failure(e, doing) from None
        known: dict[TopicPartition, Committed | None] = dict.fromkeys(partitions)
        for p in found:
            if p.error is not None:
                raise self._wire.failure(p.error, doing)
            if p.offset >= 0:
                known[self._source.tp_of(p)] = Committed(p.offset, p.metadata or "")
        return known

    def _start(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the committed positions, tell the listener, and say where to start."""
        known = self._known(partitions)
        self._taking = frozenset(partitions)
        try:
            start = self._listener.assigned(known)
        finally:
            self._taking = frozenset()
        return {tp: start.get(tp, at.offset if at is not None else 0) for tp, at in known.items()}

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._member_id = consumer.memberid()
        if not partitions:
            return
        tps = self._all(partitions)
        if self._closed:  # given while leaving: nobody takes them, and the question for positions would not be answered
            consumer.incremental_assign([self._source.named(tp) for tp in tps])
            return
        try:
            given = self._source.take(self._start(sorted(tps)))
        except LockstepError as e:
            # Ours all the same; `poll` raises this, and the next one asks the listener again.
            self._source.failure = e
            self._untaken.update(tps)
            named = [self._source.named(tp) for tp in tps]
            consumer.incremental_assign(named)
            consumer.pause(named)
            return
        consumer.incremental_assign(given)

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._gone(consumer, partitions, lost=False)

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        self._gone(consumer, partitions, lost=True)

    def _all(self, partitions: Sequence[KafkaPartition]) -> list[TopicPartition]:
        """These, and those that go with them."""
        tps = [self._source.tp_of(p) for p in partitions]
        return tps + [TopicPartition(topic, tp.partition) for topic in self._led for tp in tps]

    def _gone(self, consumer: Consumer, partitions: list[KafkaPartition], *, lost: bool) -> None:
        tps = self._all(partitions)
        self._drop(tps, lost=lost)
        if tps:
            consumer.incremental_unassign([self._source.named(tp) for tp in tps])

    def _drop(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        self._untaken.difference_update(partitions)
        known = sorted(tp for tp in partitions if tp in self._source.positions)
        try:
            if known:
                self._listener.revoked(known, lost=lost)
        except LockstepError as e:
            self._source.failure = e
        finally:
            self._source.drop(known)

    def _take_untaken(self) -> None:
        """Partitions of a member that shares with nobody, at first; later, those whose listener failed."""
        tps = sorted(self._untaken)
        given = self._source.take(self._start(tps))
        try:
            if self._shared:
                # Given anew, because they stand paused at a position that may not be the listener's.
                self._consumer.incremental_unassign(given)
                self._consumer.incremental_assign(given)
                self._consumer.resume(given)
            else:
                self._consumer.assign(given)
        except KafkaException as e:
            self._source.drop(tps)
            raise self._wire.failure(e, f"group {self._group}: taking partitions") from None
        self._untaken.clear()

    # --- the protocol -----------------------------------------------------------------------------------------------

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        self._check_open()
        if self._untaken:
            self._take_untaken()
        return self._source.poll(max_records, timeout_ms, ends=False)

    def commit(self, positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        self._check_open()
        if self._slot is None:
            if records:
                raise Fatal("a member without an owner's name cannot write records with its positions")
            if positions:
                self._commit_positions(positions)
            return
        gone = self._not_ours(positions)
        if gone:
            raise TransactionAborted(f"group {self._group}: {gone}")
        self._slot.commit(positions, records, self._group_metadata)

    def _not_ours(self, positions: Mapping[TopicPartition, Committed]) -> str:
        """Why these positions must not be committed by this member; the coordinator would not notice all of it."""
        strange = sorted(positions.keys() - self._source.positions.keys() - self._taking)
        if strange:
            return f"{strange[0].topic}/{strange[0].partition} is not this member's"
        return "this member was thrown out of its group" if positions and self._thrown_out() else ""

    def _thrown_out(self) -> bool:
        """Whether the client knows already that the coordinator gave this member's place away."""
        return self._shared and self._consumer.memberid() != self._member_id

    def _group_metadata(self) -> object:
        """As it is now. Looked at before the check, so that what changes after it is refused by the coordinator."""
        metadata: object = self._consumer.consumer_group_metadata()
        if self._thrown_out():
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID, "thrown out", False, False, True))
        return metadata

    def _commit_positions(self, positions: Mapping[TopicPartition, Committed]) -> None:
        gone = self._not_ours(positions)
        if gone:
            raise Fenced(f"group {self._group}: {gone}")
        offsets = self._wire.offsets(positions)
        until = Until(COMMIT_S)
        while True:
            try:
                done = self._consumer.commit(offsets=offsets, asynchronous=False)
                errors = [p.error for p in done if p.error is not None]
            except KafkaException as e:
                errors = [error_of(e)]
            if not errors:
                return
            error = errors[0]
            if error.code() in NO_MEMBER:
                raise Fenced(f"group {self._group}: this member was thrown out of its group ({error.name()})")
            if until.over() or not (error.retriable() or error.code() == KafkaError.REBALANCE_IN_PROGRESS):
                raise self._wire.failure(error, f"group {self._group}: committing positions")
            # The client's own thread takes part in the rebalance meanwhile; polling would do nothing for it.
            self._consumer.memberid()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._source.positions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self._source.positions:
            raise Fatal(f"{partition.topic}/{partition.partition} is not assigned to this member")
        self._source.seek(partition, offset)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._source.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._source.resume(partitions)

    def lag(self) -> Mapping[TopicPartition, int]:
        return self._source.lag()

    def _check_open(self) -> None:
        if self._closed:
            raise Fatal(f"this member of group {self._group} is closed")

    def close(self, timeout_ms: int) -> None:
        if self._closed:
            return
        until = Until(timeout_ms / 1000)
        self._source.failure = None
        try:
            # Before the client begins to leave: from then on the coordinator takes nothing from this member.
            self._drop(sorted(self._source.positions), lost=self._thrown_out())
            self._closed = True
            self._source.close()
        finally:
            self._closed = True
            if self._slot is not None:
                self._slot.close(until)
        failure, self._source.failure = self._source.failure, None
        if failure is not None:
            raise failure
