"""The log on a store: provisioning, reading, appending, retention. `EmbeddedLog` and `MemoryLog` are this on two stores."""

import itertools
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from connectors.log._group import SESSION_MS
from connectors.log._local_member import LocalMember
from connectors.log._pack import Stored, part_of, unpack
from connectors.log._store import Store, append, now_ms
from connectors.log._upkeep import Upkeep, compact, expire, join
from schemas.errors import Corrupted, Fatal, Refused, Transient, Where
from schemas.log import Appender, Listener, Member, PlanStep, Reader, Span
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.topics import TopicSpec

# Another process's commit is noticed within this time; one of this process at once.
FOREIGN_POLL_S: Final = 0.005
# The appender writes by itself beyond this many messages or bytes; a call for each 10,000 costs one fsync.
APPEND_RECORDS: Final = 10_000
APPEND_BYTES: Final = 32 << 20
# One poll returns at most so many bytes, whatever number of messages was asked for; one message in any case.
POLL_BYTES: Final = 64 << 20
# What was sent is durable this much later though nothing more comes; and how often the thread for that looks whether it is still needed.
LINGER_S: Final = 0.05
LINGER_LOOK_S: Final = 5.0


class Bell:
    """Wakes the pollers of this process when something was committed by it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._rung = 0

    def ring(self) -> None:
        with self._condition:
            self._rung += 1
            self._condition.notify_all()

    def count(self) -> int:
        return self._rung

    def wait(self, since: int, timeout_s: float) -> None:
        with self._condition:
            if self._rung == since:
                self._condition.wait(timeout_s)


_bells: "weakref.WeakValueDictionary[str, Bell]" = weakref.WeakValueDictionary()
_bells_lock = threading.Lock()


def bell_of(where: str) -> Bell:
    """One bell per database in this process, however many logs are open on it."""
    with _bells_lock:
        found = _bells.get(where)
        if found is None:
            found = Bell()
            _bells[where] = found
        return found


class _Waiting:
    """Reads, and waits for something to read: the bell for this process, the store's version for others."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self._store = store
        self._bell = bell
        # A batch of which only a part was wanted, by partition: asking for few at a time must not unpack it each time.
        self._open: dict[TopicPartition, tuple[int, Stored, int]] = {}

    def read(self, positions: Mapping[TopicPartition, int], max_records: int) -> list[Block]:
        """Messages from these positions, taking partitions in turn, at most `max_records` and `POLL_BYTES`."""
        found: list[Block] = []
        left, room = max_records, POLL_BYTES
        with self._store.read() as c:
            # One look at all ends: most polls find most partitions as they were.
            ends = {
                (t, p): end
                for t, p, end in _sound(c.execute("SELECT topic, partition, end_offset FROM ends"), str, int, int)
            }
            for tp, position in positions.items():
                if left <= 0:
                    break
                if ends.get(tp, 0) <= position:
                    continue
                rows = c.execute(
                    "SELECT id, first, next FROM batches WHERE topic = ? AND partition = ? AND next > ? ORDER BY next",
                    (tp.topic, tp.partition, position),
                )
                reached = position
                for batch_id, first, after in _sound(rows, int, int, int):
                    if first > reached:
                        self._check_hole(c, tp, reached, first)
                    whole, size = self._unpacked(c, tp, batch_id)
                    block = part_of(whole, position, left)
                    left -= len(block)
                    # Message by message only where the whole batch is too large: small ones are not to pay for this.
                    if size > room:
                        fitting = _fitting(block, room) or (0 if found else 1)
                        if fitting < len(block):
                            block, left = part_of(block, position, fitting), 0
                    room -= min(size, room)
                    if len(block):
                        found.append(block)
                    if block.next_offset < after:
                        self._open[tp] = (batch_id, whole, size)
                    reached = after
                    if left <= 0:
                        break
                else:
                    self._check_hole(c, tp, reached, None)
        return found

    @staticmethod
    def _check_hole(c: sqlite3.Connection, tp: TopicPartition, reached: int, first: int | None) -> None:
        """Stored batches follow each other from begin to end; a missing one must not look like a quiet partition."""
        ends = c.execute(
            "SELECT begin_offset, end_offset FROM ends WHERE topic = ? AND partition = ?", (tp.topic, tp.partition)
        )
        begin, end = _one(ends, int, int)
        expected = max(reached, begin)
        if expected < (end if first is None else first):
            raise Corrupted(
                f"{Where(tp.topic, tp.partition, expected)}: a stored batch is missing; restore the log's file from a backup"
            )

    def _unpacked(self, c: sqlite3.Connection, tp: TopicPartition, batch_id: int) -> tuple[Stored, int]:
        """A stored batch and its size in bytes."""
        opened = self._open.pop(tp, None)
        if opened is not None and opened[0] == batch_id:
            return opened[1], opened[2]
        rows = c.execute("SELECT first, next, crc, data FROM batches WHERE id = ?", (batch_id,))
        first, after, crc, data = _one(rows, int, int, int, bytes)
        return unpack(data, crc, tp.topic, tp.partition, first, after), len(data)

    def poll(self, positions: Mapping[TopicPartition, int], max_records: int, timeout_ms: int) -> list[Block]:
        if timeout_ms <= 0:
            return self.read(positions, max_records)
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            rung, version = self._bell.count(), self._store.version()
            found = self.read(positions, max_records)
            if found:
                return found
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                self._bell.wait(rung, min(left, FOREIGN_POLL_S))
                if self._bell.count() != rung or self._store.version() != version:
                    break


_DAMAGED: Final = "the log's file is damaged: {}; restore it from a backup"


def _sound(rows: Iterable[tuple[Any, ...]], *kinds: type) -> Iterator[tuple[Any, ...]]:
    """Rows of the store, each value of the type that was stored. Raises `Corrupted` when it is not: SQLite does not look."""
    for row in rows:
        if tuple(map(type, row)) != kinds:
            raise Corrupted(_DAMAGED.format("a value has another type than was stored"))
        yield row


def _one(rows: Iterable[tuple[Any, ...]], *kinds: type) -> tuple[Any, ...]:
    """The first of such rows. Raises `Corrupted` when there is none, as when an index names what its table has not."""
    for row in _sound(rows, *kinds):
        return row
    raise Corrupted(_DAMAGED.format("a row is missing"))


def _fitting(block: Block, room: int) -> int:
    """How many messages from the block's beginning have at most `room` bytes together."""
    sizes = (len(v or b"") + len(k or b"") for v, k in zip(block.values, block.keys, strict=True))
    return sum(1 for total in itertools.accumulate(sizes) if total <= room)


class LocalReader:
    """`Reader` on a store."""

    def __init__(self, store: Store, bell: Bell, positions: Mapping[TopicPartition, int]) -> None:
        self._waiting = _Waiting(store, bell)
        self._positions = dict(positions)

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        found = self._waiting.poll(self._positions, max_records, timeout_ms)
        for block in found:
            # The partition just read goes to the end of the line, so that a busy one cannot starve the rest.
            self._positions.pop(block.tp, None)
            self._positions[block.tp] = block.next_offset
        return found

    def close(self) -> None:
        self._positions.clear()


class LocalAppender:
    """`Appender` on a store: buffers, and writes a full buffer as one transaction. Threads may share it."""

    def __init__(self, log: "LocalLog", name: str) -> None:
        self._log = log
        self._name = name
        self._buffer: list[Record] = []
        self._bytes = 0
        # Re-entrant: `close` flushes.
        self._lock = threading.RLock()
        self._robin = [-1]
        self._closed = False
        self._oldest_at = 0.0
        # The thread could not write what is buffered: the next call tries, and tells its caller.
        self._failed = False
        self._sent = threading.Event()
        self._lingering: threading.Thread | None = None

    def send(self, record: Record) -> None:
        with self._lock:
            if self._closed:
                raise Fatal(f"the appender {self._name} is closed")
            size = self._log.check(record)
            # Before this record joins: what fails here are earlier ones, and this one may be sent again.
            if self._failed or len(self._buffer) >= APPEND_RECORDS or self._bytes >= APPEND_BYTES:
                self._write()
            self._buffer.append(record)
            self._bytes += size
            if len(self._buffer) == 1:
                self._oldest_at = time.monotonic()
                self._sent.set()
                if self._lingering is None:
                    arguments = (weakref.ref(self), self._sent)
                    self._lingering = threading.Thread(target=_linger, args=arguments, name="linger", daemon=True)
                    self._lingering.start()

    def _lingered(self) -> float | None:
        """Write what waited long enough; seconds until to look again (0: when something is sent), None: it is over."""
        with self._lock:
            if self._closed:
                return None
            if not self._buffer or self._failed:
                return 0
            left = self._oldest_at + LINGER_S - time.monotonic()
            if left > 0:
                return left
            try:
                self._write()
            except Transient:
                return LINGER_S
            except Exception:  # noqa: BLE001 - nothing is lost: the next call meets the same, and raises it
                self._failed = True
            return 0

    def _write(self) -> None:
        if self._buffer:
            self._log.append(self._buffer, self._robin)
            self._buffer = []
            self._bytes = 0
        self._failed = False

    def flush(self, timeout_ms: int) -> None:
        deadline = time.monotonic() + timeout_ms / 1000
        with self._lock:
            while True:
                try:
                    return self._write()
                except Transient as e:
                    if time.monotonic() >= deadline:
                        raise Transient(f"{len(self._buffer)} messages are not durable yet: {e}") from None

    def close(self, timeout_ms: int) -> None:
        with self._lock:
            if not self._closed:
                self.flush(timeout_ms)
                self._closed = True
                self._sent.set()


def _linger(appender: "weakref.ref[LocalAppender]", sent: threading.Event) -> None:
    """A sender with little to say does not wait until a batch is full: on Kafka its client would not, either."""
    pause = 0.0
    while True:
        if pause:
            time.sleep(pause)
        else:
            sent.wait(LINGER_LOOK_S)
        sent.clear()
        alive = appender()
        found = None if alive is None else alive._lingered()
        if found is None:
            return
        pause = found
        del alive


class LocalLog:
    """`schemas.log.Log` on a store."""

    def __init__(self, store: Store, bell: Bell, *, session_ms: int = SESSION_MS, upkeep_every_ms: int = 0) -> None:
        self._store = store
        self._bell = bell
        self._session_ms = session_ms
        self._upkeep = Upkeep(self, upkeep_every_ms) if upkeep_every_ms else None
        self._compacted: dict[TopicPartition, int] = {}
        self._specs: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store.where})"

    def provision(self, topics: Sequence[TopicSpec], *, dry_run: bool) -> list[PlanStep]:
        plan: list[PlanStep] = []
        with self._store.write() as c:
            for spec in topics:
                row = c.execute(
                    "SELECT partitions, cleanup, retention_ms, max_message_bytes FROM topics WHERE topic = ?",
                    (spec.name,),
                ).fetchone()
                wanted = (spec.partitions, spec.cleanup, spec.retention_ms, spec.max_message_bytes)
                if row == wanted:
                    plan.append(PlanStep("keep", spec.name, f"{spec.partitions} partitions, as specified"))
                    continue
                if row is not None and row[0] != spec.partitions:
                    detail = f"it has {row[0]} partitions, the specification {spec.partitions}: keys would move; recreate it to change that"
                    plan.append(PlanStep("refuse", spec.name, detail))
                    continue
                if row is None:
                    plan.append(PlanStep("create", spec.name, f"{spec.partitions} partitions, cleanup {spec.cleanup}"))
                else:
                    names = ("partitions", "cleanup", "retention_ms", "max_message_bytes")
                    changed = [f"{n} {a} → {b}" for n, a, b in zip(names, row, wanted, strict=True) if a != b]
                    plan.append(PlanStep("alter", spec.name, ", ".join(changed)))
                if dry_run:
                    continue
                c.execute("INSERT OR REPLACE INTO topics VALUES (?, ?, ?, ?, ?)", (spec.name, *wanted))
                for p in range(spec.partitions):
                    c.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, 0, 0)", (spec.name, p))
        self._specs.clear()
        return plan

    def _spec(self, topic: str) -> tuple[int, int]:
        """(partitions, max_message_bytes), remembered."""
        found = self._specs.get(topic)
        if found is None:
            with self._store.read() as c:
                found = c.execute(
                    "SELECT partitions, max_message_bytes FROM topics WHERE topic = ?", (topic,)
                ).fetchone()
            if found is None:
                raise Fatal(f"there is no topic {topic}; run `lockstep provision`")
            self._specs[topic] = found
        return found

    def partitions(self, topic: str) -> int:
        return self._spec(topic)[0]

    def check(self, record: Record) -> int:
        """Refuse at once what could never be written; returns its size in bytes."""
        partitions, most = self._spec(record.topic)
        if record.partition is not None and not 0 <= record.partition < partitions:
            raise Fatal(f"topic {record.topic} has no partition {record.partition} (it has {partitions})")
        size = len(record.value or b"") + len(record.key or b"")
        if size > most:
            raise Refused(f"a message of {size} bytes is too large for topic {record.topic} (at most {most})")
        return size

    def span(self, topic: str) -> dict[int, Span]:
        self._spec(topic)
        with self._store.read() as c:
            rows = c.execute(
                "SELECT partition, begin_offset, end_offset FROM ends WHERE topic = ? ORDER BY 1", (topic,)
            )
            return {p: Span(b, e) for p, b, e in rows}

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        with self._store.read() as c:
            rows = c.execute("SELECT topic, partition, position, metadata FROM positions WHERE grp = ?", (group,))
            known = {TopicPartition(t, p): Committed(o, m) for t, p, o, m in rows}
        return {tp: known.get(tp) for tp in partitions}

    def append(self, records: Sequence[Record], robin: list[int]) -> None:
        """One transaction of records, outside any slot."""
        with self._store.write() as c:
            append(c, records, robin)
        self._bell.ring()

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        for tp in positions:
            if not 0 <= tp.partition < self.partitions(tp.topic):
                raise Fatal(f"topic {tp.topic} has no partition {tp.partition}")
        return LocalReader(self._store, self._bell, positions)

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
        return LocalMember(
            self._store, self._bell, group, partitions, listener, owner=owner, assign_all=assign_all,
            session_ms=self._session_ms, poll_blocks=_Waiting(self._store, self._bell).poll,
        )  # fmt: skip

    def appender(self, name: str) -> Appender:
        return LocalAppender(self, name)

    def clean(self, at_ms: int | None = None) -> int:
        """Retention, compaction and joining, once; returns the messages dropped. `at_ms`: the time, if not now."""
        at = now_ms() if at_ms is None else at_ms
        dropped = 0
        with self._store.read() as c:
            topics = c.execute("SELECT topic, cleanup, retention_ms FROM topics").fetchall()
        for topic, cleanup, retention_ms in topics:
            for partition, span in self.span(topic).items():
                if self._upkeep is not None and self._upkeep.stopping:
                    return dropped
                if cleanup == "compact":
                    tp = TopicPartition(topic, partition)
                    if self._compacted.get(tp) != span.end:
                        dropped += compact(self._store, topic, partition, at)
                        self._compacted[tp] = span.end
                    continue
                if retention_ms >= 0:
                    dropped += expire(self._store, topic, partition, at - retention_ms)
                join(self._store, topic, partition)
        self._store.checkpoint()
        return dropped

    def clean_if_due(self, every_ms: int) -> None:
        """`clean`, unless another process did it less than `every_ms` ago."""
        at = now_ms()
        with self._store.read() as c:
            (last,) = c.execute("SELECT at_ms FROM upkeep").fetchone()
        # A time ahead of ours was written before the clock was set back.
        if 0 <= at - last < every_ms:
            return
        with self._store.write() as c:
            mine = c.execute("UPDATE upkeep SET at_ms = ? WHERE at_ms = ?", (at, last)).rowcount
        if mine:
            self.clean(at)

    def close(self) -> None:
        if self._upkeep is not None:
            self._upkeep.stop()
        self._store.close()
