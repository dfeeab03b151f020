"""The log on Kafka. Same contract as the embedded one and the one in memory, checked by the same suite on a real broker.

`infra` opens it from the settings; nothing else knows that it is Kafka. Topics, groups and slots carry the deployment's
prefix, so that several deployments share a cluster without meeting.
"""

import threading
from collections.abc import Mapping, Sequence

from connectors.log._kafka_admin import Admin, Shape
from connectors.log._kafka_appender import KafkaAppender
from connectors.log._kafka_member import KafkaMember
from connectors.log._kafka_source import KafkaReader
from connectors.log._kafka_wire import Wire
from schemas.errors import Fatal
from schemas.log import Appender, Listener, Member, PlanStep, Reader, Span
from schemas.messages import Committed, TopicPartition
from schemas.topics import TopicSpec


class KafkaLog:
    """`schemas.log.Log` on a cluster. `options` are librdkafka's (TLS, SASL, …) as people write them; a key that begins
    with `consumer.` or `producer.` goes to those clients only. Raises `Refused` for options that cannot be."""

    def __init__(self, bootstrap: str, prefix: str = "lockstep.", options: Mapping[str, str] | None = None) -> None:
        self._wire = Wire(bootstrap, prefix, options or {})
        self._admin = Admin(self._wire)
        self._lock = threading.Lock()
        self._known: dict[str, Shape] = {}

    def __repr__(self) -> str:
        return repr(self._wire)

    def provision(self, topics: Sequence[TopicSpec], *, dry_run: bool) -> list[PlanStep]:
        plan = self._admin.plan(topics)
        if not dry_run:
            self._admin.apply(topics, plan)
            with self._lock:
                self._known.clear()
        return plan

    def _shape(self, topic: str) -> Shape:
        found = self._known.get(topic)
        if found is None:
            found = self._admin.shape(topic)
            with self._lock:
                self._known[topic] = found
        return found

    def _limit(self, topic: str) -> int:
        return self._shape(topic).max_message_bytes

    def partitions(self, topic: str) -> int:
        return self._shape(topic).partitions

    def span(self, topic: str) -> dict[int, Span]:
        return self._admin.spans(topic, self.partitions(topic))

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        return self._admin.committed(group, partitions)

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        for tp in positions:
            if not 0 <= tp.partition < self.partitions(tp.topic):
                raise Fatal(f"topic {tp.topic} has no partition {tp.partition}")
        return KafkaReader(self._wire, positions)

    def member(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        owner: str | None = None,
        assign_all: bool = False,
    ) -> Member:
        partitions = [TopicPartition(t, p) for t in topics for p in range(self.partitions(t))]
        return KafkaMember(self._wire, group, partitions, listener, self._limit, owner=owner, assign_all=assign_all)

    def appender(self, name: str) -> Appender:
        return KafkaAppender(self._wire, name, self._shape)

    def close(self) -> None:
        self._admin.close()
