"""From settings to objects: the log, ClickHouse, schema ids and the workers of each role. Called by roles, the API and the
command line; it decides nothing.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

import analytics
from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.landing import Lander
from connectors.clickhouse.migrate import migrate
from connectors.log.embedded import FILE_NAME, EmbeddedLog
from connectors.log.kafka import KafkaLog
from connectors.snapshots import FolderSnapshots
from infra.about import VERSION
from infra.settings import Settings, hidden
from infra.sim import SimWorker
from schemas.codec import use
from schemas.errors import Fatal, Refused
from schemas.log import Log
from schemas.messages import Record
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.metrics import Metrics
from streams.observe import Observe
from streams.runner import ProcessorWorker, Worker

if TYPE_CHECKING:
    from connectors.registry import RegistryIds

Role = Literal["observe", "decide", "land", "simulate"]
ROLES: Final[tuple[Role, ...]] = ("observe", "decide", "land", "simulate")


def data_folder(settings: Settings) -> Path:
    """The data folder, made if it is not there. Raises `Refused` when it cannot be had."""
    folder = settings.data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise Refused(f"the data folder {folder} cannot be made: {e.strerror}; name another with --data") from e
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"the data folder {folder} cannot be written by this user; name another with --data")
    return folder


def open_log(settings: Settings, *, create: bool = True) -> Log:
    """The log that settings name. The embedded one is provisioned at once; `create` False refuses a folder without one."""
    if settings.kafka:
        return KafkaLog(settings.kafka, prefix=settings.topic_prefix, options=settings.kafka_options)
    if not create and not (settings.data_dir / FILE_NAME).is_file():
        raise Refused(
            f"there is no log in {settings.data_dir}; start one with `lockstep up`, or name another folder with --data "
            "(or Kafka with LOCKSTEP_KAFKA)"
        )
    log = EmbeddedLog(data_folder(settings))
    log.provision(TOPICS, dry_run=False)
    return log


def append(log: Log, name: str, records: Iterable[Record], timeout_ms: int) -> None:
    """Write records and wait until all are durable. Raises `Transient` naming how many are not."""
    appender = log.appender(name)
    try:
        for record in records:
            appender.send(record)
        appender.flush(timeout_ms)
    finally:
        appender.close(timeout_ms)


def open_database(settings: Settings) -> Database:
    """ClickHouse as settings name it; the engine in the data folder is migrated at once, a server by `lockstep migrate`."""
    database = connect(settings.clickhouse_target)
    if database.embedded:
        migrate(database, analytics.migrations())
    return database


def open_registry(settings: Settings, *, register: bool = True) -> "RegistryIds":
    """The registry that settings name; asks nothing yet. Raises `Refused` for options that cannot be."""
    from connectors.registry import RegistryIds  # noqa: PLC0415 - a third of a second that most do without

    try:
        return RegistryIds(settings.registry, settings.registry_options, register=register)
    except ValueError as e:
        raise Refused(f"the registry's options: {hidden('registry', e)}") from None


def use_registry(settings: Settings) -> "RegistryIds | None":
    """With a registry its ids are used by this process from here on."""
    if not settings.registry:
        return None
    ids = open_registry(settings)
    use(ids)
    return ids


class SharedDatabase:
    """ClickHouse, opened when somebody needs it first, and closed once. Thread-safe; a failed opening may be tried again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._database: Database | None = None

    def __call__(self) -> Database:
        with self._lock:
            if self._database is None:
                self._database = open_database(self._settings)
            return self._database

    def close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()


def _wanted(database: Callable[[], Database]) -> Database:
    """For a role, what a person must put right (no engine installed, no such database) is the end."""
    try:
        return database()
    except Refused as e:
        raise Fatal(str(e)) from e


def make_worker(role: Role, settings: Settings, log: Log, database: Callable[[], Database], metrics: Metrics) -> Worker:
    """The worker of a role."""
    match role:
        case "observe":
            return ProcessorWorker(
                log, lambda: Observe(settings.slot, silence_ms=settings.silence_ms, metrics=metrics), metrics
            )
        case "decide":
            snapshots = FolderSnapshots(settings.snapshots_dir, fork=True)
            return ProcessorWorker(
                log, lambda: Decide(settings.domain, snapshots, version=VERSION, metrics=metrics), metrics
            )
        case "land":
            cluster = settings.topic_prefix if settings.kafka else "embedded"
            return Lander(
                log, lambda: _wanted(database), cluster, metrics, slot=settings.slot, linger_ms=settings.linger_ms
            )
        case "simulate":
            return SimWorker(log, settings.domain)
