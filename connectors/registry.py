"""Schema ids from a registry that speaks Confluent's API, for deployments that share one with other systems.

Optional: without one the packaged ids are used (`schemas.codec.PACKAGED`). Gives processors, sources and the CLI the codec's
`SchemaIds`; asks the registry once for each id and each record. It never makes Lockstep depend on what a registry says a record
means: an id counts only when its schema is one of ours, or reads as one (`schemas.compat`).
"""

import json
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final, NoReturn, Self
from urllib.parse import urlsplit

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

from schemas.codec import PACKAGED, Writer
from schemas.compat import fingerprint, problems
from schemas.errors import Fatal, Poison, Transient
from schemas.records import ROW_TYPES, Row

# The client speaks HTTP with httpx or, from 2.16 on, with its successor, and lets their errors through.
_ERRORS: Final[tuple[type[Exception], ...]] = (
    SchemaRegistryError,
    ValueError,
    *(import_module(name).HTTPError for name in ("httpx2", "httpx") if find_spec(name)),
)
NAMESPACE: Final = "lockstep"
# The runner retries: the client must not block a processor for longer than one short attempt.
TIMEOUT_S: Final = 5
RETRY_AFTER_MS: Final = 1_000
# How long an id that the registry did not know is not asked for again: a flood of noise must not become a flood of requests, and
# a schema registered a moment late must still be found.
UNKNOWN_FOR_S: Final = 30
MAX_UNKNOWN: Final = 10_000
_OURS: Final = {f"{NAMESPACE}.{t.__name__}": t for t in ROW_TYPES}


def subject_of(record: type[Row]) -> str:
    """The record's name: several records share a topic, so the topic cannot name the subject (Confluent's RecordNameStrategy)."""
    return f"{NAMESPACE}.{record.__name__}"


class RegistryIds:
    """`SchemaIds` of one registry. Thread-safe: answers never change, so at worst one is asked for twice."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        register: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`options` are the client's own (`basic.auth.user.info`, `ssl.ca.location`, …). `register`: add our schemas where they are
        missing; else they must be there. Asks nothing yet."""
        self._shown = _without_secrets(url)
        self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S, "max.retries": 0, **(options or {})})
        self._register = register
        self._clock = clock
        self._writers: dict[int, Writer] = {}
        self._newest: dict[type[Row], int] = {}
        self._unknown: dict[int, float] = {}
        self._packaged = {fingerprint(w.avsc): w for w in PACKAGED.all().values()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. What was learned can still be asked for."""
        self._client.close()

    def check(self) -> None:
        """Raise `Transient` when the registry is out of reach, `Fatal` when the address is no registry or refuses us.

        Called once before processing starts: a wrong address answers 404 to everything, which later means an unknown id."""
        try:
            self._client.get_subjects()
        except _ERRORS as e:
            if isinstance(e, SchemaRegistryError) and e.http_status_code == 404:
                raise Fatal(f"{self._shown} is not a schema registry: it knows no /subjects") from None
            self._raise(e, "its subjects")

    def newest(self, record: type[Row]) -> int:
        """The id to write `record` with. Raises `Transient` or `Fatal`."""
        found = self._newest.get(record)
        if found is None:
            writer = PACKAGED.writer(PACKAGED.newest(record))
            schema = Schema(writer.avsc, "AVRO")
            try:
                if self._register:
                    found = self._client.register_schema(subject_of(record), schema)
                else:
                    found = self._client.lookup_schema(subject_of(record), schema).schema_id
            except _ERRORS as e:
                self._raise(e, f"the schema of {subject_of(record)}")
            if found is None:
                raise Fatal(f"the registry at {self._shown} gave no id for {subject_of(record)}")
            self._writers[found] = writer
            self._newest[record] = found
        return found

    def writer(self, schema_id: int) -> Writer:
        """Raises `Poison` for an id that is unknown or not of ours, `Transient` when the registry is out of reach."""
        found = self._writers.get(schema_id)
        if found is None:
            found = self._writers[schema_id] = self._ask(schema_id)
        return found

    def _ask(self, schema_id: int) -> Writer:
        unknown = Poison(
            "unknown_schema", f"schema id {schema_id} is neither in the registry at {self._shown} nor packaged"
        )
        if self._clock() < self._unknown.get(schema_id, 0.0):
            raise unknown
        try:
            text = self._client.get_schema(schema_id).schema_str or ""
        except _ERRORS as e:
            if not isinstance(e, SchemaRegistryError) or e.http_status_code != 404:
                self._raise(e, f"schema id {schema_id}")
        else:
            return self._ours(schema_id, text)
        try:
            # Written before this deployment had a registry: those messages are kept for ever too.
            return PACKAGED.writer(schema_id)
        except Poison:
            if len(self._unknown) >= MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[schema_id] = self._clock() + UNKNOWN_FOR_S
            raise unknown from None

    def _ours(self, schema_id: int, text: str) -> Writer:
        try:
            schema = json.loads(text)
            name = f"{schema['namespace']}.{schema['name']}"
            known = self._packaged.get(fingerprint(text))
        except (ValueError, KeyError, TypeError):
            raise Poison("foreign_schema", f"schema id {schema_id} in the registry is no Avro record of ours") from None
        if known is not None:
            return known
        record = _OURS.get(name)
        if record is None:
            raise Poison(
                "foreign_schema", f"schema id {schema_id} in the registry is {name}, which is no record of Lockstep"
            )
        today = PACKAGED.writer(PACKAGED.newest(record)).avsc
        wrong = problems(text, today)
        if wrong:
            raise Poison(
                "incompatible_schema", f"schema id {schema_id} in the registry is no release of {name}: {wrong[0]}"
            )
        return Writer(
            record, 0, text
        )  # a later release than this process knows, or another team's: readable all the same

    def _raise(self, e: Exception, what: str) -> NoReturn:
        # Only the registry's own words are passed on: a client's may hold an address with its password.
        if isinstance(e, SchemaRegistryError):
            status = e.http_status_code
            if status in {408, 429} or status >= 500:
                raise Transient(
                    f"the registry at {self._shown} answers {status} about {what}", RETRY_AFTER_MS
                ) from None
            if status in {401, 403}:
                raise Fatal(f"the registry at {self._shown} refuses our credentials ({status})") from None
            raise Fatal(f"the registry at {self._shown} refuses {what} ({status}): {e.error_message}") from None
        if isinstance(e, ValueError):
            raise Transient(
                f"the registry at {self._shown} answers what is no answer about {what}", RETRY_AFTER_MS
            ) from None
        raise Transient(f"the registry at {self._shown} is out of reach ({type(e).__name__})", RETRY_AFTER_MS) from None


def _without_secrets(url: str) -> str:
    """Addresses without user, password and query."""
    shown = []
    for one in url.split(","):
        parts = urlsplit(one.strip())
        shown.append(f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}")
    return ", ".join(shown)
