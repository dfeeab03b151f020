"""Keeping the file small and quick: retention by time, compaction by key, and joining of small batches.

`LocalLog.clean` does one round; `Upkeep` calls it now and then from a thread of its own while a log is open. It never
drops a message that its topic promises to keep, and never changes an offset.
"""

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from connectors.log._pack import Stored, pack, unpack
from connectors.log._store import BATCH_BYTES, BATCH_RECORDS, Store, insert_batch
from schemas.errors import LockstepError
from schemas.messages import Record

if TYPE_CHECKING:
    from connectors.log._local import LocalLog

_LOG: Final = logging.getLogger("lockstep.log")
# Kafka's `delete.retention.ms`: a reader that rebuilds its state has this long to see a tombstone.
TOMBSTONE_MS: Final = 24 * 3600 * 1000
# Joined batches expire together: an hour more at most than each alone.
JOIN_SPAN_MS: Final = 3600 * 1000
# Joining rewrites what it joins, so it waits until it is worth it.
JOIN_AT_LEAST: Final = 16
# Closing a log waits this long for upkeep; after that upkeep meets a closed store and ends.
STOP_S: Final = 2.0


class _Head(NamedTuple):
    """A stored batch without its bytes."""

    id: int
    first: int
    next: int
    messages: int
    newest_ms: int
    size: int


def expire(store: Store, topic: str, partition: int, before_ms: int) -> int:
    """Drop the batches from the beginning whose newest message is older than `before_ms`; returns messages dropped."""
    with store.write() as c:
        (keep,) = c.execute(
            "SELECT min(first) FROM batches WHERE topic = ? AND partition = ? AND newest_ms >= ?",
            (topic, partition, before_ms),
        ).fetchone()
        begin, end = c.execute(
            "SELECT begin_offset, end_offset FROM ends WHERE topic = ? AND partition = ?", (topic, partition)
        ).fetchone()
        # Only a run from the beginning goes, so that there is no hole between `begin` and `end`.
        begin_now = end if keep is None else int(keep)
        if begin_now <= begin:
            return 0
        (dropped,) = c.execute(
            "SELECT coalesce(sum(messages), 0) FROM batches WHERE topic = ? AND partition = ? AND next <= ?",
            (topic, partition, begin_now),
        ).fetchone()
        c.execute("DELETE FROM batches WHERE topic = ? AND partition = ? AND next <= ?", (topic, partition, begin_now))
        c.execute("UPDATE ends SET begin_offset = ? WHERE topic = ? AND partition = ?", (begin_now, topic, partition))
        return int(dropped)


def compact(store: Store, topic: str, partition: int, at_ms: int) -> int:
    """Keep the newest message of each key, and those without a key; returns messages dropped."""
    newest: dict[bytes | None, int] = {}
    with store.read() as c:
        rows = c.execute(
            "SELECT first, next, crc, data FROM batches WHERE topic = ? AND partition = ? ORDER BY next",
            (topic, partition),
        )
        for first, after, crc, data in rows:
            block = unpack(data, crc, topic, partition, first, after)
            newest.update(zip(block.keys, block.offsets, strict=True))
    return sum(
        _rewrite(store, topic, partition, group, newest, at_ms) for group in _groups(store, topic, partition, None)
    )


def join(store: Store, topic: str, partition: int) -> None:
    """Make few batches of many small ones; the messages stay as they are."""
    for group in _groups(store, topic, partition, JOIN_SPAN_MS):
        if len(group) >= JOIN_AT_LEAST:
            _rewrite(store, topic, partition, group, None, 0)


def _groups(store: Store, topic: str, partition: int, span_ms: int | None) -> Iterator[list[_Head]]:
    """Neighbouring batches that fit into one."""
    with store.read() as c:
        rows = c.execute(
            "SELECT id, first, next, messages, newest_ms, length(data) FROM batches "
            "WHERE topic = ? AND partition = ? ORDER BY next",
            (topic, partition),
        ).fetchall()
    group: list[_Head] = []
    messages = size = 0
    for head in map(_Head._make, rows):
        full = messages + head.messages > BATCH_RECORDS or size + head.size > BATCH_BYTES
        if group and (full or (span_ms is not None and head.newest_ms - group[0].newest_ms > span_ms)):
            yield group
            group, messages, size = [], 0, 0
        group.append(head)
        messages += head.messages
        size += head.size
    if group:
        yield group


def _stays(block: Stored, i: int, newest: Mapping[bytes | None, int], tombstones_before_ms: int, last: int) -> bool:
    key, offset = block.keys[i], block.offsets[i]
    if key is None or offset == last:
        # The last message of all stays in any case: the end of the partition is its offset and one.
        return True
    # A key that was first written after the newest were looked up stays.
    if newest.get(key, offset) > offset:
        return False
    return block.values[i] is not None or block.timestamps_ms[i] >= tombstones_before_ms


def _rewrite(
    store: Store,
    topic: str,
    partition: int,
    group: list[_Head],
    newest: Mapping[bytes | None, int] | None,
    at_ms: int,
) -> int:
    """Put one batch in place of a group of them; `newest` None keeps every message. Returns messages dropped."""
    records: list[Record] = []
    times: list[int] = []
    offsets: list[int] = []
    last = max(newest.values(), default=-1) if newest is not None else -1
    with store.read() as c:
        for head in group:
            row = c.execute("SELECT crc, data FROM batches WHERE id = ?", (head.id,)).fetchone()
            if row is None:
                return 0  # another process was here first
            block = unpack(row[1], row[0], topic, partition, head.first, head.next)
            for i, (key, value) in enumerate(zip(block.keys, block.values, strict=True)):
                if newest is None or _stays(block, i, newest, at_ms - TOMBSTONE_MS, last):
                    records.append(Record(topic, key, value, partition, block.headers.get(i, ())))
                    times.append(block.timestamps_ms[i])
                    offsets.append(block.offsets[i])
    dropped = sum(head.messages for head in group) - len(records)
    if dropped == 0 and len(group) == 1:
        return 0
    first, after = group[0].first, group[-1].next
    whole = offsets == list(range(first, after))
    # Empty or not it is stored: readers take a hole between batches for damage.
    blob = pack(records, times, None if whole else offsets)
    marks = ",".join("?" * len(group))
    with store.write() as c:
        there = c.execute(f"DELETE FROM batches WHERE id IN ({marks})", [h.id for h in group]).rowcount  # noqa: S608
        if there != len(group):
            raise _Overtaken
        newest_ms = max(head.newest_ms for head in group)
        insert_batch(c, topic, partition, first, after, messages=len(records), newest_ms=newest_ms, blob=blob)
    return dropped


class _Overtaken(LockstepError):
    """Another process changed the same batches; nothing of this rewrite happened, and the next round sees it."""


class Upkeep:
    """A thread that cleans the log every `every_ms`, once for all processes that have it open."""

    def __init__(self, log: "LocalLog", every_ms: int) -> None:
        # Weak: a log that nobody closed must be able to go.
        self._log = weakref.ref(log)
        self._every_ms = every_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-upkeep", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_ms / 1000):
            log = self._log()
            if log is None:
                return
            # What is wrong with the file, its users hear from their own calls; upkeep can always wait.
            try:
                log.clean_if_due(self._every_ms)
            except LockstepError as e:
                _LOG.debug("upkeep waits: %s", e)
            except Exception:  # noqa: BLE001 - a mistake in here must not let the file grow for ever
                _LOG.exception("upkeep failed and will try again")
            del log

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Ends at the next partition; a round half done is no harm."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
