"""Questions to the cluster and provisioning: topics as they are, as they should be, and the steps between.

`KafkaLog` uses it. Nothing is ever deleted or made smaller, and nothing is done to a topic beyond its specification.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition

# The package's own names, which its type hints forget to export.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from connectors.log._kafka_wire import ASK_S, MAX_MESSAGE_BYTES, Electing, Until, Wire, error_of
from schemas.errors import Fatal, Transient
from schemas.log import PlanStep, Span
from schemas.messages import Committed, TopicPartition
from schemas.topics import TopicSpec

T = TypeVar("T")
LOOK_S: Final = 0.05
AGAIN_S: Final = 0.2
SPREAD_S: Final = 30.0
# Markers take milliseconds. A writer that died in mid-transaction holds the end back for `TRANSACTION_MS`: not waited for.
SETTLE_S: Final = 2.0


def settings_of(spec: TopicSpec) -> dict[str, str]:
    """Topic settings that a specification asks for, in the broker's words."""
    return {
        "cleanup.policy": spec.cleanup,
        "retention.ms": str(spec.retention_ms),
        "max.message.bytes": str(spec.max_message_bytes),
    }


class Shape(NamedTuple):
    """What a writer must know of a topic."""

    partitions: int
    max_message_bytes: int


class Admin:
    """One admin client of a log, made when first needed. Thread-safe."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    def _made(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                self._client = self._wire.admin()
            return self._client

    def close(self) -> None:
        with self._lock:
            self._client = None

    def _answer(self, asked: "Future[T]", doing: str) -> T:
        """Wait, but not for one who was refused: a wrong password is known long before the time-out."""
        until = Until(ASK_S + SPREAD_S)
        while True:
            try:
                return asked.result(LOOK_S)
            except NotYet:
                self._wire.check()
                if until.over():
                    raise self._wire.away(doing) from None
            except KafkaException as e:
                self._wire.check()
                raise self._wire.failure(e, doing) from None

    def topic(self, topic: str) -> int | None:
        """Number of partitions; None: there is no such topic."""
        return self.topics([topic])[topic]

    def shape(self, topic: str) -> Shape:
        """Raises `Fatal` for an unknown topic."""
        partitions = self.topic(topic)
        if partitions is None:
            raise Fatal(f"there is no topic {topic}; run `lockstep provision`")
        try:
            limit = int(self._settings([topic])[topic]["max.message.bytes"])
        except (Fatal, KeyError):
            # Not everybody who may write may ask for settings; then the broker's refusal has to do.
            limit = MAX_MESSAGE_BYTES
        return Shape(partitions, min(limit, MAX_MESSAGE_BYTES))

    def topics(self, topics: Sequence[str]) -> dict[str, int | None]:
        """The same for several. Asking never makes a topic, whatever the broker is set to."""
        if not topics:
            return {}
        asked = self._made().describe_topics(
            TopicCollection([self._wire.full(t) for t in topics]), request_timeout=ASK_S
        )
        found: dict[str, int | None] = {}
        for name, future in asked.items():
            topic = self._wire.short(name)
            try:
                found[topic] = len(self._patient(future, f"asking for topic {topic}").partitions)
            except KafkaException as e:
                if error_of(e).code() not in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}:
                    raise self._wire.failure(e, f"asking for topic {topic}") from None
                found[topic] = None
        return found

    def _patient(self, asked: "Future[T]", doing: str) -> T:
        """`_answer` that lets Kafka's own errors through."""
        until = Until(ASK_S + 1)
        while not asked.done():
            try:
                asked.result(LOOK_S)
            except NotYet:
                self._wire.check()
                if until.over():
                    raise self._wire.away(doing) from None
            except KafkaException:
                break
        self._wire.check()
        return asked.result(0)

    def _again(self, ask: Callable[[], T]) -> T:
        """Again, while the cluster is still electing or loading what would answer. With a new client, because one that outlived
        a broker goes on asking with the leader epoch it once learned, which is refused for ever (librdkafka 2.16)."""
        until = Until(ASK_S)
        while True:
            try:
                return ask()
            except Transient as e:
                if not isinstance(e, Electing) or until.over():
                    raise
                time.sleep(AGAIN_S)
                self.close()

    def spans(self, topic: str, partitions: int) -> dict[int, Span]:
        """Oldest kept and last stable offsets."""
        name, doing = self._wire.full(topic), f"asking for the ends of topic {topic}"

        def ask(spec: OffsetSpec, level: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[int, int]:
            asked = self._made().list_offsets(
                {KafkaPartition(name, p): spec for p in range(partitions)}, isolation_level=level, request_timeout=ASK_S
            )
            return {p.partition: self._answer(f, doing).offset for p, f in asked.items()}

        oldest, newest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        # The begin first: it only grows, so it is never seen beyond the end.
        begins = self._again(lambda: ask(oldest))
        written = self._again(lambda: ask(newest, IsolationLevel.READ_UNCOMMITTED))
        ends = self._again(lambda: ask(newest))
        # A commit returns when it is certain, a moment before its markers are written and readers see it. Whoever asks
        # for the end must get what was committed before; what stays open for long is nobody's commit.
        until = Until(SETTLE_S)
        while any(ends[p] < written[p] for p in ends) and not until.over():
            ends = self._again(lambda: ask(newest))
        return {p: Span(begins[p], max(begins[p], ends[p])) for p in sorted(begins)}

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        found: dict[TopicPartition, Committed | None] = dict.fromkeys(partitions)
        if not partitions:
            return found
        wanted = [KafkaPartition(self._wire.full(tp.topic), tp.partition) for tp in partitions]
        name, doing = self._wire.full(group), f"asking for the positions of group {group}"

        def ask() -> list[KafkaPartition]:
            wish = [ConsumerGroupTopicPartitions(name, wanted)]
            (asked,) = (
                self._made().list_consumer_group_offsets(wish, require_stable=True, request_timeout=ASK_S).values()
            )
            answered = self._answer(asked, doing).topic_partitions or []
            for p in answered:
                if p.error is not None:
                    raise self._wire.failure(p.error, doing)
            return answered

        answered = self._again(ask)
        for p in answered:
            if p.offset >= 0:
                found[TopicPartition(self._wire.short(p.topic), p.partition)] = Committed(p.offset, p.metadata or "")
        return found

    # --- provisioning -----------------------------------------------------------------------------------------------

    def plan(self, specs: Sequence[TopicSpec]) -> list[PlanStep]:
        """What `apply` would do."""
        there = self.topics([s.name for s in specs])
        settings = self._settings([s.name for s in specs if there[s.name] is not None])
        return [self._step(s, there[s.name], settings.get(s.name, {})) for s in specs]

    def _step(self, spec: TopicSpec, partitions: int | None, settings: Mapping[str, str]) -> PlanStep:
        if partitions is None:
            return PlanStep("create", spec.name, f"{spec.partitions} partitions, cleanup {spec.cleanup}")
        changed = [f"{k} {settings.get(k)} → {v}" for k, v in settings_of(spec).items() if settings.get(k) != v]
        if partitions != spec.partitions:
            have = f"it has {partitions} partitions, the specification {spec.partitions}"
            if partitions > spec.partitions:
                return PlanStep(
                    "refuse", spec.name, f"{have}: partitions cannot be taken away; recreate it to change that"
                )
            if any(s.end > 0 for s in self.spans(spec.name, partitions).values()):
                return PlanStep("refuse", spec.name, f"{have}: keys would move; recreate it to change that")
            changed.insert(0, f"partitions {partitions} → {spec.partitions}")
        if changed:
            return PlanStep("alter", spec.name, ", ".join(changed))
        return PlanStep("keep", spec.name, f"{partitions} partitions, as specified")

    def _settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        if not topics:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, self._wire.full(t)) for t in topics]
        asked = self._made().describe_configs(resources, request_timeout=ASK_S)
        return {
            self._wire.short(r.name): {
                k: str(e.value)
                for k, e in self._answer(f, f"asking for the settings of {self._wire.short(r.name)}").items()
            }
            for r, f in asked.items()
        }

    def apply(self, specs: Sequence[TopicSpec], plan: Sequence[PlanStep]) -> None:
        """Do what the plan says."""
        todo = {s.topic: s.action for s in plan}
        new = [s for s in specs if todo[s.name] == "create"]
        if new:
            topics = [
                NewTopic(
                    self._wire.full(s.name), num_partitions=s.partitions, replication_factor=-1, config=settings_of(s)
                )
                for s in new
            ]
            asked = self._made().create_topics(topics, operation_timeout=SPREAD_S, request_timeout=ASK_S + SPREAD_S)
            for name, future in asked.items():
                self._answer_unless_there(future, f"making topic {self._wire.short(name)}")
            self._wait_for(new)
        for spec in specs:
            if todo[spec.name] == "alter":
                self._alter(spec)

    def _answer_unless_there(self, asked: "Future[None]", doing: str) -> None:
        try:
            self._patient(asked, doing)
        except KafkaException as e:
            # Somebody else provisions at the same time.
            if error_of(e).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._wire.failure(e, doing) from None

    def _wait_for(self, specs: Sequence[TopicSpec]) -> None:
        """Until every broker that is asked knows them: made is not yet known everywhere."""
        until = Until(SPREAD_S)
        while any(n is None for n in self.topics([s.name for s in specs]).values()):
            if until.over():
                raise self._wire.away("waiting for new topics to be known")

    def _alter(self, spec: TopicSpec) -> None:
        name, doing = self._wire.full(spec.name), f"altering topic {spec.name}"
        partitions = self.topic(spec.name)
        if partitions is None:
            raise Fatal(f"{doing}: it is gone")
        if partitions < spec.partitions:
            asked = self._made().create_partitions([NewPartitions(name, spec.partitions)], operation_timeout=SPREAD_S)
            self._answer(asked[name], doing)
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings_of(spec).items()]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        for future in self._made().incremental_alter_configs([resource], request_timeout=ASK_S).values():
            self._answer(future, doing)
        self._until_seen(spec)

    def _until_seen(self, spec: TopicSpec) -> None:
        """Until the broker itself tells the new settings: it learns of them a moment after the controller."""
        until = Until(SPREAD_S)
        wanted = settings_of(spec)
        while any(self._settings([spec.name])[spec.name].get(k) != v for k, v in wanted.items()):
            if until.over():
                raise self._wire.away(f"waiting for topic {spec.name} to be altered")
