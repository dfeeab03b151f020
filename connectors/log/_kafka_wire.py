"""How Kafka's clients are made and how their errors are told: settings, names with the prefix, secrets kept out.

Used by all of `connectors/log/kafka`. Every client of one log shares one `Wire`, so that a time-out in one place can
name the refused connection that another place saw. Never retries and never decides what an error means for a commit.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from schemas.errors import Corrupted, Fatal, Fenced, LockstepError, Refused, StorageFull, Transient, Where
from schemas.messages import Committed, TopicPartition

_log = logging.getLogger("lockstep.kafka")
T = TypeVar("T")

# A dead letter is 8 MiB at most (`schemas.topics`); with its headers and the batch around it, it must still pass.
MAX_MESSAGE_BYTES: Final = 10 << 20
# A slot's open transaction holds read-committed readers back; after a crash without a successor, for this long at most.
TRANSACTION_MS: Final = 30_000
# Members that die silently are noticed after this; a rebalance is heard of within one heartbeat.
SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 500
# How long one question to the broker may take before the answer is "it does not answer".
ASK_S: Final = 10.0

COMMON: Final[Mapping[str, str | int | bool]] = {
    # After an outage, back within a second instead of ten.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    "log.connection.close": False,
}
CONSUMER: Final[Mapping[str, str | int | bool]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # The end of a partition may lie behind transaction markers, which no message tells of.
    "enable.partition.eof": True,
    # An idle partition's end is told after this long.
    "fetch.wait.max.ms": 100,
    "check.crcs": True,
    # Reading ahead by more than two batches of the largest processor.
    "queued.min.messages": 250_000,
    # With so many read ahead the client pauses a partition, by default for a second: longer than its processor needs to use them up.
    "fetch.queue.backoff.ms": 10,
    "max.partition.fetch.bytes": MAX_MESSAGE_BYTES,
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": HEARTBEAT_MS,
    "partition.assignment.strategy": "cooperative-sticky",
    # With the newer protocol the coordinator takes a commit from any member, owner of the partition or not.
    "group.protocol": "classic",
}
PRODUCER: Final[Mapping[str, str | int | bool]] = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "batch.size": 1 << 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    # Java's: other clients of the same topics agree on where a key belongs (`schemas.messages.partition_of`).
    "partitioner": "murmur2_random",
    "delivery.report.only.error": True,
}
TRANSACTIONAL: Final[Mapping[str, str | int | bool]] = {
    "linger.ms": 1,
    "transaction.timeout.ms": TRANSACTION_MS,
    # Measured with librdkafka 2.16: when the only broker dies, a client that bootstraps anew forgets it, and a transaction that was
    # sending its positions to that broker as coordinator waits for ever, time-out or not. Without it all goes on in seconds.
    "metadata.recovery.strategy": "none",
    # The markers of one transaction are still being written when the next begins, and the broker says "again": with the
    # default of 100 ms every transaction costs 107 ms, with this 4 ms.
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
}
# What this code relies on: an option that contradicts it would break a promise silently.
FIXED: Final = frozenset(
    {
        "bootstrap.servers", "group.id", "group.protocol", "partition.assignment.strategy", "enable.auto.commit",
        "enable.auto.offset.store", "isolation.level", "auto.offset.reset", "enable.partition.eof", "transactional.id",
        "enable.idempotence", "acks", "partitioner", "delivery.report.only.error",
    }
)  # fmt: skip
FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
# The coordinator no longer knows this member, or not in this generation.
NO_MEMBER: Final = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID, KafkaError._ASSIGNMENT_LOST}
)  # fmt: skip
_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)  # fmt: skip
_UNKNOWN: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_ELECTING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError.UNSTABLE_OFFSET_COMMIT,
        # A broker that just came back knows less of who leads than its clients do.
        KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH,
    }
)  # fmt: skip
_DOWN: Final = frozenset(
    {
        KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._DESTROY_BROKER,
        KafkaError._UNKNOWN_BROKER,
    }
)  # fmt: skip


class Electing(Transient):
    """Nobody is responsible just now: a leader is being elected, a coordinator loads, a transaction is being finished."""


def secret(key: str) -> bool:
    """Whether an option's value must not be seen."""
    return any(word in key for word in ("password", "secret", "token", ".pem", "oauthbearer.config"))


class _Quiet:
    """librdkafka prints every refused connection; what matters of it is in the errors that are raised."""

    def log(self, _level: int, message: str, *arguments: object) -> None:
        _log.debug(message, *arguments)


class Wire:
    """The way to one cluster under one prefix. `options` are librdkafka's; a key that begins with `consumer.` or
    `producer.` is for those clients only."""

    def __init__(self, bootstrap: str, prefix: str, options: Mapping[str, str]) -> None:
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._options = dict(options)
        self._secrets = [v for k, v in self._options.items() if secret(k) and v]
        for key in self._options:
            if key.removeprefix("consumer.").removeprefix("producer.") in FIXED:
                raise Refused(f"the Kafka option {key} is Lockstep's own and cannot be set")
        # What the connections last complained of, and whether the cluster refused to know us.
        self._trouble = ""
        self._denied = ""
        # Some client lost all its connections: perhaps an outage, perhaps only a moment.
        self.doubtful = False

    def __repr__(self) -> str:
        shown = {k: "***" if secret(k) else v for k, v in self._options.items()}
        return f"KafkaLog({self.bootstrap!r}, prefix={self.prefix!r}, options={shown})"

    def full(self, topic: str) -> str:
        return self.prefix + topic

    def short(self, topic: str) -> str:
        return topic.removeprefix(self.prefix)

    def offsets(self, positions: Mapping[TopicPartition, Committed]) -> list[KafkaPartition]:
        """Positions with their notes, as Kafka's client wants them."""
        return [
            KafkaPartition(self.full(tp.topic), tp.partition, at.offset, at.metadata) for tp, at in positions.items()
        ]

    # --- clients ----------------------------------------------------------------------------------------------------

    def _config(self, kind: str, *layers: Mapping[str, str | int | bool]) -> dict[str, object]:
        config: dict[str, object] = {}
        for layer in layers:
            config.update(layer)
        for key, value in self._options.items():
            side, _, rest = key.partition(".")
            if side not in {"consumer", "producer"}:
                config[key] = value
            elif side == kind:
                config[rest] = value
        config |= {"bootstrap.servers": self.bootstrap, "error_cb": self._on_error, "logger": _Quiet()}
        return config

    def _made(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except KafkaException as e:
            raise Refused(f"Kafka's options: {self.hidden(_error(e).str())}") from None

    def consumer(self, group: str) -> Consumer:
        config = self._config("consumer", COMMON, CONSUMER, {"group.id": self.prefix + group})
        return self._made(lambda: Consumer(config))

    def producer(self, more: Mapping[str, str | int | bool], on_delivery: Callable[..., None]) -> Producer:
        config = self._config("producer", COMMON, PRODUCER, more) | {"on_delivery": on_delivery}
        return self._made(lambda: Producer(config))

    def admin(self) -> AdminClient:
        config = self._config("admin", COMMON)
        return self._made(lambda: AdminClient(config))  # type: ignore[arg-type]

    # --- errors -----------------------------------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        text = self.hidden(error.str())
        _log.debug("%s", text)
        if error.code() == KafkaError._AUTHENTICATION:
            user = self._options.get("sasl.username")
            self._denied = f"Kafka at {self.bootstrap} refuses " + (
                f"the credentials of {user}" if user else "to let us in"
            )
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.doubtful = True
        elif error.code() in _DOWN:
            self._trouble = text

    def hidden(self, text: str) -> str:
        """The text without any secret of the options."""
        for value in self._secrets:
            text = text.replace(value, "***")
        return text

    def check(self) -> None:
        """Raise when the cluster refused us: waiting would not help."""
        if self._denied:
            raise Fatal(self._denied)

    def away(self, doing: str) -> LockstepError:
        """Nobody answered in time."""
        if self._denied:
            return Fatal(self._denied)
        because = f" ({self._trouble})" if self._trouble else ""
        return Transient(f"{doing}: Kafka at {self.bootstrap} does not answer{because}", 500)

    def failure(
        self, raised: KafkaException | KafkaError, doing: str, tp: TopicPartition | None = None
    ) -> LockstepError:
        """The error of the tree that says what to do about Kafka's."""
        error = raised if isinstance(raised, KafkaError) else _error(raised)
        code, where = error.code(), Where(*tp) if tp else None
        text = f"{where}: {doing}" if where else doing
        if code in {KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, *_DOWN}:
            return self.away(text)
        told = f"{text}: {self.hidden(error.str())}"
        if code in FENCED:
            return Fenced(f"{text}: a newer owner took over ({error.name()})")
        if code in _DENIED:
            return Fatal(self._denied or told)
        if code in _UNKNOWN:
            # Topics were there when this client was made; a broker that has just started does not know of any for a moment.
            return Electing(f"{text}: there is no such topic; if that stays so, run `lockstep provision`")
        if code in {KafkaError._BAD_MSG, KafkaError.INVALID_MSG}:
            return Corrupted(told)
        if code == KafkaError.KAFKA_STORAGE_ERROR:
            return StorageFull(told)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return Fatal(told)
        if error.fatal():
            return Fatal(told)
        return (Electing if code in _ELECTING else Transient)(told)


def _error(raised: KafkaException) -> KafkaError:
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def error_of(raised: KafkaException) -> KafkaError:
    """The error inside the exception."""
    return _error(raised)


class Until:
    """One deadline for a call that takes several steps."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def over(self) -> bool:
        return time.monotonic() >= self._at
