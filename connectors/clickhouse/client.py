"""The one door to ClickHouse: a server over HTTP or the engine inside this process (chDB), behind the same client.

Landing, migrations, queries and the command line come through here. It turns the client's and the engine's errors into
those of `schemas.errors`, pins the settings that exactly-once landing rests on, and never shows a password.
"""

import importlib.util
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from schemas.errors import Fatal, LockstepError, Refused, Transient

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

DATABASE: Final = "lockstep"
CHDB: Final = "chdb:"
# What one planned range, inserted once, rests on: one batch is one block, inserted in the call, known by its token, and a
# view that fails fails the insert. Landing reads them back before it starts (`landing_settings`).
PINNED: Final[Mapping[str, str]] = {
    "async_insert": "0",
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    "materialized_views_ignore_errors": "0",
    "max_insert_block_size": "16777216",
    "min_insert_block_size_rows": "0",
    "min_insert_block_size_bytes": "0",
    "max_partitions_per_insert_block": "0",
}
# `deduplicate_insert` came with 26.2; before it `insert_deduplicate` alone decides.
MAY_BE_ABSENT: Final = frozenset({"deduplicate_insert"})
# Error codes of ClickHouse after which the same call may work: time, memory, parts, disk, shutdown, network, keeper, login.
_PASSING: Final = frozenset(
    {159, 160, 192, 193, 194, 202, 209, 210, 236, 241, 242, 243, 252, 279, 319, 394, 425, 439, 516, 745, 999}
)
# Bytes that a format does not understand, or values that a table refuses.
_BAD_DATA: Final = frozenset({6, 26, 27, 33, 38, 41, 49, 53, 69, 70, 72, 117, 131, 158, 321, 349, 469, 588, 643, 1001})
_READ_ONLY: Final = 164
_CODE: Final = re.compile(r"Code:\s*(\d+)")
_NOISE: Final = re.compile(
    r"\s*\(version [^)]*\)|\s*FORMAT Native|Received ClickHouse exception, code: \d+, server response: |\s*\(for url [^)]*\)"
    r"|Code: \d+\.\s*(DB::Exception: )?"
)
_CAUSE: Final = re.compile(r"(?:\[Errno -?\d+\] |Connection aborted\.'?, )([^\"')(]+)")
CONNECT_S: Final = 5
ANSWER_S: Final = 120


# What its client has to say is said by our errors.
for _noisy in ("clickhouse_connect", "urllib3.connectionpool"):
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)


class BadData(LockstepError):
    """ClickHouse could not read the bytes of an insert, or its table refused their values. Nothing was inserted."""


@dataclass(frozen=True, slots=True)
class Table:
    """An answer: names and ClickHouse types of its columns, and its rows."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[object, ...]]


def connect(target: str, *, create: bool = True) -> "Database":
    """`chdb:FOLDER` opens the engine on a folder, `http(s)://user:password@host:port/database` a server.

    `create`: make the database if it is not there. Raises `Refused` for a target that is neither, `Transient` when the
    server does not answer or another process has the folder, `Fatal` when it refuses us.
    """
    if target.startswith(CHDB):
        return _embedded(Path(target.removeprefix(CHDB)), create=create)
    try:
        parts = urlsplit(target)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise Refused(
            f"the ClickHouse address is not one: {e}; it looks like http://user:password@host:8123/lockstep"
        ) from e
    if parts.scheme not in {"http", "https"} or not host:
        raise Refused("the ClickHouse address must look like http://user:password@host:8123/lockstep, or chdb:FOLDER")
    secure = parts.scheme == "https"
    shown = f"{parts.scheme}://{host}:{port or (8443 if secure else 8123)}"
    database = parts.path.strip("/") or DATABASE
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", database):
        raise Refused(f"{database!r} is no name for a ClickHouse database; use letters, digits and _")
    try:
        client = clickhouse_connect.get_client(
            host=host, port=port or 0, secure=secure, username=unquote(parts.username or "default"),
            password=unquote(parts.password or ""), database="default", connect_timeout=CONNECT_S,
            send_receive_timeout=ANSWER_S, autogenerate_session_id=False, query_retries=0,
        )  # fmt: skip
    except ClickHouseError as e:
        raise _refined(e, f"ClickHouse at {shown}", unquote(parts.password or "")) from e
    return Database(client, shown, database, create=create, secret=unquote(parts.password or ""))


def _embedded(folder: Path, *, create: bool) -> "Database":
    if importlib.util.find_spec("chdb") is None:
        raise Refused(
            "ClickHouse's engine is not installed here; install lockstep[embedded], or name a server with LOCKSTEP_CLICKHOUSE"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        client = clickhouse_connect.get_client(interface="chdb", path=str(folder))
    except ClickHouseError as e:
        if "EmbeddedServer" in str(e):
            raise Transient(
                f"ClickHouse's engine cannot open {folder}: another process has it open (`lockstep up`?), or it cannot be written"
            ) from e
        raise _refined(e, f"ClickHouse's engine on {folder}", "") from e
    return Database(client, f"{CHDB}{folder}", DATABASE, create=create)


def code_of(error: BaseException) -> int:
    """ClickHouse's error code, 0 when there is none."""
    found = _CODE.search(str(error))
    return int(found[1]) if found else 0


def _refined(
    error: ClickHouseError, where: str, secret: str, *, by_person: bool = False, inserting: bool = False
) -> LockstepError:
    code = code_of(error)
    text = _NOISE.sub("", str(error)).strip().splitlines()
    said = text[0][:600] if text else type(error).__name__
    if secret:
        said = said.replace(secret, "***")
    if isinstance(error, OperationalError) and not code:
        cause = _CAUSE.search(said)
        said = cause[1] if cause else "the connection broke or timed out"
        return Transient(f"{where} does not answer: {said}", 1_000)
    if code in _PASSING:
        return Transient(f"{where}: {said}", 1_000)
    if inserting and code in _BAD_DATA:
        return BadData(said)
    if by_person:
        if code == _READ_ONLY:
            return Refused("only reading is allowed here: SELECT, SHOW, DESCRIBE, EXPLAIN")
        return Refused(f"ClickHouse refused the query: {said}")
    return Fatal(f"{where}: {said}")


class Database:
    """One database of a ClickHouse. Thread-safe.

    Raises `Transient` when the server is away, `Refused` for a person's wrong SQL, `Fatal` for what neither time nor a
    person's next try will change."""

    def __init__(self, client: "Client", name: str, database: str, *, create: bool, secret: str = "") -> None:
        self._client = client
        self._secret = secret
        self._lock = threading.Lock()
        self._reader: Client | None = None
        self.name = name
        self.database = database
        self.embedded = name.startswith(CHDB)
        if create:
            self.command(f"CREATE DATABASE IF NOT EXISTS {database}")
        client.database = database
        for setting, value in self.pinned().items():
            client.set_client_setting(setting, value)

    def query(
        self, sql: str, parameters: Mapping[str, object] | None = None, *, read_only: bool = False, max_rows: int = 0
    ) -> Table:
        """Rows of a SELECT. `parameters` fill `{name:Type}`. `read_only`: a person's SQL, which may only read and must be one
        statement. `max_rows`: no more than that many."""
        settings: dict[str, object] = {}
        if max_rows:
            settings |= {"max_result_rows": max_rows, "result_overflow_mode": "break"}
        client = self._client
        try:
            if read_only:
                client = self._readers()
                settings |= {} if self.embedded else {"readonly": 2}
            found = client.query(sql, parameters=dict(parameters or {}), settings=settings)
            if read_only and not found.column_names:
                # An answer without rows comes without its columns, too.
                described = client.query(
                    f"DESCRIBE TABLE ({sql.strip().rstrip(';')})", parameters=dict(parameters or {})
                ).result_rows
                return Table(tuple(str(r[0]) for r in described), tuple(str(r[1]) for r in described), [])
        except ClickHouseError as e:
            raise self._told(e, by_person=read_only) from e
        rows = cast(Sequence[Sequence[object]], found.result_rows)
        return Table(
            tuple(found.column_names),
            tuple(t.name for t in found.column_types),
            [tuple(r) for r in (rows[:max_rows] if max_rows else rows)],
        )

    def command(self, sql: str, parameters: Mapping[str, object] | None = None) -> str:
        """A statement whose answer is one value or none."""
        try:
            return str(self._client.command(sql, parameters=dict(parameters or {})))
        except ClickHouseError as e:
            raise self._told(e) from e

    def insert_arrow(self, table: str, block: bytes, token: str, query_id: str = "") -> None:
        """Insert one Arrow file as one block known by `token`. Raises `BadData` when its bytes or values are wrong;
        after `Transient` or `Fatal` nobody knows whether it is in."""
        settings: dict[str, object] = {"insert_deduplication_token": token}
        if query_id and not self.embedded:
            settings["query_id"] = query_id
        try:
            self._client.raw_insert(f"{self.database}.{table}", insert_block=block, fmt="Arrow", settings=settings)
        except ClickHouseError as e:
            raise self._told(e, inserting=True) from e

    def pinned(self) -> dict[str, str]:
        """The settings of `PINNED` that this server knows."""
        known = self._client.server_settings
        return {k: v for k, v in PINNED.items() if k in known or k not in MAY_BE_ABSENT}

    def landing_settings(self) -> dict[str, str]:
        """The pinned settings as the server sees them in this connection."""
        try:
            found = self._client.query(
                "SELECT name, value FROM system.settings WHERE name IN {names:Array(String)}",
                parameters={"names": list(self.pinned())},
            )
        except ClickHouseError as e:
            raise self._told(e) from e
        return {str(name): str(value) for name, value in found.result_rows}

    def kill(self, prefix: str) -> None:
        """End all earlier queries whose id begins with `prefix` and wait until they have ended. On chDB nothing outlives its call."""
        if not self.embedded:
            self.command("KILL QUERY WHERE startsWith(query_id, {id:String}) SYNC", {"id": prefix})

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._client.close()

    def _readers(self) -> "Client":
        """The client for people's SQL. On chDB a handle of its own: once told to be read-only a handle stays so."""
        if not self.embedded:
            return self._client
        with self._lock:
            if self._reader is None:
                path = self.name.removeprefix(CHDB)
                self._reader = clickhouse_connect.get_client(interface="chdb", path=path, database=self.database)
                self._reader.command("SET readonly = 2")
            return self._reader

    def _told(self, error: ClickHouseError, *, by_person: bool = False, inserting: bool = False) -> LockstepError:
        return _refined(error, f"ClickHouse ({self.name})", self._secret, by_person=by_person, inserting=inserting)
