"""`Appender` on Kafka: an idempotent producer outside any transaction, for sources, the SDK and the command line.

Threads may share it. A message that failed is told once, by the next `send` or by `flush`; it is not sent again.
"""

import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from connectors.log._kafka_admin import Shape
from connectors.log._kafka_block import Raw
from connectors.log._kafka_wire import Until, Wire, error_of
from schemas.errors import Fatal, LockstepError, Refused, Transient
from schemas.messages import Record

# A sender that is given nothing to do for longer than this by a full buffer has a broker that is away.
FULL_S: Final = 60.0
# Delivered messages count as buffered until the client is asked for its reports.
REPORT_EVERY: Final = 1_000
APPENDING: Final = {"linger.ms": 5, "message.timeout.ms": 120_000}


class KafkaAppender:
    """A producer with a buffer."""

    def __init__(self, wire: Wire, name: str, shape: Callable[[str], Shape]) -> None:
        self._wire = wire
        self._name = name
        self._shape = shape
        self._failures: list[LockstepError] = []
        self._lock = threading.Lock()
        self._topics: dict[str, tuple[str, Shape]] = {}
        self._sent = 0
        self._closed = False
        self._producer = wire.producer(APPENDING, self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Raw) -> None:
        """Called for failures only."""
        if error is None:
            return
        topic = self._wire.short(message.topic() or "")
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            self._failures.append(Refused(f"a message of {len(message)} bytes is too large for topic {topic}"))
        else:
            self._failures.append(self._wire.failure(error, f"writing to topic {topic}"))

    def _raise_earlier(self) -> None:
        with self._lock:
            if not self._failures:
                return
            failures, self._failures = self._failures, []
        first = failures[0]
        if isinstance(first, Transient):
            raise Transient(f"{len(failures)} messages were not written: {first}", first.retry_after_ms)
        raise first

    def _topic(self, record: Record) -> str:
        known = self._topics.get(record.topic)
        if known is None:
            # A broker may be set to make topics that it does not know; ours are made by provisioning only.
            known = self._topics[record.topic] = (self._wire.full(record.topic), self._shape(record.topic))
        name, shape = known
        if record.partition is not None and not 0 <= record.partition < shape.partitions:
            raise Fatal(f"topic {record.topic} has no partition {record.partition} (it has {shape.partitions})")
        size = len(record.value or b"") + len(record.key or b"")
        if size > shape.max_message_bytes:
            # The broker would measure it compressed: sometimes it would pass and sometimes not.
            raise Refused(
                f"a message of {size} bytes is too large for topic {record.topic} (at most {shape.max_message_bytes})"
            )
        return name

    def send(self, record: Record) -> None:
        if self._closed:
            raise Fatal(f"the appender {self._name} is closed")
        if self._failures:
            self._raise_earlier()
        name = self._topic(record)
        partition = -1 if record.partition is None else record.partition
        until: Until | None = None
        while True:
            try:
                if record.headers:
                    self._producer.produce(name, record.value, record.key, partition, headers=list(record.headers))
                else:
                    self._producer.produce(name, record.value, record.key, partition)
                break
            except BufferError:
                until = until or Until(FULL_S)
                if until.over():
                    raise self._wire.away(
                        f"{len(self._producer)} messages wait and there is no room for more"
                    ) from None
                self._producer.poll(0.05)
            except KafkaException as e:
                if error_of(e).code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    size = len(record.value or b"") + len(record.key or b"")
                    raise Refused(f"a message of {size} bytes is too large for topic {record.topic}") from None
                raise self._wire.failure(e, f"writing to topic {record.topic}") from None
        self._sent += 1
        if self._sent % REPORT_EVERY == 0:
            self._producer.poll(0)

    def flush(self, timeout_ms: int) -> None:
        left = self._producer.flush(timeout_ms / 1000)
        self._raise_earlier()
        if left:
            self._wire.check()
            raise self._wire.away(f"{left} messages are not durable yet")

    def close(self, timeout_ms: int) -> None:
        if not self._closed:
            self.flush(timeout_ms)
            self._closed = True
