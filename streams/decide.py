"""The single writer of a domain: inputs into the engine, entries and commands out, one transaction per batch.

Driven by `streams.runner`. Holds the engine's state; a failed commit throws it away with this object. Never reads a clock.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from schemas.codec import decode_rows, encode
from schemas.dead_letters import dead_letter
from schemas.errors import Poison, StorageFull, Transient, Where
from schemas.log import Log
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.records import EngineStarted, LedgerEntry
from schemas.snapshots import SnapshotStore, Stored
from streams.engine import EngineConfig, State, accept, commands, decide, evolve, next_wake, snapshot
from streams.engine.inspect import cards_milli
from streams.metrics import Metrics
from streams.replay import restore_state

# Changes first, so that jobs see the newest map; receipts before jobs, so that jobs find what was just freed.
ORDER: Final = ("changes", "receipts", "jobs")
# A batch is one transaction: small enough for tens of milliseconds, large enough to carry thousands a second.
MAX_RECORDS: Final = 2_000
# Not worth a snapshot: this many entries are evolved again in about ten milliseconds.
FEW_ENTRIES: Final = 1_000
# Counting cards looks at every node.
COUNT_EVERY_MS: Final = 5_000
# Entries after which one is: evolved again in a second after a restart.
SNAPSHOT_EVERY: Final = 100_000
_log = logging.getLogger("lockstep.decide")


class Decide:
    """The engine as a processor."""

    name = "decide"
    topics: tuple[str, ...] = ORDER
    assign_all = True
    max_records = MAX_RECORDS

    def __init__(
        self,
        domain: str,
        snapshots: SnapshotStore,
        *,
        version: str,
        partition: int = 0,
        config: EngineConfig | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
        snapshot_after_ms: int = 600_000,
        metrics: Metrics | None = None,
    ) -> None:
        self.group = f"decide.{domain}"
        self.owner = f"decide.{domain}"
        self._domain = domain
        self._snapshots = snapshots
        self._version = version
        self._partition = partition
        self._config = config or EngineConfig()
        self._snapshot_every = snapshot_every
        self._snapshot_after_ms = snapshot_after_ms
        self._snapshot_at = 0
        self._metrics = metrics or Metrics()
        self.state = State.empty(domain)
        self._snapshot_seq = 0
        self._log: Log | None = None
        self._decisions: Counter[str] = Counter()
        self._safe_position = 0
        self._counted_at = 0
        # seq of the snapshot that is being stored while decisions go on; 0: none.
        self._storing = 0

    def assigned(self, log: Log, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        restored = restore_state(log, self._domain, self._partition, self._snapshots)
        self.state = restored.state
        self._snapshot_seq = restored.snapshot_seq
        self._snapshot_at = self.state.at
        self._log = log
        self._safe_position = restored.position
        return {}

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Nothing: the state belongs to the whole domain and goes with this object."""

    def started(self, now: int) -> list[Record]:
        at = max(now, self.state.at)
        self._snapshot_at = self._snapshot_at or at
        entry = EngineStarted(self._domain, self.state.seq + 1, at, "", self._version, self._snapshot_seq)
        evolve(self.state, entry)
        return [self._ledger(entry)]

    def process(self, blocks: Sequence[Block], now: int, *, drained: bool) -> list[Record]:
        records: list[Record] = []
        for block in sorted(blocks, key=lambda b: (ORDER.index(b.topic), b.partition)):
            decoded = decode_rows(block)
            poison = decoded.poison
            source = f"{block.topic}/{block.partition}@"
            offsets = block.offsets
            for i, row in decoded.rows:
                try:
                    entries = accept(self.state, row, f"{source}{offsets[i]}", now)
                except Poison as e:
                    poison.append((i, Poison(e.code, e.reason, Where(block.topic, block.partition, offsets[i]))))
                    continue
                self._write(entries, records)
            for i, p in poison:
                records.append(dead_letter(block, i, p, self.name, now))
                self._metrics.add("lockstep_dead_letters_total", 1, self.name, p.code)
        self._write(decide(self.state, now, self._config), records)
        return records

    def tick(self, now: int) -> list[Record]:
        records: list[Record] = []
        wake = next_wake(self.state, self._config)
        if (wake is not None and wake <= now) or self.state.attention:
            self._write(decide(self.state, now, self._config), records)
        return records

    def _ledger(self, entry: LedgerEntry) -> Record:
        self._decisions[type(entry).__name__] += 1
        return Record("ledger", self._domain.encode(), encode(entry), self._partition)

    def _write(self, entries: Sequence[LedgerEntry], records: list[Record]) -> None:
        for entry in entries:
            records.append(self._ledger(entry))
            # In the ledger's partition: each more that a transaction touches makes it longer by half a millisecond.
            records += [
                Record("commands", c.node.encode(), encode(c), self._partition) for c in commands(self.state, entry)
            ]

    def committed(self) -> None:
        state = self.state
        for entry, n in self._decisions.items():
            self._metrics.add("lockstep_decisions_total", n, entry)
        self._decisions.clear()
        pending = sum(len(k) for k in state.line.values())
        self._metrics.set("lockstep_pending_jobs", pending)
        self._metrics.set("lockstep_running_jobs", len(state.jobs) - len(state.ended) - pending)
        if state.at - self._counted_at >= COUNT_EVERY_MS:
            self._counted_at = state.at
            total, free = cards_milli(state)
            self._metrics.set("lockstep_cards_milli", total, "total")
            self._metrics.set("lockstep_cards_milli", free, "free")
        since = state.seq - self._snapshot_seq
        # The rhythm is of the ledger's own time, so that it is the same when simulated.
        old = state.at - self._snapshot_at >= self._snapshot_after_ms
        due = since >= self._snapshot_every or (old and since >= FEW_ENTRIES)
        if self._none_is_being_stored() and due:
            self._store(self._snapshots.save_beside)

    def _none_is_being_stored(self) -> bool:
        if not self._storing:
            return True
        try:
            if not self._snapshots.finished():
                return False
            self._metrics.set("lockstep_snapshot_seq", self._storing)
        except StorageFull as e:
            self._told_of_no_snapshot(self._storing, e)
        self._storing = 0
        return True

    def _store(self, save: Callable[[Callable[[], Stored]], None]) -> None:
        """Store the committed state. The position kept with it was the ledger's end before these entries: early is safe."""
        assert self._log is not None
        state = self.state
        # Stored or not, the next try comes a whole rhythm later: a full disk must not cost every commit a try.
        self._snapshot_seq, self._snapshot_at = state.seq, state.at
        try:
            save(lambda: Stored(state.seq, self._safe_position, snapshot(state)))
        except StorageFull as e:
            self._told_of_no_snapshot(state.seq, e)
            return
        self._storing = state.seq
        # The log may be away by now; then the older one stays, which only makes a restore read more.
        with suppress(Transient):
            self._safe_position = self._log.span("ledger")[self._partition].end

    @staticmethod
    def _told_of_no_snapshot(seq: int, why: StorageFull) -> None:
        _log.warning("no snapshot of seq %d: %s; the ledger has it all, only a restart takes longer", seq, why)

    def closing(self) -> None:
        if self._log is not None and self.state.seq != self._snapshot_seq:
            self._store(lambda make: self._snapshots.save(make()))

    def next_wake(self) -> int | None:
        return next_wake(self.state, self._config)
