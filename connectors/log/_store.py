"""The tables of the embedded log, and transactions on them.

A store is one SQLite database: a file in WAL mode, or memory. `read` gives a connection for one consistent look,
`write` a transaction that is durable when it ends and gone without a trace when it fails. It knows rows, not groups.
"""

import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from connectors.log._pack import checksum, pack
from schemas.errors import Corrupted, Fatal, Refused, StorageFull, Transient
from schemas.messages import Record, partition_of

FORMAT: Final = 1
# "LKSP" as SQLite's application id: says whose file it is.
APPLICATION_ID: Final = 0x4C4B5350
# How long a writer waits for another process's transaction before the call fails as transient.
BUSY_MS: Final = 15_000
# One stored batch holds at most this many messages or bytes, so that reading a few does not unpack millions.
BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 16 << 20

# AUTOINCREMENT: a number is never used again, so that who remembers a batch by it cannot meet another one.
_SCHEMA: Final = """
CREATE TABLE topics (topic TEXT PRIMARY KEY, partitions INTEGER NOT NULL, cleanup TEXT NOT NULL,
    retention_ms INTEGER NOT NULL, max_message_bytes INTEGER NOT NULL);
CREATE TABLE ends (topic TEXT, partition INTEGER, begin_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE batches (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, partition INTEGER NOT NULL, first INTEGER NOT NULL,
    next INTEGER NOT NULL, messages INTEGER NOT NULL, newest_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    data BLOB NOT NULL);
CREATE UNIQUE INDEX batches_by_offset ON batches (topic, partition, next, first, messages, newest_ms);
CREATE TABLE positions (grp TEXT, topic TEXT, partition INTEGER, position INTEGER NOT NULL, metadata TEXT NOT NULL,
    PRIMARY KEY (grp, topic, partition)) WITHOUT ROWID;
CREATE TABLE owners (owner TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
CREATE TABLE members (grp TEXT, member TEXT, joined INTEGER NOT NULL, seen_ms INTEGER NOT NULL, process TEXT NOT NULL,
    owner TEXT, topics TEXT NOT NULL, PRIMARY KEY (grp, member)) WITHOUT ROWID;
CREATE TABLE assignments (grp TEXT, topic TEXT, partition INTEGER, member TEXT NOT NULL,
    PRIMARY KEY (grp, topic, partition)) WITHOUT ROWID;
CREATE TABLE upkeep (one INTEGER PRIMARY KEY CHECK (one = 1), at_ms INTEGER NOT NULL);
INSERT INTO upkeep VALUES (1, 0);
"""

Durability = Literal["full", "normal"]


def translate(error: sqlite3.Error, where: str) -> Exception:
    """SQLite's error as one of the tree: what the caller must do."""
    name: str = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Transient(f"the log at {where} is held by another process's transaction", 100)
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHM")):
        return StorageFull(
            f"no room left for the log at {where} ({error}): nothing of this commit was written; "
            "free space and start again"
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")):
        return Corrupted(
            f"the log at {where} is damaged ({error}); restore it from a backup, or move it away to start empty"
        )
    return Fatal(f"the log at {where} failed: {error}")


class Store(Protocol):
    """A database of the embedded log."""

    where: str

    def read(self) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def write(self) -> contextlib.AbstractContextManager[sqlite3.Connection]: ...

    def version(self) -> int:
        """Changes when another connection has committed; cheap."""
        ...

    def checkpoint(self) -> None:
        """Move what was committed from the write-ahead file into the main one."""
        ...

    def close(self) -> None: ...


class _Handle:
    """One thread's connection. The lock keeps `close` from another thread out of a running statement."""

    __slots__ = ("__weakref__", "connection", "lock")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.lock = threading.RLock()


class FileStore:
    """A file in WAL mode; one connection per thread, any number of processes."""

    def __init__(self, path: Path, durability: Durability = "full", max_pages: int | None = None) -> None:
        self.where = str(path)
        self._path = path
        self._durability = durability
        self._max_pages = max_pages
        self._local = threading.local()
        # Weak: a thread that ends takes its connection with it.
        self._handles: weakref.WeakSet[_Handle] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._prepare()

    def _prepare(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise Fatal(f"the log at {self.where} cannot be opened: {e.strerror}") from None
        with self.read() as c:
            kind, version, tables = self._header(c)
        if (kind, version, tables) == (0, 0, 0):
            with self.write() as c:
                kind, version, tables = self._header(c)
                if tables == 0:
                    for statement in _SCHEMA.split(";"):
                        c.execute(statement)
                    c.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    c.execute(f"PRAGMA user_version = {FORMAT}")
                    kind, version = APPLICATION_ID, FORMAT
        if kind != APPLICATION_ID:
            raise Corrupted(f"{self.where} is an SQLite file, but not a log of Lockstep; choose another data folder")
        if version != FORMAT:
            raise Fatal(
                f"the log at {self.where} has format {version}, this version of Lockstep reads format {FORMAT}; "
                "run the version that wrote it"
            )

    @staticmethod
    def _header(c: sqlite3.Connection) -> tuple[int, int, int]:
        """(application id, format, number of tables)"""
        (kind,) = c.execute("PRAGMA application_id").fetchone()
        (version,) = c.execute("PRAGMA user_version").fetchone()
        (tables,) = c.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return kind, version, tables

    def _open(self) -> sqlite3.Connection:
        found = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            self._to_wal(found)
            found.execute(f"PRAGMA synchronous = {self._durability}")
            # The default checkpoints every 1,000 pages (4 MB): at hundreds of MB a second that is all it would do.
            found.execute("PRAGMA wal_autocheckpoint = 16000")
            if self._max_pages is not None:
                found.execute(f"PRAGMA max_page_count = {self._max_pages}")
        except BaseException:
            found.close()
            raise
        return found

    @staticmethod
    def _to_wal(connection: sqlite3.Connection) -> None:
        # SQLite does not wait for a lock here, and two processes may create the file at once.
        deadline = time.monotonic() + BUSY_MS / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as e:
                if not e.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        handle: _Handle | None = getattr(self._local, "handle", None)
        try:
            if handle is None and not self._closed:
                handle = self._local.handle = _Handle(self._open())
                with self._lock:
                    self._handles.add(handle)
            if handle is None:
                raise Fatal(f"the log at {self.where} is closed")
            with handle.lock:
                if self._closed:
                    raise Fatal(f"the log at {self.where} is closed")
                yield handle.connection
        except sqlite3.Error as e:
            raise translate(e, self.where) from None

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as c:
            c.execute("BEGIN")
            try:
                yield c
            finally:
                if c.in_transaction:
                    c.execute("COMMIT")

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as c:
            c.execute("BEGIN IMMEDIATE")
            try:
                yield c
                c.execute("COMMIT")
            except BaseException:
                # After some errors SQLite has rolled back by itself.
                if c.in_transaction:
                    c.execute("ROLLBACK")
                raise

    def version(self) -> int:
        with self._connection() as c:
            return int(c.execute("PRAGMA data_version").fetchone()[0])

    def checkpoint(self) -> None:
        with self._connection() as c:
            c.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._closed = True
        with self._lock:
            handles = list(self._handles)
            self._handles.clear()
        for handle in handles:
            with handle.lock:
                handle.connection.close()


class MemoryStore:
    """The same tables in memory: one connection, one lock, gone with the process."""

    where = "memory"

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SCHEMA)
        self._lock = threading.RLock()
        self._commits = 0

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            yield self._connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._commits += 1

    def version(self) -> int:
        return self._commits

    def checkpoint(self) -> None:
        """Memory has no second file."""

    def close(self) -> None:
        """Nothing to do: the memory goes with the last reference, and others may still use it."""


def now_ms() -> int:
    """Append time of messages, liveness of members."""
    return time.time_ns() // 1_000_000


def append(c: sqlite3.Connection, records: Sequence[Record], robin: list[int]) -> None:
    """Append records inside the caller's transaction. Raises `Refused` for an unknown topic or a message too large."""
    at = now_ms()
    by_partition: dict[tuple[str, int], list[Record]] = {}
    limits: dict[str, tuple[int, int]] = {}
    for record in records:
        topic = record.topic
        if topic not in limits:
            row = c.execute("SELECT partitions, max_message_bytes FROM topics WHERE topic = ?", (topic,)).fetchone()
            if row is None:
                raise Fatal(f"there is no topic {topic}; run `lockstep provision`")
            limits[topic] = row
        partitions, most = limits[topic]
        size = len(record.value or b"") + len(record.key or b"")
        if size > most:
            raise Refused(f"a message of {size} bytes is too large for topic {topic} (at most {most})")
        if record.partition is not None:
            partition = record.partition
            if not 0 <= partition < partitions:
                raise Fatal(f"topic {topic} has no partition {partition} (it has {partitions})")
        elif record.key is not None:
            partition = partition_of(record.key, partitions)
        else:
            robin[0] += 1
            partition = robin[0] % partitions
        by_partition.setdefault((topic, partition), []).append(record)
    for (topic, partition), run in by_partition.items():
        (end,) = c.execute(
            "SELECT end_offset FROM ends WHERE topic = ? AND partition = ?", (topic, partition)
        ).fetchone()
        start = 0
        while start < len(run):
            stop, size = start, 0
            while stop < len(run) and stop - start < BATCH_RECORDS and (size < BATCH_BYTES or stop == start):
                size += len(run[stop].value or b"")
                stop += 1
            part = run[start:stop]
            blob = pack(part, [at] * len(part))
            insert_batch(c, topic, partition, end, end + len(part), messages=len(part), newest_ms=at, blob=blob)
            end += len(part)
            start = stop
        c.execute("UPDATE ends SET end_offset = ? WHERE topic = ? AND partition = ?", (end, topic, partition))


def insert_batch(
    c: sqlite3.Connection,
    topic: str,
    partition: int,
    first: int,
    after: int,
    *,
    messages: int,
    newest_ms: int,
    blob: bytes,
) -> None:
    """Store one packed batch that covers offsets from `first` to before `after`."""
    crc = checksum(blob, topic, partition, first, after)
    c.execute(
        "INSERT INTO batches (topic, partition, first, next, messages, newest_ms, crc, data) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (topic, partition, first, after, messages, newest_ms, crc, blob),
    )
