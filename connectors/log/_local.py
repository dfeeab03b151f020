"""The log on a store: provisioning, reading, appending, retention. `EmbeddedLog` and `MemoryLog` are this on two stores."""

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.log._local_member import LocalMember
from connectors.log._pack import pack, part_of, unpack
from connectors.log._store import Store, append, insert_batch, now_ms
from schemas.errors import Fatal, Refused, Transient
from schemas.log import Appender, Listener, Member, PlanStep, Reader, Span
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.topics import TopicSpec

# Another process's commit is noticed within this time; one of this process at once.
FOREIGN_POLL_S: Final = 0.005
APPEND_BUFFER: Final = 10_000


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


def read_blocks(store: Store, positions: Mapping[TopicPartition, int], max_records: int) -> list[Block]:
    """Messages from these positions, taking partitions in turn, at most `max_records`."""
    found: list[Block] = []
    left = max_records
    with store.read() as c:
        for tp, position in positions.items():
            if left <= 0:
                break
            cursor = c.execute(
                "SELECT first, next, crc, data FROM batches WHERE topic = ? AND partition = ? AND next > ? ORDER BY next",
                (tp.topic, tp.partition, position),
            )
            for first, after, crc, data in cursor:
                block = part_of(unpack(data, crc, tp.topic, tp.partition, first, after), position, left)
                if len(block):
                    found.append(block)
                left -= len(block)
                if left <= 0:
                    break
    return found


class _Waiting:
    """Waits for something to read: the bell for this process, the store's version for others."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self._store = store
        self._bell = bell

    def poll(self, positions: Mapping[TopicPartition, int], max_records: int, timeout_ms: int) -> list[Block]:
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            rung, version = self._bell.count(), self._store.version()
            found = read_blocks(self._store, positions, max_records)
            if found:
                return found
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    return []
                self._bell.wait(rung, min(left, FOREIGN_POLL_S))
                if self._bell.count() != rung or self._store.version() != version:
                    break


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
    """`Appender` on a store: buffers, and writes a full buffer as one transaction."""

    def __init__(self, log: "LocalLog") -> None:
        self._log = log
        self._buffer: list[Record] = []
        self._lock = threading.Lock()
        self._robin = [-1]

    def send(self, record: Record) -> None:
        with self._lock:
            self._log.check(record)
            self._buffer.append(record)
            if len(self._buffer) >= APPEND_BUFFER:
                self._write()

    def _write(self) -> None:
        if self._buffer:
            self._log.append(self._buffer, self._robin)
            self._buffer = []

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
        self.flush(timeout_ms)


class LocalLog:
    """`schemas.log.Log` on a store."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self._store = store
        self._bell = bell
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

    def check(self, record: Record) -> None:
        """Refuse at once what could never be written."""
        most = self._spec(record.topic)[1]
        size = len(record.value or b"") + len(record.key or b"")
        if size > most:
            raise Refused(f"a message of {size} bytes is too large for topic {record.topic} (at most {most})")

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
            self._spec(tp.topic)
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
            poll_blocks=_Waiting(self._store, self._bell).poll,
        )  # fmt: skip

    def appender(self, name: str) -> Appender:
        return LocalAppender(self)

    def clean(self, at_ms: int | None = None) -> int:
        """Apply retention and compaction once; returns the messages dropped. Call it now and then."""
        at = now_ms() if at_ms is None else at_ms
        dropped = 0
        with self._store.read() as c:
            topics = c.execute("SELECT topic, cleanup, retention_ms FROM topics").fetchall()
        for topic, cleanup, retention_ms in topics:
            for partition in self.span(topic):
                if cleanup == "compact":
                    dropped += self._compact(topic, partition)
                elif retention_ms >= 0:
                    dropped += self._expire(topic, partition, at - retention_ms)
        return dropped

    def _expire(self, topic: str, partition: int, before_ms: int) -> int:
        with self._store.write() as c:
            # Only a run from the beginning goes, so that offsets never have a hole that is younger than its end.
            row = c.execute(
                "SELECT min(first) FROM batches WHERE topic = ? AND partition = ? AND newest_ms >= ?",
                (topic, partition, before_ms),
            ).fetchone()
            begin, end = c.execute(
                "SELECT begin_offset, end_offset FROM ends WHERE topic = ? AND partition = ?", (topic, partition)
            ).fetchone()
            keep = end if row[0] is None else int(row[0])
            if keep <= begin:
                return 0
            c.execute("DELETE FROM batches WHERE topic = ? AND partition = ? AND next <= ?", (topic, partition, keep))
            c.execute("UPDATE ends SET begin_offset = ? WHERE topic = ? AND partition = ?", (keep, topic, partition))
            return keep - int(begin)

    def _compact(self, topic: str, partition: int) -> int:
        """Keep the newest message of each key; messages without a key stay. Offsets stay as they were."""
        with self._store.write() as c:
            rows = c.execute(
                "SELECT id, first, next, crc, data, newest_ms FROM batches WHERE topic = ? AND partition = ? ORDER BY next",
                (topic, partition),
            ).fetchall()
            if len(rows) < 2:
                return 0
            blocks = [unpack(data, crc, topic, partition, first, after) for _, first, after, crc, data, _ in rows]
            newest = {key: offset for b in blocks for key, offset in zip(b.keys, b.offsets, strict=True)}
            dropped = 0
            for (batch_id, first, after, _, _, ms), block in zip(rows, blocks, strict=True):
                stays = [i for i, k in enumerate(block.keys) if k is None or newest[k] == block.offsets[i]]
                gone = len(block) - len(stays)
                if gone == 0:
                    continue
                dropped += gone
                c.execute("DELETE FROM batches WHERE id = ?", (batch_id,))
                if stays:
                    kept = [
                        Record(topic, block.keys[i], block.values[i], partition, block.headers.get(i, ()))
                        for i in stays
                    ]
                    blob = pack(kept, [block.timestamps_ms[i] for i in stays], [block.offsets[i] for i in stays])
                    insert_batch(c, topic, partition, first, after, ms, blob)
            return dropped

    def close(self) -> None:
        self._store.close()
