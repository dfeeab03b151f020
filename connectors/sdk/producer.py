"""Sends events in batches to the log that settings name. Used by infrastructure teams through `connectors.sdk`.

At least once: a batch that failed in the middle may be sent again by the caller; processors drop doubles by counter and time.
"""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from connectors.log.embedded import EmbeddedLog
from connectors.log.kafka import KafkaLog
from connectors.registry import RegistryIds
from connectors.sdk.events import Event
from schemas.codec import IN_USE, SchemaIds, encode
from schemas.errors import Refused
from schemas.log import Appender, Log
from schemas.messages import Record
from schemas.topics import TOPICS

FLUSH_MS: Final = 30_000


class ProducerSettings(BaseSettings):
    """Where events go. From arguments or `LOCKSTEP_…` variables; the names are those of `lockstep settings`."""

    model_config = SettingsConfigDict(env_prefix="LOCKSTEP_", extra="ignore", frozen=True)
    kafka: str = Field(default="", description="Bootstrap servers; empty: the embedded log of `data_dir`")
    kafka_options: dict[str, str] = Field(
        default_factory=dict, description="More options of the Kafka client, for TLS and SASL", repr=False
    )
    topic_prefix: str = "lockstep."
    data_dir: Path = Path("lockstep-data")
    registry: str = Field(default="", repr=False)
    registry_options: dict[str, str] = Field(default_factory=dict, repr=False)


class Producer:
    """`with Producer(settings) as p: p.send(event)`. One thread at a time. Leaving the block makes everything durable.

    `settings` may be a `Log` already open, which then stays open. Raises `Transient` when the log does not take events.
    """

    def __init__(self, settings: "ProducerSettings | Log | None" = None, name: str = "sdk") -> None:
        self._ids: SchemaIds = IN_USE
        self._owned: Log | None = None
        if settings is None:
            settings = ProducerSettings()
        if isinstance(settings, ProducerSettings):
            log = self._owned = _open(settings)
            if settings.registry:
                self._ids = RegistryIds(settings.registry, settings.registry_options)
        else:
            log = settings
        self._appender: Appender | None = log.appender(name)

    def send(self, event: Event) -> None:
        """Queue one event; blocks while the buffer is full. An earlier failure is raised here or by `flush`."""
        if not isinstance(event, Event):
            raise Refused(f"{type(event).__name__} is no event; send one of the models of connectors.sdk")
        if self._appender is None:
            raise Refused("this producer is closed; make a new one")
        self._appender.send(Record(event.topic, event.key, encode(event.row(), self._ids)))

    def send_all(self, events: Iterable[Event]) -> None:
        """Queue many."""
        for event in events:
            self.send(event)

    def flush(self, timeout_ms: int = FLUSH_MS) -> None:
        """Return when everything sent so far is durable. Raises `Transient` naming how many are not."""
        if self._appender is not None:
            self._appender.flush(timeout_ms)

    def close(self, timeout_ms: int = FLUSH_MS) -> None:
        """Flush and leave. Idempotent."""
        appender, self._appender = self._appender, None
        if appender is None:
            return
        try:
            appender.flush(timeout_ms)
        finally:
            appender.close(timeout_ms)
            if self._owned is not None:
                self._owned.close()

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(settings: ProducerSettings) -> Log:
    if settings.kafka:
        return KafkaLog(settings.kafka, prefix=settings.topic_prefix, options=settings.kafka_options)
    log = EmbeddedLog(settings.data_dir)
    log.provision(TOPICS, dry_run=False)
    return log
