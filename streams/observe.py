"""Live state of nodes and links: many samples in, few facts out.

Telemetry is handled by columns. What observe has told (`changes`) is also its changelog: a partition's state is restored
from the partition of the same number. Driven by `streams.runner`; never reads a clock.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
import polars as pl

from schemas.codec import decode_columns, decode_rows, encode
from schemas.dead_letters import dead_letter
from schemas.errors import Corrupted, Fatal, Poison, Where
from schemas.log import Log
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.records import (
    LinkChanged,
    LinkRegistered,
    LinkRemoved,
    LinkTelemetry,
    NodeChanged,
    NodeRegistered,
    NodeRemoved,
    NodeTelemetry,
    Row,
)
from streams._links import Link, Smooth
from streams._observed import STATE_OF, UNKNOWN, NodeTable, described, newer, set_right
from streams._plausible import DAY_MS, check_node, more_than_registered, newest, possible
from streams.metrics import Metrics
from streams.replay import read_up_to

SILENCE_MS: Final = 90_000
MAX_RECORDS: Final = 100_000


Told = TypeVar("Told", NodeChanged, LinkChanged)


class _Partition:
    """All that is known of one partition number."""

    def __init__(self) -> None:
        self.nodes = NodeTable()
        self.links: dict[str, Link] = {}


class Observe:
    """Observe as a processor. Several share the partitions; each needs a slot name of its own."""

    name = "observe"
    group = "observe"
    topics: tuple[str, ...] = ("resources", "resource-telemetry", "links", "link-telemetry")
    assign_all = False
    max_records = MAX_RECORDS

    def __init__(self, slot: str = "0", *, silence_ms: int = SILENCE_MS, metrics: Metrics | None = None) -> None:
        self.owner = f"observe.{slot}"
        self._silence_ms = silence_ms
        self._metrics = metrics or Metrics()
        self._partitions: dict[int, _Partition] = {}
        self._last_now = 0

    def assigned(self, log: Log, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        spans = log.span("changes")
        for number in sorted({tp.partition for tp in committed} - set(self._partitions)):
            if number not in spans:
                raise Fatal(
                    f"`changes` has no partition {number}: it needs as many as the topics it is the changelog of"
                )
            partition = _Partition()
            where = TopicPartition("changes", number)
            for block in read_up_to(log, where, spans[number].begin, spans[number].end):
                decoded = decode_rows(block)
                if decoded.poison:
                    raise Corrupted(f"the changelog holds a message that is not a change: {decoded.poison[0][1]}")
                for _, row in decoded.rows:
                    _remember(partition, row)
            self._partitions[number] = partition
        # Nobody was listening just now: silence counts from the first `now` after this.
        self._last_now = 0
        return {}

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._partitions.pop(tp.partition, None)

    def started(self, now: int) -> list[Record]:
        return []

    def committed(self) -> None:
        """Nothing waits for it."""

    def closing(self) -> None:
        """Nothing to store: the changelog has it."""

    def next_wake(self) -> int | None:
        heard = [
            int(p.nodes.heard_ms[: len(p.nodes.index)][quiet].min())
            for p in self._partitions.values()
            if (quiet := p.nodes.registered[: len(p.nodes.index)] & ~p.nodes.silent[: len(p.nodes.index)]).any()
        ]
        return min(heard) + self._silence_ms + 1 if heard else None

    def process(self, blocks: Sequence[Block], now: int, *, drained: bool) -> list[Record]:
        self._begin(now)
        out: list[Record] = []
        # Descriptions before samples, so that a node's first samples find it registered.
        for block in sorted(blocks, key=lambda b: b.topic.endswith("telemetry")):
            if block.topic == "resource-telemetry":
                self._telemetry(block, now, out)
            else:
                self._rows(block, now, out)
        if drained:
            self._silence(now, out)
        return out

    def tick(self, now: int) -> list[Record]:
        self._begin(now)
        out: list[Record] = []
        self._silence(now, out)
        return out

    def _begin(self, now: int) -> None:
        if self._last_now == 0:
            for p in self._partitions.values():
                p.nodes.hear(now)
                for link in p.links.values():
                    link.heard_ms = now
        elif now < self._last_now:
            for p in self._partitions.values():
                p.nodes.earlier(now)
                for link in p.links.values():
                    link.heard_ms = min(link.heard_ms, now)
        self._last_now = now

    def _of(self, number: int) -> _Partition:
        return self._partitions.setdefault(number, _Partition())

    def _dead(self, block: Block, poison: Sequence[tuple[int, Poison]], now: int, out: list[Record]) -> None:
        for i, p in poison:
            out.append(dead_letter(block, i, p, self.name, now))
            self._metrics.add("lockstep_dead_letters_total", 1, self.name, p.code)

    def _tell_node(self, number: int, change: NodeChanged, now: int, out: list[Record]) -> None:
        self._of(number).nodes.remember(change, now)
        out.append(Record("changes", b"node/" + change.node.encode(), encode(change), number))

    def _tell_link(self, number: int, link: Link, change: LinkChanged, out: list[Record]) -> None:
        link.told = change
        link.sampled_ms = max(link.sampled_ms, change.at)
        link.described_ms = max(link.described_ms, change.described_at)
        out.append(Record("changes", b"link/" + change.link.encode(), encode(change), number))

    # --- telemetry of nodes, by columns -----------------------------------------------------------------------------

    def _telemetry(self, block: Block, now: int, out: list[Record]) -> None:
        found, poison = decode_columns(block)
        table = self._of(block.partition).nodes
        for columns in found:
            if columns.record is not NodeTelemetry:
                poison += [(int(i), _misplaced(columns.record, block)) for i in columns.index]
                continue
            frame, bad = possible(columns, block, now)
            poison += bad
            if len(frame):
                poison += self._samples(block, table, frame, now, out)
        self._dead(block, sorted(poison, key=lambda p: p[0]), now, out)

    def _samples(
        self, block: Block, table: NodeTable, frame: pl.DataFrame, now: int, out: list[Record]
    ) -> list[tuple[int, Poison]]:
        """Take samples whose figures can be. Returns those that contradict their node's registration."""
        latest = newest(frame)
        rows = table.rows(latest["node"].to_list())
        cards = table.cards[rows]
        too_many = (latest["most_healthy"].to_numpy() > cards) & (cards != UNKNOWN)
        poison: list[tuple[int, Poison]] = []
        if too_many.any():
            limits = pl.DataFrame({"node": latest["node"].filter(pl.Series(too_many)), "registered": cards[too_many]})
            frame, poison = more_than_registered(frame, limits, block)
            latest = newest(frame)
            rows = table.rows(latest["node"].to_list())
        counter = latest["counter"].to_numpy()
        healthy = latest["cards_healthy"].to_numpy().astype(np.int64)
        at = latest["at"].to_numpy()
        fresh = np.asarray(newer(counter, at, table.counter[rows], table.sampled_ms[rows], now))
        if not fresh.all():
            self._metrics.add("lockstep_stale_samples_total", float((~fresh).sum()), self.name)
        known = table.registered[rows]
        if not known.all():
            self._metrics.add(
                "lockstep_unregistered_samples_total", float(latest["len"].to_numpy()[~known].sum()), self.name
            )
        changed = fresh & known & (table.silent[rows] | (table.told_healthy[rows] != healthy))
        hit = rows[fresh]
        table.counter[hit] = counter[fresh]
        table.sampled_ms[hit] = at[fresh]
        table.healthy[hit] = healthy[fresh]
        table.heard_ms[hit] = now
        if changed.any():
            for k in np.flatnonzero(changed).tolist():
                told = table.described[int(rows[k])]
                assert told is not None
                change = _with_sample(told, int(healthy[k]), int(counter[k]), int(at[k]))
                self._tell_node(block.partition, change, now, out)
        return poison

    # --- registrations and links, row by row -----------------------------------------------------------------------

    def _rows(self, block: Block, now: int, out: list[Record]) -> None:
        decoded = decode_rows(block)
        poison = decoded.poison
        for i, row in decoded.rows:
            try:
                if row.at > now + DAY_MS:
                    raise Poison("from_the_future", f"the event's time is more than a day ahead of the clock ({now})")
                self._row(block, row, now, out)
            except Poison as e:
                poison.append((i, Poison(e.code, e.reason, Where(block.topic, block.partition, block.offsets[i]))))
        self._dead(block, sorted(poison, key=lambda p: p[0]), now, out)

    def _row(self, block: Block, row: Row, now: int, out: list[Record]) -> None:
        partition = self._of(block.partition)
        if block.topic == "resources" and isinstance(row, NodeRegistered):
            self._registered(block.partition, partition.nodes, row, now, out)
        elif block.topic == "resources" and isinstance(row, NodeRemoved):
            place = partition.nodes.index.get(row.node)
            told = None if place is None else partition.nodes.described[place]
            if place is None or told is None or self._overtaken(row.at, int(partition.nodes.described_ms[place]), now):
                return
            if told.state != "removed":
                self._tell_node(block.partition, _gone(told, row), now, out)
        elif block.topic == "links" and isinstance(row, LinkRegistered):
            self._link_registered(block.partition, partition, row, now, out)
        elif block.topic == "links" and isinstance(row, LinkRemoved):
            link = partition.links.get(row.link)
            if link is None or link.told is None or self._overtaken(row.at, link.described_ms, now):
                return
            if link.told.state != "removed":
                self._tell_link(block.partition, link, _gone(link.told, row), out)
        elif block.topic == "link-telemetry" and isinstance(row, LinkTelemetry):
            self._link_sample(block.partition, partition, row, now, out)
        else:
            raise _misplaced(type(row), block)

    def _registered(self, number: int, table: NodeTable, row: NodeRegistered, now: int, out: list[Record]) -> None:
        check_node(row)
        (i,) = table.rows([row.node])
        if self._overtaken(row.at, int(table.described_ms[i]), now):
            return
        told = table.described[i]
        reason = "registered" if told is None else "registered anew"
        change = described(row, int(table.healthy[i]), int(table.counter[i]), reason)
        if told is not None and told.state == "silent" and change.state == "up":
            change = change._replace(reason="registered again after silence")
        # A registration that says what is known already is a heartbeat, not a change.
        if told is None or told[2:20] != change[2:20]:
            self._tell_node(number, change, now, out)
        else:
            table.heard_ms[i] = now
            table.described_ms[i] = max(table.described_ms[i], change.described_at)

    def _overtaken(self, at: int, described_ms: int, now: int) -> bool:
        """Whether a description or removal is older than what is known: doubled, or late."""
        if at >= described_ms or set_right(at, described_ms, now):
            return False
        self._metrics.add("lockstep_stale_descriptions_total", 1, self.name)
        return True

    def _link_registered(
        self, number: int, partition: _Partition, row: LinkRegistered, now: int, out: list[Record]
    ) -> None:
        figures = (row.capacity_gbps, row.base_latency_ms, row.cost_usd_per_gb)
        if not row.link or not all(math.isfinite(f) and f >= 0 for f in figures) or row.capacity_gbps == 0:
            raise Poison(
                "impossible_value", f"link {row.link!r}: capacity must be positive, latency and cost not negative"
            )
        if row.admin_state not in STATE_OF:
            raise Poison(
                "impossible_value",
                f"link {row.link}: admin_state {row.admin_state!r} is not one of {', '.join(STATE_OF)}",
            )
        link = partition.links.setdefault(row.link, Link())
        if self._overtaken(row.at, link.described_ms, now):
            return
        link.heard_ms = now
        link.described_ms = row.at
        used = link.used.mean if link.used else 0.0
        latency = link.latency.mean if link.latency else row.base_latency_ms
        change = LinkChanged(
            row.link, row.at, row.domain, *row[3:8], state=STATE_OF[row.admin_state], used_gbps=used, latency_ms=latency,
            reason="registered" if link.told is None else "registered anew", counter=link.counter,
            described_at=link.described_ms,
        )  # fmt: skip
        if link.told is None or link.told[2:9] != change[2:9]:
            self._tell_link(number, link, change, out)

    def _link_sample(self, number: int, partition: _Partition, row: LinkTelemetry, now: int, out: list[Record]) -> None:
        if (
            not all(math.isfinite(f) and f >= 0 for f in (row.used_gbps, row.latency_ms, row.loss_pct))
            or row.loss_pct > 100
        ):
            raise Poison(
                "impossible_value", f"link {row.link}: use, latency or loss is negative, above 100 % or not a number"
            )
        link = partition.links.setdefault(row.link, Link())
        if not link.add(row, now):
            self._metrics.add("lockstep_stale_samples_total", 1, self.name)
        elif link.told is None or link.told.state == "removed":
            self._metrics.add("lockstep_unregistered_samples_total", 1, self.name)
        elif link.material():
            assert link.used is not None
            assert link.latency is not None
            state = "up" if link.told.state == "silent" else link.told.state
            change = link.told._replace(
                at=row.at, state=state, used_gbps=link.used.mean, latency_ms=link.latency.mean, counter=row.counter,
                reason="use or latency moved" if state == link.told.state else "heard again",
            )  # fmt: skip
            self._tell_link(number, link, change, out)

    def _silence(self, now: int, out: list[Record]) -> None:
        for number, partition in self._partitions.items():
            table = partition.nodes
            for i in table.overdue(now, self._silence_ms):
                told = table.described[i]
                assert told is not None
                quiet_s = (now - int(table.heard_ms[i])) / 1000
                silent = told._replace(
                    at=now, state="silent", reason=f"no sample for {quiet_s:.0f} s", counter=int(table.counter[i])
                )
                self._tell_node(number, silent, int(table.heard_ms[i]), out)
            for link in partition.links.values():
                # A link that was never sampled is not silent: not every link has a probe.
                if (
                    link.told is not None
                    and link.used is not None
                    and link.told.state == "up"
                    and now - link.heard_ms > self._silence_ms
                ):
                    self._tell_link(
                        number, link, link.told._replace(at=now, state="silent", reason="no sample in time"), out
                    )


def _remember(partition: _Partition, row: Row) -> None:
    if isinstance(row, NodeChanged):
        partition.nodes.remember(row, 0)
    elif isinstance(row, LinkChanged):
        link = partition.links.setdefault(row.link, Link())
        link.told, link.counter, link.sampled_ms, link.described_ms = row, row.counter, row.at, row.described_at
        if row.counter >= 0:
            link.used, link.latency = Smooth(row.used_gbps, samples=1), Smooth(row.latency_ms, samples=1)


def _misplaced(record: type[Row], block: Block) -> Poison:
    return Poison("wrong_record", f"a {record.__name__} does not belong on topic {block.topic}")


def _gone(told: Told, row: NodeRemoved | LinkRemoved) -> Told:
    return told._replace(at=row.at, state="removed", reason=row.reason or "removed by its owner", described_at=row.at)


def _with_sample(told: NodeChanged, healthy: int, counter: int, at: int) -> NodeChanged:
    state = "up" if told.state == "silent" else told.state
    reason = "heard again" if told.state == "silent" else f"healthy cards {told.cards_healthy} → {healthy}"
    return told._replace(at=at, state=state, cards_healthy=healthy, reason=reason, counter=counter)
