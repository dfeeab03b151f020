"""Plays nodes: obeys `commands`, answers with receipts, sends telemetry, breaks where its faults say so.

It knows the engine only through the log, as real nodes do, and plays every node that is registered there. Time is given to
it, so a trace of months runs in minutes; what it owes after a restart it reads back from the log. Driven by `SimWorker`
and by the demo.
"""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from infra.sim.faults import Faults, Post, draw
from infra.sim.telemetry import IDLE, Load, Samples
from schemas.codec import decode_rows, encode
from schemas.log import Log, Reader
from schemas.messages import Record, TopicPartition
from schemas.records import (
    Command,
    JobProgress,
    JobSubmitted,
    LinkRegistered,
    LinkRemoved,
    LinkTelemetry,
    NodeRegistered,
    NodeRemoved,
    Receipt,
    Row,
)

RUN_LABEL: Final = "sim.run_ms"
EXIT_LABEL: Final = "sim.exit_code"
DAY_MS: Final = 24 * 3600 * 1000
READ_RECORDS: Final = 20_000
FLUSH_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How quick the simulated nodes are, milliseconds; ranges are drawn from evenly, both ends included.

    `run_ms` is for jobs whose label `sim.run_ms` does not say it. `step_ms`: delays are multiples of it.
    """

    heartbeat_ms: int = 15_000
    start_ms: tuple[int, int] = (200, 1_500)
    release_ms: tuple[int, int] = (100, 500)
    run_ms: tuple[int, int] = (20_000, 120_000)
    step_ms: int = 100

    def drawn(self, span: tuple[int, int], seed: int, *what: object) -> int:
        if span[0] == span[1]:
            return span[0]
        return draw(seed, *what).randrange(span[0] // self.step_ms, span[1] // self.step_ms + 1) * self.step_ms


class Wanted(NamedTuple):
    """What a job's labels ask of the simulation; `run_ms` -1: nothing was asked."""

    run_ms: int
    exit_code: int


@dataclass(slots=True)
class Run:
    """The members of one attempt on one node; `began` 0: not yet."""

    command: Command
    began: int = 0
    over: str = ""
    # Only one node of a gang tells how far it is.
    tells: bool = False


@dataclass(slots=True)
class Node:
    """One node: `missed` are commands that came while it was dead."""

    row: NodeRegistered
    up: bool = True
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    missed: list[Command] = field(default_factory=list)
    deaths: int = 0


class SimulatedInfrastructure:
    """All nodes that are registered in the domain, and the probes of its links."""

    def __init__(
        self, log: Log, domain: str, *, seed: int = 0, faults: Faults | None = None, pace: Pace | None = None
    ) -> None:
        self._log = log
        self._domain = domain
        self._seed = seed
        self._faults = faults or Faults()
        self.pace = pace or Pace()
        self._appender = log.appender("simulation")
        self._post = Post(self._appender, seed, self._faults)
        self._reader: Reader | None = None
        self.nodes: dict[str, Node] = {}
        self.links: dict[str, LinkRegistered] = {}
        self._wanted: dict[str, Wanted] = {}
        self._told: dict[tuple[str, int], str] = {}
        # (due, order, what, of what): order keeps equal times in the order they were planned.
        self._agenda: list[tuple[int, int, str, tuple[object, ...]]] = []
        self._planned = 0
        self._beats_at: int | None = None
        self._samples = Samples()
        self._now = 0
        self.sent = 0

    # --- what is driven from outside ------------------------------------------------------------------------------

    def register(self, rows: Iterable[NodeRegistered | LinkRegistered]) -> None:
        """Register nodes and links: without faults, since nobody would know of them otherwise."""
        for row in rows:
            if isinstance(row, NodeRegistered):
                self._appender.send(Record("resources", row.node.encode(), encode(row)))
            else:
                self._appender.send(Record("links", row.link.encode(), encode(row)))
        self._appender.flush(FLUSH_MS)

    def step(self, now: int, timeout_ms: int = 0) -> int:
        """Read what came, do what is due at `now`. Waits up to `timeout_ms` when nothing is. Returns what was handled."""
        self._now = now
        if self._reader is None:
            self._restore(now)
        handled = self._read(now, 0)
        handled += self._due(now)
        handled += self._post.deliver(now, FLUSH_MS)
        if not handled and timeout_ms:
            handled = self._read(now, timeout_ms)
            handled += self._due(now) + self._post.deliver(now, FLUSH_MS)
        return handled

    def next_wake(self) -> int | None:
        """When there is something to do without input, milliseconds."""
        times = [self._agenda[0][0]] if self._agenda else []
        times += [t for t in (self._beats_at, self._post.next_due()) if t is not None]
        return min(times) if times else None

    def running(self) -> int:
        """Members' groups that run now."""
        return sum(len(n.runs) for n in self.nodes.values())

    def close(self, timeout_ms: int) -> None:
        self._appender.close(timeout_ms)
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- reading --------------------------------------------------------------------------------------------------

    def _restore(self, now: int) -> None:
        """Read the log from its beginning: nodes, and what they have not answered yet."""
        start: dict[TopicPartition, int] = {}
        past: list[Row] = []
        for topic in ("resources", "links", "jobs", "commands", "receipts"):
            spans = self._log.span(topic)
            for partition, span in spans.items():
                past += _rows(self._log, TopicPartition(topic, partition), span.begin, span.end)
                if topic != "receipts":
                    start[TopicPartition(topic, partition)] = span.end
        self._reader = self._log.reader(start)
        said = {(r.job, r.attempt, r.node, r.kind): r.at for r in past if isinstance(r, Receipt)}
        for row in past:
            if not isinstance(row, Command | Receipt):
                self._hear(row, now)
        commands = [r for r in past if isinstance(r, Command) and r.node in self.nodes and r.domain == self._domain]
        released = {(c.job, c.attempt, c.node) for c in commands if c.kind == "release"}
        for c in commands:
            key = (c.job, c.attempt, c.node)
            if c.kind == "release" and (*key, "released") not in said:
                self._command(c, now)
            elif c.kind == "start" and key not in released and (*key, "start_failed") not in said:
                if (*key, "started") in said:
                    began = said[(*key, "started")]
                    self._run(c).began = began
                    self._plan(max(now, began + self._run_ms(c)), "over", c.node, c.job, c.attempt)
                else:
                    self._command(c, now)

    def _read(self, now: int, timeout_ms: int) -> int:
        assert self._reader is not None
        handled = 0
        while blocks := self._reader.poll(READ_RECORDS, timeout_ms if not handled else 0):
            for block in sorted(blocks, key=lambda b: b.topic == "commands"):
                for _, row in decode_rows(block).rows:
                    self._hear(row, now)
                handled += len(block)
        return handled

    def _hear(self, row: Row, now: int) -> None:
        if isinstance(row, Command):
            self._command(row, now)
        elif isinstance(row, JobSubmitted):
            wanted = wanted_of(row.labels)
            if wanted is not None:
                self._wanted[row.job] = wanted
        elif isinstance(row, NodeRegistered) and row.domain == self._domain:
            known = self.nodes.get(row.node)
            if known is not None:
                known.row = row
                return
            self.nodes[row.node] = Node(row)
            self._plan_death(row.node, now)
            self._beats_at = now if self._beats_at is None else self._beats_at
        elif isinstance(row, NodeRemoved):
            self.nodes.pop(row.node, None)
        elif isinstance(row, LinkRegistered) and row.domain == self._domain:
            self.links[row.link] = row
            self._beats_at = now if self._beats_at is None else self._beats_at
        elif isinstance(row, LinkRemoved):
            self.links.pop(row.link, None)

    # --- commands -------------------------------------------------------------------------------------------------

    def _run(self, c: Command) -> Run:
        tells = self._told.setdefault((c.job, c.attempt), c.node) == c.node
        run = Run(c, tells=tells)
        self.nodes[c.node].runs[(c.job, c.attempt)] = run
        return run

    def _run_ms(self, c: Command) -> int:
        wanted = self._wanted.get(c.job)
        if wanted is not None and wanted.run_ms >= 0:
            return wanted.run_ms
        # The members of a gang run equally long, whatever node they are on.
        return self.pace.drawn(self.pace.run_ms, self._seed, "run", c.job, c.attempt)

    def _command(self, c: Command, now: int) -> None:
        node = self.nodes.get(c.node)
        if node is None or c.domain != self._domain:
            return
        if not node.up:
            node.missed.append(c)
            return
        key = (c.job, c.attempt)
        if c.kind == "start":
            if key not in node.runs:
                self._run(c)
                delay = self.pace.drawn(self.pace.start_ms, self._seed, "start", c.node, *key)
                self._plan(now + delay, "start", c.node, *key)
        else:
            delay = self.pace.drawn(self.pace.release_ms, self._seed, "release", c.node, *key)
            self._plan(now + delay, c.kind, c.node, *key)

    # --- what is due ----------------------------------------------------------------------------------------------

    def _plan(self, due: int, what: str, *of: object) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (due, self._planned, what, of))

    def _due(self, now: int) -> int:
        done = 0
        while self._agenda and self._agenda[0][0] <= now:
            _, _, what, of = heapq.heappop(self._agenda)
            node = self.nodes.get(str(of[0]))
            if node is not None:
                self._do(what, node, of, now)
            done += 1
        if self._beats_at is not None and self._beats_at <= now:
            done += self._heartbeat(now)
            self._beats_at = now + self.pace.heartbeat_ms
        return done

    def _do(self, what: str, node: Node, of: tuple[object, ...], now: int) -> None:
        if what == "die":
            self._die(node, now)
            return
        if what == "return":
            self._return(node, now)
            return
        if not node.up:
            return
        job, attempt = str(of[1]), int(str(of[2]))
        run = node.runs.get((job, attempt))
        if what == "start" and run is not None:
            name = node.row.node
            if draw(self._seed, "fails", name, job, attempt).random() < self._faults.start_failed:
                del node.runs[(job, attempt)]
                self._say(node, job, attempt, "start_failed", now, reason="simulated fault: its image would not load")
            else:
                run.began = now
                self._say(node, job, attempt, "started", now)
                self._plan(now + self._run_ms(run.command), "over", *of)
        elif what == "over" and run is not None:
            wanted = self._wanted.get(job)
            run.over = "failed" if wanted is not None and wanted.exit_code else "finished"
            code = wanted.exit_code if wanted is not None else 0
            self._say(node, job, attempt, run.over, now, exit_code=code)
            self._again(now, what, of)
        elif what in ("stop", "release"):
            node.runs.pop((job, attempt), None)
            self._told.pop((job, attempt), None)
            if what == "release":
                self._say(node, job, attempt, "released", now)
                self._again(now, what, of)

    def _again(self, now: int, what: str, of: tuple[object, ...]) -> None:
        """A receipt can get lost on its way: say it again a few times. A run that was released meanwhile says nothing."""
        f = self._faults
        tries = int(str(of[3])) if len(of) > 3 else 0
        if f.lost and tries < f.repeats:
            self._plan(now + f.repeat_ms, what, *of[:3], tries + 1)

    def _say(
        self, node: Node, job: str, attempt: int, kind: str, now: int, *, exit_code: int = 0, reason: str = ""
    ) -> None:
        receipt = Receipt(job, now, self._domain, attempt, node.row.node, kind, exit_code, reason)
        self._post.send(Record("receipts", job.encode(), encode(receipt)), now, job, attempt, node.row.node, kind)
        self.sent += 1

    # --- dying and returning --------------------------------------------------------------------------------------

    def _plan_death(self, name: str, now: int) -> None:
        rate = self._faults.deaths_per_day
        if rate > 0:
            node = self.nodes[name]
            node.deaths += 1
            days = draw(self._seed, "death", name, node.deaths).expovariate(rate)
            self._plan(now + 1 + int(days * DAY_MS), "die", name)

    def _die(self, node: Node, now: int) -> None:
        node.up = False
        self._plan(now + self._faults.down_ms, "return", node.row.node)

    def _return(self, node: Node, now: int) -> None:
        """Back, empty: it registers again, owns up to what it lost, and reads the commands it missed."""
        node.up = True
        row = node.row._replace(at=now)
        self._appender.send(Record("resources", row.node.encode(), encode(row)))
        lost, node.runs = node.runs, {}
        for job, attempt in lost:
            self._told.pop((job, attempt), None)
            self._say(node, job, attempt, "start_failed", now, reason="the node died and its members with it")
        missed, node.missed = node.missed, []
        for c in missed:
            if c.kind != "start" or c.due_at > now:
                self._command(c, now)
        self._plan_death(node.row.node, now)

    # --- telemetry ------------------------------------------------------------------------------------------------

    def _heartbeat(self, now: int) -> int:
        """One sample of every node that is up and of every link, and how far the running jobs are."""
        count = 0
        for name, node in self.nodes.items():
            if not node.up:
                continue
            load = self._load(node, now) if node.runs else IDLE
            value = self._samples.at(now, node.row, load)
            self._post.send(Record("resource-telemetry", name.encode(), value), now, name)
            count += 1
        for place, (name, link) in enumerate(self.links.items()):
            # Traffic goes round with the day; each link has its own hour.
            use = 0.35 + 0.25 * math.sin(2 * math.pi * (now % DAY_MS) / DAY_MS + place)
            sample_of_link = LinkTelemetry(
                name, now, now, link.capacity_gbps * use, link.base_latency_ms * (1 + use / 2), 0.0
            )
            self._post.send(Record("link-telemetry", name.encode(), encode(sample_of_link)), now, name)
            count += 1
        return count

    def _load(self, node: Node, now: int) -> Load:
        """What runs on a node; says how far it is on the way."""
        cards = cpu = memory = 0
        for (job, attempt), run in node.runs.items():
            c = run.command
            cards += c.card_mask.bit_count() * c.card_milli
            cpu += c.cpu_milli
            memory += c.memory_bytes
            if run.tells and run.began and not run.over:
                self._progress(job, attempt, run, now)
        return Load((cards, cpu, memory))

    def _progress(self, job: str, attempt: int, run: Run, now: int) -> None:
        whole = self._run_ms(run.command)
        fraction = min(1.0, max(0.0, (now - run.began) / whole)) if whole else 1.0
        row = JobProgress(job, now, self._domain, attempt, fraction, "", 0)
        self._post.send(Record("receipts", job.encode(), encode(row)), now, job, "progress")


def wanted_of(labels: Iterable[str]) -> Wanted | None:
    """What labels `sim.run_ms=…` and `sim.exit_code=…` ask for; None when there is none. Nonsense counts as not said."""
    said: Mapping[str, str] = dict(label.split("=", 1) for label in labels if label.startswith("sim.") and "=" in label)
    if not said:
        return None
    run, code = said.get(RUN_LABEL, ""), said.get(EXIT_LABEL, "")
    return Wanted(int(run) if run.isdecimal() else -1, int(code) if code.isdecimal() else 0)


def _rows(log: Log, where: TopicPartition, position: int, end: int) -> list[Row]:
    """Rows of a partition from `position` to `end`; what cannot be decoded is left to those whose work it is."""
    found: list[Row] = []
    if position >= end:
        return found
    reader = log.reader({where: position})
    try:
        while position < end:
            blocks = reader.poll(READ_RECORDS, 5_000)
            if not blocks:
                break
            for block in blocks:
                found += [row for _, row in decode_rows(block).rows]
                position = block.next_offset
    finally:
        reader.close()
    return found
