"""Members of groups on a store: sharing partitions, committing atomically, fencing the stale.

Sharing is cooperative: a partition belongs to the member whose name stands in `assignments`; a member gives up what is no
longer its share (after `revoked`) by taking its name away, and takes what is its share and nobody's. Each poll looks.
A member that was not seen for `SESSION_MS`, or whose process is gone, is put out by the others.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connectors.log._store import Store, append, now_ms
from schemas.errors import Fatal, Fenced
from schemas.log import Listener
from schemas.messages import Block, Committed, Record, TopicPartition

if TYPE_CHECKING:
    from connectors.log._local import Bell

SESSION_MS: Final = 30_000
# Looking for a rebalance costs a small transaction; ten times a second is enough for people and cheap.
LOOK_EVERY_S: Final = 0.1
PollBlocks = Callable[[Mapping[TopicPartition, int], int, int], list[Block]]


def _process() -> str:
    """This process, told apart from a later one with the same number by its start time."""
    return f"{os.getpid()}/{_started(os.getpid())}"


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return "?"


def _gone(process: str) -> bool:
    pid, _, started = process.partition("/")
    if started == "?":
        return False
    return _started(int(pid)) != started


class LocalMember:
    """`Member` on a store."""

    def __init__(
        self,
        store: Store,
        bell: "Bell",
        group: str,
        partitions: Sequence[TopicPartition],
        listener: Listener,
        *,
        owner: str | None,
        assign_all: bool,
        poll_blocks: PollBlocks,
    ) -> None:
        self._store = store
        self._bell = bell
        self._group = group
        self._partitions = sorted(partitions)
        self._listener = listener
        self._owner = owner
        self._assign_all = assign_all
        self._poll_blocks = poll_blocks
        self._name = uuid.uuid4().hex
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._robin = [-1]
        self._look_at = 0.0
        self._closed = False
        self._epoch = 0
        self._join()

    def _join(self) -> None:
        with self._store.write() as c:
            if self._owner is not None:
                c.execute(
                    "INSERT INTO owners VALUES (?, 1) ON CONFLICT (owner) DO UPDATE SET epoch = epoch + 1",
                    (self._owner,),
                )
                (self._epoch,) = c.execute("SELECT epoch FROM owners WHERE owner = ?", (self._owner,)).fetchone()
            if not self._assign_all:
                (last,) = c.execute(
                    "SELECT coalesce(max(joined), 0) FROM members WHERE grp = ?", (self._group,)
                ).fetchone()
                topics = ",".join(sorted({tp.topic for tp in self._partitions}))
                c.execute(
                    "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        self._group,
                        self._name,
                        last + 1,
                        now_ms(),
                        f"{_process()}#{self._owner or ''}#{self._epoch}",
                        topics,
                    ),
                )
                if self._owner is not None:
                    # An earlier member of the same slot is fenced already: do not wait for it to be missed.
                    rows = c.execute("SELECT member, process FROM members WHERE grp = ?", (self._group,)).fetchall()
                    for member, process in rows:
                        if member != self._name and process.split("#")[1] == self._owner:
                            self._put_out(c, member)

    def _put_out(self, c: sqlite3.Connection, member: str) -> None:
        c.execute("DELETE FROM members WHERE grp = ? AND member = ?", (self._group, member))
        c.execute("DELETE FROM assignments WHERE grp = ? AND member = ?", (self._group, member))

    def _check_epoch(self, c: sqlite3.Connection) -> None:
        if self._owner is None:
            return
        (epoch,) = c.execute("SELECT epoch FROM owners WHERE owner = ?", (self._owner,)).fetchone()
        if epoch != self._epoch:
            raise Fenced(f"a newer owner of {self._owner} took over (epoch {epoch}, this one has {self._epoch})")

    def _share(self, c: sqlite3.Connection) -> set[TopicPartition]:
        """What should be this member's: partitions dealt out to live members in the order they joined."""
        at = now_ms()
        members: list[str] = []
        rows = c.execute(
            "SELECT member, seen_ms, process FROM members WHERE grp = ? ORDER BY joined", (self._group,)
        ).fetchall()
        for member, seen_ms, process in rows:
            if member != self._name and (at - seen_ms > SESSION_MS or _gone(process.split("#")[0])):
                self._put_out(c, member)
            else:
                members.append(member)
        if self._name not in members:
            return set()
        mine = members.index(self._name)
        # By partition number, so that co-partitioned topics go to the same member.
        return {tp for tp in self._partitions if tp.partition % len(members) == mine}

    def _rebalance(self) -> None:
        if self._assign_all:
            if not self._positions:
                self._take(self._partitions)
            return
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        with self._store.write() as c:
            self._check_epoch(c)
            there = c.execute(
                "UPDATE members SET seen_ms = ? WHERE grp = ? AND member = ?", (now_ms(), self._group, self._name)
            ).rowcount
            if not there and self._owner is None:
                self._rejoin(c)
            share = self._share(c)
            rows = c.execute(
                "SELECT topic, partition, member FROM assignments WHERE grp = ?", (self._group,)
            ).fetchall()
            taken = {TopicPartition(t, p): m for t, p, m in rows}
        lost = sorted(tp for tp in self._positions if taken.get(tp) != self._name)
        if lost:
            self._drop(lost, lost=True)
        surplus = sorted(tp for tp in self._positions if tp not in share)
        if surplus:
            self._drop(surplus, lost=False)
            with self._store.write() as c:
                for tp in surplus:
                    c.execute(
                        "DELETE FROM assignments WHERE grp = ? AND topic = ? AND partition = ? AND member = ?",
                        (self._group, *tp, self._name),
                    )
            self._bell.ring()
        free = sorted(tp for tp in share if tp not in taken)
        if free:
            with self._store.write() as c:
                got = [
                    tp
                    for tp in free
                    if c.execute(
                        "INSERT OR IGNORE INTO assignments VALUES (?, ?, ?, ?)", (self._group, *tp, self._name)
                    ).rowcount
                ]
            if got:
                self._take(got)

    def _rejoin(self, c: sqlite3.Connection) -> None:
        """It was put out (it was silent for too long): join again under a new name, with nothing."""
        (last,) = c.execute("SELECT coalesce(max(joined), 0) FROM members WHERE grp = ?", (self._group,)).fetchone()
        self._name = uuid.uuid4().hex
        c.execute(
            "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?)",
            (self._group, self._name, last + 1, now_ms(), f"{_process()}##", ""),
        )

    def _take(self, partitions: Sequence[TopicPartition]) -> None:
        with self._store.read() as c:
            rows = c.execute(
                "SELECT topic, partition, position, metadata FROM positions WHERE grp = ?", (self._group,)
            ).fetchall()
            begins = {
                TopicPartition(t, p): int(b) for t, p, b in c.execute("SELECT topic, partition, begin_offset FROM ends")
            }
        known = {TopicPartition(t, p): Committed(o, m) for t, p, o, m in rows}
        start = self._listener.assigned({tp: known.get(tp) for tp in partitions})
        for tp in partitions:
            committed = known.get(tp)
            self._positions[tp] = start.get(tp, committed.offset if committed else begins[tp])

    def _drop(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        self._listener.revoked(partitions, lost=lost)
        for tp in partitions:
            self._positions.pop(tp, None)
            self._paused.discard(tp)

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        self._check_open()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._rebalance()
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            wait_ms = left_ms if self._assign_all else min(left_ms, int(LOOK_EVERY_S * 1000))
            positions = {tp: o for tp, o in self._positions.items() if tp not in self._paused}
            found = self._poll_blocks(positions, max_records, wait_ms)
            if found or time.monotonic() >= deadline:
                break
        for block in found:
            self._positions.pop(block.tp)
            self._positions[block.tp] = block.next_offset
        return found

    def commit(self, positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        self._check_open()
        if records and self._owner is None:
            raise Fatal("a member without an owner's name cannot write records with its positions")
        with self._store.write() as c:
            self._check_epoch(c)
            if not self._assign_all:
                for tp in positions:
                    row = c.execute(
                        "SELECT member FROM assignments WHERE grp = ? AND topic = ? AND partition = ?",
                        (self._group, *tp),
                    ).fetchone()
                    if row is None or row[0] != self._name:
                        raise Fenced(
                            f"{tp.topic}/{tp.partition} no longer belongs to this member of group {self._group}"
                        )
            append(c, records, self._robin)
            c.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
                [(self._group, tp.topic, tp.partition, at.offset, at.metadata) for tp, at in positions.items()],
            )
        if records:
            self._bell.ring()

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self._positions:
            raise Fatal(f"{partition.topic}/{partition.partition} is not assigned to this member")
        self._positions[partition] = offset

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def lag(self) -> Mapping[TopicPartition, int]:
        with self._store.read() as c:
            ends = {
                TopicPartition(t, p): int(e) for t, p, e in c.execute("SELECT topic, partition, end_offset FROM ends")
            }
        return {tp: max(0, ends[tp] - at) for tp, at in self._positions.items()}

    def _check_open(self) -> None:
        if self._closed:
            raise Fatal(f"this member of group {self._group} is closed")

    def close(self, timeout_ms: int) -> None:
        if self._closed:
            return
        try:
            if self._positions:
                self._drop(sorted(self._positions), lost=False)
            if not self._assign_all:
                with self._store.write() as c:
                    self._put_out(c, self._name)
                self._bell.ring()
        finally:
            self._closed = True
