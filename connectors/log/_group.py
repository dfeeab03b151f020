"""A member's seat in its group: who is there, whose is which partition, who is fenced.

Sharing is cooperative: a partition belongs to the member whose name stands in `assignments`; a member gives up what is no
longer its share (after `revoked`) by taking its name away, and takes what is its share and nobody's. `LocalMember` looks
on each poll. It never moves another live member's partitions: only the silent and the dead are put out.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connectors.log._store import Store
from schemas.errors import Fenced
from schemas.messages import TopicPartition

# A dead process is noticed at once (its start time is gone); this is for threads that hang, like Kafka's
# `max.poll.interval.ms`.
SESSION_MS: Final = 300_000


def _alive_ms() -> int:
    """Milliseconds since the machine started: the same clock in every process of it, and nobody sets it."""
    return time.monotonic_ns() // 1_000_000


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return "?"


def _namespace() -> str:
    """Process numbers mean something only inside one of these (a container has its own)."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "?"


def this_process() -> str:
    """This process, told apart from a later one with the same number by its start time."""
    pid = os.getpid()
    return f"{_namespace()}/{pid}/{_started(pid)}"


def gone(process: str) -> bool:
    """Whether that process has surely ended; False when it cannot be known from here."""
    namespace, pid, started = process.split("/")
    if started == "?" or namespace != _namespace():
        return False
    return _started(int(pid)) != started


@dataclass(frozen=True, slots=True)
class Look:
    """What a member sees: `share` should be its own, `mine` is, `free` is nobody's."""

    share: frozenset[TopicPartition]
    mine: frozenset[TopicPartition]
    free: frozenset[TopicPartition]


class Seat:
    """The rows of one member in the tables of its group. `shared` False: it takes everything, only fencing counts."""

    def __init__(
        self,
        store: Store,
        group: str,
        partitions: Sequence[TopicPartition],
        *,
        owner: str | None,
        shared: bool,
        session_ms: int,
    ) -> None:
        self._store = store
        self._group = group
        self._partitions = frozenset(partitions)
        self._topics = ",".join(sorted({tp.topic for tp in partitions}))
        self._owner = owner
        self._shared = shared
        self._session_ms = session_ms
        self._name = uuid.uuid4().hex
        self._epoch = 0
        self._beat_ms = 0
        with store.write() as c:
            if owner is not None:
                c.execute(
                    "INSERT INTO owners VALUES (?, 1) ON CONFLICT (owner) DO UPDATE SET epoch = epoch + 1", (owner,)
                )
                (self._epoch,) = c.execute("SELECT epoch FROM owners WHERE owner = ?", (owner,)).fetchone()
                # An earlier member of the same slot is fenced from here on: do not wait until it is missed.
                earlier = c.execute("SELECT grp, member FROM members WHERE owner = ?", (owner,)).fetchall()
                for grp, member in earlier:
                    self._put_out(c, grp, member)
            if shared:
                self._sit(c)

    def _sit(self, c: sqlite3.Connection) -> None:
        (last,) = c.execute("SELECT coalesce(max(joined), 0) FROM members WHERE grp = ?", (self._group,)).fetchone()
        self._beat_ms = _alive_ms()
        c.execute(
            "INSERT INTO members (grp, member, joined, seen_ms, process, owner, topics) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._group, self._name, last + 1, self._beat_ms, this_process(), self._owner, self._topics),
        )

    @staticmethod
    def _put_out(c: sqlite3.Connection, group: str, member: str) -> None:
        c.execute("DELETE FROM members WHERE grp = ? AND member = ?", (group, member))
        c.execute("DELETE FROM assignments WHERE grp = ? AND member = ?", (group, member))

    def _check_epoch(self, c: sqlite3.Connection) -> None:
        if self._owner is None:
            return
        (epoch,) = c.execute("SELECT epoch FROM owners WHERE owner = ?", (self._owner,)).fetchone()
        if epoch != self._epoch:
            raise Fenced(f"a newer owner of {self._owner} took over (epoch {epoch}, this one has {self._epoch})")

    def _missing(self, seen_ms: int, process: str, at_ms: int) -> bool:
        # A time ahead of ours was written before the machine was started again.
        return at_ms - seen_ms > self._session_ms or seen_ms > at_ms or gone(process)

    def check(self, c: sqlite3.Connection, partitions: Collection[TopicPartition]) -> None:
        """Inside a commit: raises `Fenced` unless the slot and these partitions are this member's."""
        self._check_epoch(c)
        if not self._shared:
            return
        rows = c.execute(
            "SELECT topic, partition FROM assignments WHERE grp = ? AND member = ?", (self._group, self._name)
        )
        strange = set(partitions) - {TopicPartition(t, p) for t, p in rows}
        if strange:
            tp = min(strange)
            raise Fenced(f"{tp.topic}/{tp.partition} does not belong to this member of group {self._group} any more")
        self._beat(c)

    def _beat(self, c: sqlite3.Connection) -> None:
        at = _alive_ms()
        if at - self._beat_ms >= self._session_ms // 10:
            c.execute("UPDATE members SET seen_ms = ? WHERE grp = ? AND member = ?", (at, self._group, self._name))
            self._beat_ms = at

    def look(self) -> Look:
        """See the group as it is now; tell it that this member lives; put out who does not. Raises `Fenced`."""
        at = _alive_ms()
        with self._store.read() as c:
            self._check_epoch(c)
            if not self._shared:
                return Look(self._partitions, self._partitions, frozenset())
            members = self._members(c)
            there = any(m == self._name for m, *_ in members)
            missing = [m for m, seen, process, _ in members if m != self._name and self._missing(seen, process, at)]
            if there and not missing and at - self._beat_ms < self._session_ms // 10:
                return self._see(c, members)
        with self._store.write() as c:
            self._check_epoch(c)
            for member, seen, process, _ in self._members(c):
                if member in missing and self._missing(seen, process, at):
                    self._put_out(c, self._group, member)
            members = self._members(c)
            if any(m == self._name for m, *_ in members):
                self._beat(c)
            else:
                # It was put out (silent for too long): it sits down again under a new name, with nothing.
                self._name = uuid.uuid4().hex
                self._sit(c)
                members = self._members(c)
            return self._see(c, members)

    def _members(self, c: sqlite3.Connection) -> list[tuple[str, int, str, str]]:
        return c.execute(
            "SELECT member, seen_ms, process, topics FROM members WHERE grp = ? ORDER BY joined", (self._group,)
        ).fetchall()

    def _see(self, c: sqlite3.Connection, members: Sequence[tuple[str, int, str, str]]) -> Look:
        readers: dict[str, list[str]] = {}
        for member, _, _, topics in members:
            for topic in topics.split(","):
                readers.setdefault(topic, []).append(member)
        # By partition number, so that co-partitioned topics go to the same member.
        share = {tp for tp in self._partitions if self._dealt(readers[tp.topic], tp.partition) == self._name}
        rows = c.execute("SELECT topic, partition, member FROM assignments WHERE grp = ?", (self._group,))
        taken = {TopicPartition(t, p): m for t, p, m in rows}
        return Look(
            frozenset(share),
            frozenset(tp for tp, m in taken.items() if m == self._name),
            frozenset(tp for tp in share if tp not in taken),
        )

    @staticmethod
    def _dealt(members: Sequence[str], partition: int) -> str:
        return members[partition % len(members)]

    def claim(self, partitions: Collection[TopicPartition]) -> None:
        """Take those of the partitions that are still nobody's."""
        with self._store.write() as c:
            self._check_epoch(c)
            if not c.execute(
                "SELECT 1 FROM members WHERE grp = ? AND member = ?", (self._group, self._name)
            ).fetchone():
                return
            c.executemany(
                "INSERT OR IGNORE INTO assignments (grp, topic, partition, member) VALUES (?, ?, ?, ?)",
                [(self._group, *tp, self._name) for tp in partitions],
            )

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        with self._store.write() as c:
            c.executemany(
                "DELETE FROM assignments WHERE grp = ? AND topic = ? AND partition = ? AND member = ?",
                [(self._group, *tp, self._name) for tp in partitions],
            )

    def still_mine(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those that this member may still commit."""
        with self._store.read() as c:
            try:
                self._check_epoch(c)
            except Fenced:
                return set()
            if not self._shared:
                return set(partitions)
            rows = c.execute(
                "SELECT topic, partition FROM assignments WHERE grp = ? AND member = ?", (self._group, self._name)
            )
            return set(partitions) & {TopicPartition(t, p) for t, p in rows}

    def leave(self) -> None:
        if self._shared:
            with self._store.write() as c:
                self._put_out(c, self._group, self._name)
