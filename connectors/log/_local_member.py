"""`Member` on a store: polling, rebalancing delta first, committing positions and records as one transaction.

`LocalLog.member` makes it; processors and landing drive it through `schemas.log.Member`. Who may commit is decided by
its `Seat` inside the same transaction, so a stale member never writes anything.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from connectors.log._group import Seat
from connectors.log._store import Store, append
from schemas.errors import Fatal
from schemas.log import Listener
from schemas.messages import Block, Committed, Record, TopicPartition

if TYPE_CHECKING:
    from connectors.log._local import Bell

# How soon a change of the group is noticed: looking is one cheap read.
LOOK_EVERY_S: Final = 0.1
PollBlocks = Callable[[Mapping[TopicPartition, int], int, int], list[Block]]


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
        session_ms: int,
        poll_blocks: PollBlocks,
    ) -> None:
        self._store = store
        self._bell = bell
        self._group = group
        self._listener = listener
        self._owner = owner
        self._poll_blocks = poll_blocks
        self._seat = Seat(store, group, partitions, owner=owner, shared=not assign_all, session_ms=session_ms)
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._robin = [-1]
        self._look_at = 0.0
        self._closed = False

    def _rebalance(self) -> None:
        now = time.monotonic()
        if now < self._look_at:
            return
        look = self._seat.look()
        lost = sorted(self._positions.keys() - look.mine)
        if lost:
            self._drop(lost, lost=True)
        surplus = sorted(self._positions.keys() - look.share)
        if surplus:
            self._drop(surplus, lost=False)
        # By the table, not by what was just dropped: `revoked` may have raised the time before.
        if look.mine - look.share:
            self._seat.give_up(look.mine - look.share)
            self._bell.ring()
        if look.free:
            self._seat.claim(look.free)
            look = self._seat.look()
        # Also what was claimed before, when `assigned` raised at that time.
        fresh = sorted((look.share & look.mine) - self._positions.keys())
        if fresh:
            self._take(fresh)
        self._look_at = time.monotonic() + LOOK_EVERY_S

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
        try:
            self._listener.revoked(partitions, lost=lost)
        finally:
            for tp in partitions:
                self._positions.pop(tp, None)
                self._paused.discard(tp)

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        self._check_open()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._rebalance()
            left_ms = max(0, int((deadline - time.monotonic()) * 1000))
            positions = {tp: o for tp, o in self._positions.items() if tp not in self._paused}
            found = self._poll_blocks(positions, max_records, min(left_ms, int(LOOK_EVERY_S * 1000)))
            if found or time.monotonic() >= deadline:
                break
        for block in found:
            # The partition just read goes to the end of the line, so that a busy one cannot starve the rest.
            self._positions.pop(block.tp)
            self._positions[block.tp] = block.next_offset
        return found

    def commit(self, positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        self._check_open()
        if records and self._owner is None:
            raise Fatal("a member without an owner's name cannot write records with its positions")
        with self._store.write() as c:
            self._seat.check(c, positions.keys())
            append(c, records, self._robin)
            c.executemany(
                "INSERT OR REPLACE INTO positions (grp, topic, partition, position, metadata) VALUES (?, ?, ?, ?, ?)",
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
            rows = c.execute("SELECT topic, partition, begin_offset, end_offset FROM ends").fetchall()
        spans = {TopicPartition(t, p): (int(b), int(e)) for t, p, b, e in rows}
        return {tp: max(0, spans[tp][1] - max(at, spans[tp][0])) for tp, at in self._positions.items()}

    def _check_open(self) -> None:
        if self._closed:
            raise Fatal(f"this member of group {self._group} is closed")

    def close(self, timeout_ms: int) -> None:
        if self._closed:
            return
        try:
            mine = self._seat.still_mine(self._positions)
            lost = sorted(self._positions.keys() - mine)
            if lost:
                self._drop(lost, lost=True)
            if mine:
                self._drop(sorted(mine), lost=False)
        finally:
            self._closed = True
            self._seat.leave()
            self._bell.ring()
