"""The one writer of a slot: a transactional producer, and what to do when a transaction does not go through.

`_kafka_member` uses it for members with an owner. A commit is: begin, all records, the positions, commit. Whatever
happens in between, a read-committed reader sees all of it or nothing.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.log._kafka_block import Raw
from connectors.log._kafka_wire import FENCED, TRANSACTIONAL, Until, Wire, error_of
from schemas.errors import Fatal, Fenced, LockstepError, TransactionAborted
from schemas.messages import Committed, Record, TopicPartition

# Long enough for a broker to be restarted meanwhile, shorter than the transaction's own time-out (`TRANSACTION_MS`).
COMMIT_S: Final = 20.0
# The coordinator may be loading its log, or be finishing the transaction that an earlier owner left open.
INIT_S: Final = 20.0
PAUSE_S: Final = 0.005


class Slot:
    """The producer of one owner. Making it fences every earlier one of the same name."""

    def __init__(self, wire: Wire, owner: str, limit: Callable[[str], int]) -> None:
        self._wire = wire
        self._owner = owner
        self._limit = limit
        self._refused: list[LockstepError] = []
        # `unknown`: a commit was asked for and no answer came, so it must be asked for again; `open`: must be aborted.
        self._stage: Literal["idle", "open", "unknown"] = "idle"
        self._asked: tuple[dict[TopicPartition, Committed], list[Record]] | None = None
        self._fenced: Fenced | None = None
        more = {**TRANSACTIONAL, "transactional.id": wire.full(owner)}
        self._producer: Producer = wire.producer(more, self._on_delivery)
        doing = f"taking the slot {owner}"
        try:
            self._patiently(self._producer.init_transactions, Until(INIT_S), doing)
        except KafkaException as e:
            raise wire.failure(e, doing) from None

    def _on_delivery(self, error: KafkaError | None, message: Raw) -> None:
        """Called for failures only."""
        if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._refused.append(Fatal(self._too_large(self._wire.short(message.topic() or ""), len(message))))

    def _check(self, records: Sequence[Record]) -> None:
        """Refuse before it begins what could never be written. The broker would measure it compressed: sometimes it
        would pass and sometimes not."""
        limits: dict[str, int] = {}
        for r in records:
            limit = limits.get(r.topic)
            if limit is None:
                limit = limits[r.topic] = self._limit(r.topic)
            size = len(r.value or b"") + len(r.key or b"")
            if size > limit:
                raise Fatal(self._too_large(r.topic, size))

    @staticmethod
    def _too_large(topic: str, size: int) -> str:
        return f"a message of {size} bytes is too large for topic {topic}; nothing of the transaction was written"

    def _patiently(self, step: Callable[[float], None], until: Until, doing: str) -> None:
        """One step of a transaction, again while Kafka says so and the deadline allows."""
        while True:
            try:
                return step(max(0.1, until.left()))
            except KafkaException as e:
                error = error_of(e)
                self._producer.poll(0)  # lets the client tell what its connections complain of
                self._wire.check()
                if error.code() in FENCED:
                    self._fenced = Fenced(f"slot {self._owner}: a newer owner took over")
                    raise self._fenced from None
                if error.fatal():
                    raise Fatal(f"slot {self._owner}: {doing}: {self._wire.hidden(error.str())}") from None
                if error.txn_requires_abort() or not error.retriable() or until.over():
                    raise
                time.sleep(PAUSE_S)

    def commit(
        self,
        positions: Mapping[TopicPartition, Committed],
        records: Sequence[Record],
        group_metadata: Callable[[], object],
    ) -> None:
        """All or nothing. Raises as `schemas.log.Member.commit` says."""
        if self._fenced is not None:
            raise self._fenced
        until = Until(COMMIT_S)
        if self._stage == "unknown":
            same = self._asked == (dict(positions), list(records))
            self._finish(until, positions, records)
            if same:
                return
            raise TransactionAborted(f"slot {self._owner}: an earlier commit is known to be done only now")
        if self._stage == "open":
            self._abort(until)
        if not positions and not records:
            return
        self._check(records)
        self._refused.clear()
        try:
            self._producer.begin_transaction()
            self._stage = "open"
            self._produce(records, until)
            if positions:
                offsets = self._wire.offsets(positions)
                self._patiently(
                    lambda left: self._producer.send_offsets_to_transaction(offsets, group_metadata(), left),
                    until, "sending positions",
                )  # fmt: skip
        except KafkaException as e:
            raise self._given_up(e, until) from None
        self._finish(until, positions, records)

    def _produce(self, records: Sequence[Record], until: Until) -> None:
        names: dict[str, str] = {}
        produce = self._producer.produce
        for topic, key, value, partition, headers in _fields(records):
            name = names.get(topic)
            if name is None:
                name = names[topic] = self._wire.full(topic)
            while True:
                try:
                    produce(name, value, key, -1 if partition is None else partition, headers=list(headers))
                    break
                except BufferError:
                    if until.over():
                        self._abort(Until(1.0))
                        raise self._wire.away(f"slot {self._owner}: sending records") from None
                    self._producer.poll(0.05)
                except KafkaException as e:
                    if error_of(e).code() == KafkaError.MSG_SIZE_TOO_LARGE:
                        self._refused.append(Fatal(self._too_large(topic, len(value or b""))))
                    raise

    def _finish(self, until: Until, positions: Mapping[TopicPartition, Committed], records: Sequence[Record]) -> None:
        try:
            self._patiently(self._producer.commit_transaction, until, "committing")
            self._stage, self._asked = "idle", None
        except KafkaException as e:
            if error_of(e).retriable() and not error_of(e).txn_requires_abort():
                # It may have happened or not; asking again is the only way to know, and it is safe.
                self._stage, self._asked = "unknown", (dict(positions), list(records))
                raise self._wire.away(f"slot {self._owner}: committing") from None
            raise self._given_up(e, until) from None

    def _given_up(self, raised: KafkaException, until: Until) -> LockstepError:
        """Abort; what to raise."""
        error = error_of(raised)
        why = f"slot {self._owner}: {self._wire.hidden(error.str())}"
        self._abort(Until(max(1.0, until.left())))
        if self._refused:
            return self._refused[0]
        if error.txn_requires_abort():
            return TransactionAborted(why)
        if error.retriable() or error.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}:
            return self._wire.away(f"slot {self._owner}: committing")
        return Fatal(why)

    def _abort(self, until: Until) -> None:
        try:
            self._patiently(self._producer.abort_transaction, until, "aborting")
            self._stage = "idle"
        except KafkaException as e:
            if error_of(e).code() == KafkaError._STATE:
                self._stage = "idle"  # it never began
                return
            # Still open, and it will be aborted before anything else is written.
            self._stage = "open"
            raise self._wire.away(f"slot {self._owner}: aborting") from None

    def close(self, until: Until) -> None:
        """Leave nothing open that could hold readers back. The next owner would clean up too."""
        if self._stage != "idle" and self._fenced is None:
            with contextlib.suppress(LockstepError, KafkaException):
                if self._stage == "unknown":
                    self._producer.commit_transaction(max(0.1, min(1.0, until.left())))
                else:
                    self._abort(Until(min(1.0, until.left())))
        self._producer.purge()
        self._producer.flush(0)


def _fields(
    records: Sequence[Record],
) -> "list[tuple[str, bytes | None, bytes | None, int | None, tuple[tuple[str, bytes], ...]]]":
    return [(r.topic, r.key, r.value, r.partition, r.headers) for r in records]
