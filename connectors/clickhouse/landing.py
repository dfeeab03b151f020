"""Lands the ledger and the dead letters in ClickHouse: every message once, whoever dies when.

A worker for `streams.runner.Loop`, built by `infra.wiring`. It plans a range in the metadata of its committed position,
inserts the range table by table under tokens made of it, then confirms. After anything uncertain (its own restart, an
error, a time-out) it inserts the planned range again and counts it. It decodes nothing unless ClickHouse refuses a block.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from connectors.clickhouse._batch import Batch, Note, Plan, cut, read_note, sort_out
from connectors.clickhouse._inserting import Inserting
from connectors.clickhouse.client import PINNED, Database
from schemas.codec import IN_USE, SchemaIds, snake
from schemas.committing import commit_patiently
from schemas.dead_letters import dead_letter
from schemas.errors import Fatal, LockstepError, Transient
from schemas.health import Health
from schemas.log import Log, Member
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.records import LEDGER_TYPES, DeadLetter, Row

_log = logging.getLogger("lockstep.land")
GROUP: Final = "land"
TABLES: Final[Mapping[str, Mapping[type[Row], str]]] = {
    "ledger": {t: snake(t.__name__) for t in LEDGER_TYPES},
    "dead-letter": {DeadLetter: snake(DeadLetter.__name__)},
}
# An insert costs about twenty milliseconds for each table whatever its size: rows are gathered for a second, or until there are this
# many, or this many bytes (a dead letter may have megabytes).
MAX_ROWS: Final = 200_000
MAX_BYTES: Final = 64 << 20
LINGER_MS: Final = 1_000
LAG_EVERY_S: Final = 1.0


class Counters(Protocol):
    """Where landing counts; `streams.metrics.Metrics` is one."""

    def add(self, name: str, amount: float = 1.0, *labels: str) -> None: ...

    def set(self, name: str, value: float, *labels: str) -> None: ...

    def observe(self, name: str, value: float, *labels: str) -> None: ...


class Lander:
    """Reads `ledger` and `dead-letter` in group `land`, one transaction for each plan and each confirmation.

    `database` opens (or gives) ClickHouse; it is called again after `Transient`. `cluster` goes into tokens, so that two
    deployments with one ClickHouse never meet. `slot`: a newer lander of the same slot fences this one.
    """

    name = "land"
    group = GROUP

    def __init__(
        self,
        log: Log,
        database: Callable[[], Database],
        cluster: str,
        counters: Counters,
        *,
        slot: str = "0",
        max_rows: int = MAX_ROWS,
        linger_ms: int = LINGER_MS,
        ids: SchemaIds = IN_USE,
    ) -> None:
        self._log = log
        self._open = database
        self._counters = counters
        self._slot = slot
        self._max_rows = max_rows
        self._linger_ms = linger_ms
        self._ids = ids
        self._cluster = cluster
        self._inserting: Inserting | None = None
        self._member: Member | None = None
        self._lag_at = 0.0
        self._forget()

    def _forget(self) -> None:
        self._assigned = False
        self._broken = False
        self._paused = False
        self._held: dict[TopicPartition, list[Block]] = {}
        self._held_rows = self._held_bytes = 0
        self._held_since = -1
        # Plans of somebody who did not confirm them, each with the offset it begins at.
        self._left: dict[TopicPartition, tuple[int, Plan]] = {}
        # Rows up to here may be there under tokens that nobody knows.
        self._known: dict[TopicPartition, int] = {}
        self._planned: list[Batch] = []

    # ---- the group ----

    def assigned(self, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        """A plan left behind is done again; a partition without a position may have landed before all the same."""
        for tp, position in committed.items():
            if position is None:
                self._known[tp] = self._inserter().newest(tp, list(TABLES[tp.topic].values()))
                continue
            try:
                note = read_note(position.metadata)
            except ValueError as e:
                raise Fatal(
                    f"{tp.topic}/{tp.partition}: {e}; run the version that wrote it until it has landed everything"
                ) from e
            if note.known >= position.offset:
                self._known[tp] = note.known
            plan = note.plan
            if plan is None:
                continue
            span = self._log.span(tp.topic)[tp.partition]
            if span.end <= plan.last:
                raise Fatal(
                    f"{tp.topic}/{tp.partition} ends at {span.end}, but its landing was planned up to {plan.last}: the log was "
                    "replaced or cut short; give the new log a new group of topics (LOCKSTEP_TOPIC_PREFIX) and a new database"
                )
            if span.begin <= plan.last:
                self._left[tp] = position.offset, plan
        self._assigned = True
        return {}

    def revoked(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        """Whoever takes them over finds the plan in the committed position."""
        gone = set(partitions)
        for tp in gone:
            self._held.pop(tp, None)
            self._left.pop(tp, None)
            self._known.pop(tp, None)
        self._measure()
        self._planned = [b for b in self._planned if b.tp not in gone]

    def _join(self) -> Member:
        if self._member is None:
            self._member = self._log.member(self.group, tuple(TABLES), self, owner=f"{self.group}.{self._slot}")
        return self._member

    # ---- a step ----

    def step(self, now: int, timeout_ms: int) -> int:
        """Read, and land when there is enough or it has waited long enough. Returns messages read and rows landed."""
        begun = time.monotonic()
        if self._broken:
            self.reset()
        inserting = self._inserter()
        member = self._join()
        handled = self._read(member, now, timeout_ms)
        if not self._planned and self._due(now):
            self._plan(member)
        if not self._planned:
            return handled
        rows = sum(b.rows for b in self._planned)
        try:
            for batch in self._planned:
                inserting.insert(batch)
        except Transient as e:
            self._counters.add("lockstep_insert_retries_total", 1)
            _log.warning("rows of %s wait for ClickHouse: %s", ", ".join(b.tp.topic for b in self._planned), e)
            raise
        now += int((time.monotonic() - begun) * 1000)
        self._confirm(member, now)
        self._counters.observe("lockstep_step_seconds", time.monotonic() - begun, self.name)
        return handled + rows

    def _read(self, member: Member, now: int, timeout_ms: int) -> int:
        """Poll; with a plan that waits for ClickHouse only to stay in the group."""
        if self._planned:
            member.pause(sorted(member.assignment()))
            self._paused = True
            blocks = member.poll(1, 0)
        else:
            if self._paused:
                member.resume(sorted(member.assignment()))
                self._paused = False
            blocks = member.poll(max(1, self._max_rows - self._held_rows), timeout_ms)
        handled = 0
        for block in blocks:
            self._held.setdefault(block.tp, []).append(block)
            handled += len(block)
            self._counters.add("lockstep_records_total", len(block), self.name, block.topic)
        if handled and self._held_since < 0:
            self._held_since = now
        self._held_rows += handled
        self._held_bytes += sum(map(_bytes, blocks))
        if time.monotonic() >= self._lag_at:
            self._lag_at = time.monotonic() + LAG_EVERY_S
            self.lag_records()
        return handled

    def _measure(self) -> None:
        held = [b for blocks in self._held.values() for b in blocks]
        self._held_rows, self._held_bytes = sum(map(len, held)), sum(map(_bytes, held))

    def _due(self, now: int) -> bool:
        if not self._held:
            return False
        full = self._held_rows >= self._max_rows or self._held_bytes >= MAX_BYTES
        return full or now - self._held_since >= self._linger_ms or bool(self._left)

    def _plan(self, member: Member) -> None:
        """Make batches of what is held, and commit what they will be before anything of them is inserted."""
        fresh: dict[TopicPartition, Committed] = {}
        batches: list[Batch] = []
        held, self._held = self._held, {}
        for tp, blocks in held.items():
            left = self._left.get(tp)
            if left is not None:
                first, plan = left
                if blocks[-1].offsets[-1] < plan.last:
                    self._held[tp] = blocks  # not yet the whole range that was planned
                    continue
                whole, after = _split(blocks, plan.last)
                if after:
                    self._held[tp] = after
                # From where it was planned, not from what retention left of it: the same tokens.
                batch = self._batch(tp, whole, plan, first)
                batch.uncertain = True
                del self._left[tp]
            else:
                plan = Plan(blocks[-1].offsets[-1], uuid.uuid4().hex[:12])
                batch = self._batch(tp, blocks, plan, blocks[0].offsets[0])
                fresh[tp] = Committed(batch.first, self._note(tp, batch.first, plan))
            batch.present = batch.first <= self._known.get(tp, -1)
            batches.append(batch)
        self._measure()
        if not self._held:
            self._held_since = -1
        if fresh:
            self._commit(member, fresh, [])
        self._planned = batches

    def _note(self, tp: TopicPartition, offset: int, plan: Plan | None = None) -> str:
        known = self._known.get(tp, -1)
        return Note(plan, known if known >= offset else -1).metadata()

    def _batch(self, tp: TopicPartition, blocks: list[Block], plan: Plan, first: int) -> Batch:
        parts, poison = sort_out(blocks, TABLES, self._ids)
        return Batch(tp, first, plan, blocks[-1].next_offset, blocks[0].oldest_ms, parts, poison, blocks)

    def _confirm(self, member: Member, now: int) -> None:
        batches, letters = self._planned, list[Record]()
        for batch in batches:
            for block, i, poison in batch.poison:
                letters.append(dead_letter(block, i, poison, self.name, now))
                self._counters.add("lockstep_dead_letters_total", 1, self.name, poison.code)
        self._commit(
            member, {b.tp: Committed(b.next_offset, self._note(b.tp, b.next_offset)) for b in batches}, letters
        )
        self._planned = []
        for batch in batches:
            for part in batch.parts:
                self._counters.add("lockstep_landed_rows_total", len(part.offsets), part.table)
            if batch.filled:
                self._counters.add("lockstep_gaps_filled_total", batch.filled)
        self._counters.observe("lockstep_batch_records", sum(b.rows for b in batches), self.name)
        oldest = min(b.appended_ms for b in batches)
        self._counters.set("lockstep_landing_delay_seconds", max(0.0, (now - oldest) / 1000))

    def _commit(self, member: Member, positions: Mapping[TopicPartition, Committed], records: Sequence[Record]) -> None:
        """Raises what a member raises; then everything is read again."""
        try:
            took_s = commit_patiently(member, positions, records)
        except LockstepError:
            self._broken = True
            raise
        self._counters.observe("lockstep_commit_seconds", took_s, self.name)

    def _inserter(self) -> Inserting:
        if self._inserting is None:
            database = self._open()
            ready(database)
            self._inserting = Inserting(database, self._cluster)
        return self._inserting

    # ---- worker ----

    def lag_records(self) -> int:
        """Messages that are there and not yet landed; also sets the gauges."""
        if self._member is None:
            return 0
        lag = dict.fromkeys(TABLES, 0)
        for tp, n in self._member.lag().items():
            held = sum(len(b) for b in self._held.get(tp, [])) + sum(b.rows for b in self._planned if b.tp == tp)
            lag[tp.topic] += n + held
        for topic, n in lag.items():
            self._counters.set("lockstep_lag_records", n, self.name, topic)
        return sum(lag.values())

    def reset(self) -> None:
        """Leave the group and forget; the next step finds what was planned in the committed positions."""
        self._counters.add("lockstep_restarts_total", 1, self.name, "uncommitted")
        member, self._member = self._member, None
        self._forget()
        if member is not None:
            try:
                member.close(1_000)
            except LockstepError as e:
                _log.debug("closing a failed member: %s", e)

    def health(self) -> Health:
        if self._inserting is None:
            return Health(True, False, "waits for ClickHouse")
        if self._planned:
            return Health(True, False, "a planned range waits for ClickHouse")
        return Health(True, self._assigned, "has its partitions" if self._assigned else "waits for partitions")

    def close(self, timeout_ms: int) -> None:
        """Land what is held, if that goes at once, and leave the group. What does not land now lands after the next start."""
        if self._member is None:
            return
        end = time.monotonic() + timeout_ms / 1000
        try:
            if self._held and not self._planned and not self._broken and timeout_ms:
                self._linger_ms = 0
                self.step(time.time_ns() // 1_000_000, 0)
        except LockstepError as e:
            _log.warning("the last rows land after the next start: %s", e)
        self._member.close(max(0, int((end - time.monotonic()) * 1000)))
        self._member = None
        self._forget()


def ready(database: Database) -> None:
    """Check what landing rests on. Raises `Transient` when tables or columns are missing, `Fatal` when a setting that
    exactly-once needs cannot be had."""
    wanted, found = database.pinned(), database.landing_settings()
    wrong = {k: found.get(k, "nothing") for k, v in wanted.items() if found.get(k) != v}
    if wrong:
        told = ", ".join(f"{k} must be {PINNED[k]} and is {v}" for k, v in sorted(wrong.items()))
        raise Fatal(f"{database.name} does not allow the settings that exactly-once landing needs: {told}")
    tables = {t: record for topic in TABLES.values() for record, t in topic.items()}
    columns: dict[str, set[str]] = {}
    for table, column in database.query(
        "SELECT table, name FROM system.columns WHERE database = {d:String}", {"d": database.database}
    ).rows:
        columns.setdefault(str(table), set()).add(str(column))
    for table, record in tables.items():
        missing = {*record._fields, "_topic", "_partition", "_offset", "_schema_id"} - columns.get(table, set())
        if missing:
            what = (
                f"has no table {table}"
                if table not in columns
                else f"lacks {', '.join(sorted(missing))} in table {table}"
            )
            raise Transient(f"{database.name} {what}; run `lockstep migrate`", 2_000)
    engines = database.query(
        "SELECT name, engine_full FROM system.tables WHERE database = {d:String} AND name IN {t:Array(String)}",
        {"d": database.database, "t": list(tables)},
    )
    for name, engine in engines.rows:
        if "deduplication_window" not in str(engine) and not str(engine).startswith("Replicated"):
            raise Fatal(
                f"table {name} of {database.name} forgets insert tokens: it needs non_replicated_deduplication_window; "
                f"run ALTER TABLE {database.database}.{name} MODIFY SETTING non_replicated_deduplication_window = 1000"
            )


def _bytes(block: Block) -> int:
    return sum([len(v) for v in block.values if v is not None])


def _split(blocks: list[Block], last: int) -> tuple[list[Block], list[Block]]:
    before: list[Block] = []
    after: list[Block] = []
    for block in blocks:
        first, rest = cut(block, last)
        before += [first] if first is not None else []
        after += [rest] if rest is not None else []
    return before, after
