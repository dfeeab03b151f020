"""What the engine knows: nodes as arrays in topology order, jobs and holdings as dictionaries.

Everything here follows from the ledger alone. Arrays are derived from `descriptions` and `holdings`; they are laid out
anew (`settle`) when the set of nodes or their places changed, and patched in place otherwise. Changed only by `evolve`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.records import JobAccepted, LinkRecorded, NodeRecorded
from streams.engine._line import Key, Line

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# Places from the widest to the narrowest; a node is the narrowest.
LEVELS: Final = ("region", "city", "site", "data_centre", "row", "rack", "node")
# Newest ended jobs kept, for questions and to recognise a second submission; older ones are in ClickHouse only. About
# 700 bytes each: 14 MB. A constant, not a setting: `evolve` uses it, so it is part of the ledger's meaning.
KEEP_ENDED: Final = 20_000
# Changed rows remembered; more than a round changes on any map, 0.5 MB.
MAX_JOURNAL: Final = 1 << 16
# A whole card, milli-cards.
WHOLE: Final = 1000


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What may differ between runs without touching the meaning of a ledger: only `decide` reads it."""

    start_timeout_ms: int = 120_000
    release_timeout_ms: int = 120_000
    # A silent node's jobs are given up after this time: a short network blip interrupts nobody.
    lost_after_ms: int = 60_000
    max_attempts: int = 5


class Request(NamedTuple):
    """What one member asks for, and the shape of its gang: jobs with equal requests fit or fail alike."""

    members: int
    cards_milli: int
    card_models: tuple[str, ...]
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    adjacency: str


class Holding(NamedTuple):
    """What one attempt holds on one node."""

    card_mask: int
    card_milli: int
    cpu_milli: int
    memory_bytes: int


@dataclass(slots=True)
class Job:
    """A job's course. `phase`: pending, placed, running, ending (its end follows at once), ended. Times in milliseconds.

    `failures` counts interrupted attempts, `held_nodes` the nodes that any attempt still holds, quarantined ones too;
    `trouble` is the reason code by which the attempt must be given up, `ran_attempt` the attempt `started_at` is of.
    """

    ask: JobAccepted
    request: Request
    phase: str = "pending"
    outcome: str = ""
    attempt: int = 0
    failures: int = 0
    waiting_since: int = 0
    placed_at: int = 0
    started_at: int = 0
    ran_attempt: int = 0
    ended_at: int = 0
    held_nodes: int = 0
    code: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    members_on_node: tuple[int, ...] = ()
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    trouble: str = ""
    trouble_reason: str = ""
    exit_code: int = 0
    cancelled_by: str = ""
    cancel_reason: str = ""
    progress: float = 0.0
    checkpoint: str = ""
    checkpoint_at: int = 0

    @property
    def key(self) -> Key:
        return (-self.ask.priority, self.ask.submitted_at, self.ask.seq, self.ask.job)


def request_of(ask: JobAccepted) -> Request:
    return Request(
        ask.members,
        ask.cards_milli,
        ask.card_models,
        ask.card_memory_bytes,
        ask.cpu_milli,
        ask.memory_bytes,
        ask.adjacency,
    )


class Timers:
    """Deadlines by name, milliseconds. The earliest is found without looking at the others; dropped ones are forgotten lazily."""

    __slots__ = ("_heap", "at")

    def __init__(self, at: Iterable[tuple[str, int]] = ()) -> None:
        self.at: dict[str, int] = dict(at)
        self._heap = [(when, name) for name, when in self.at.items()]
        heapify(self._heap)

    def set(self, name: str, when: int) -> None:
        self.at[name] = when
        heappush(self._heap, (when, name))

    def drop(self, name: str) -> None:
        self.at.pop(name, None)
        # Dropped ones leave the heap when they come to its top; rebuilt when they are the most of it.
        if len(self._heap) > 2 * len(self.at) + 64:
            self._heap = [(when, name) for name, when in self.at.items()]
            heapify(self._heap)

    def first(self) -> int | None:
        """The earliest deadline."""
        while self._heap and self.at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: int) -> list[str]:
        """Names whose deadline is reached, in order of deadline and name. They stay set."""
        found: dict[tuple[int, str], None] = {}
        while (first := self.first()) is not None and first <= now:
            found[heappop(self._heap)] = None
        for item in found:
            heappush(self._heap, item)
        return [name for _, name in found]


class Nodes:
    """Node arrays in topology order; row i of each is node `names[i]`. Free amounts below zero are owed by a node that shrank."""

    def __init__(self) -> None:
        # Grows with every change of these arrays: an answer found at the same version is still right.
        self.version = 0
        # Rows changed since version `_journal_from`, one for each version.
        self._journal: list[int] = []
        self._journal_from = 0
        self.lay_out({}, {})

    def lay_out(
        self, descriptions: dict[str, NodeRecorded], holdings: dict[str, dict[tuple[str, int], Holding]]
    ) -> None:
        """Build all arrays. O(nodes log nodes)."""
        order = sorted(descriptions.values(), key=_place_of)
        n = len(order)
        width = max((d.cards for d in order), default=0)
        self.names = [d.node for d in order]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.paths = [_place_of(d)[:-1] for d in order]
        self.models = sorted({d.card_model for d in order})
        model_id = {m: i for i, m in enumerate(self.models)}
        self.model: I32 = np.fromiter((model_id[d.card_model] for d in order), np.int32, n)
        self.cards: I64 = np.fromiter((d.cards for d in order), np.int64, n)
        self.card_memory: I64 = np.fromiter((d.card_memory_bytes for d in order), np.int64, n)
        self.cpu: I64 = np.fromiter((d.cpu_milli for d in order), np.int64, n)
        self.memory: I64 = np.fromiter((d.memory_bytes for d in order), np.int64, n)
        self.takes: Bools = np.zeros(n, np.bool_)
        self.card_free: I32 = np.zeros((n, max(1, width)), np.int32)
        self.whole_free: I64 = np.zeros(n, np.int64)
        self.cpu_free: I64 = np.zeros(n, np.int64)
        self.memory_free: I64 = np.zeros(n, np.int64)
        # Nodes that hold no more than they have: what they get back can be added without counting everything anew.
        self._sound = [False] * n
        self._allowed: dict[tuple[tuple[str, ...], int, bool], Bools] = {}
        # starts[level]: first row of each place of that level. An unknown name ('') is no place: its nodes stand alone.
        self.starts: dict[str, I64] = {
            "domain": np.zeros(1 if n else 0, np.int64),
            "node": np.arange(n, dtype=np.int64),
        }
        begins: list[list[int]] = [[] for _ in LEVELS[:-1]]
        before: tuple[str, ...] = ()
        for i, path in enumerate(self.paths):
            same = path == before
            for depth, name in enumerate(path):
                same_here = same or (i > 0 and path[: depth + 1] == before[: depth + 1])
                if not same_here or name == "":
                    begins[depth].append(i)
            before = path
        for level, rows in zip(LEVELS, begins, strict=False):
            self.starts[level] = np.asarray(rows, np.int64)
        for d in order:
            self.fill(d, holdings.get(d.node, _NOTHING))
        self._forget()

    def _changed(self, row: int) -> None:
        self.version += 1
        self._journal.append(row)
        if len(self._journal) > MAX_JOURNAL:
            self._forget()

    def _forget(self) -> None:
        """Whatever was found before must be found anew from the whole arrays."""
        self.version += 1
        self._journal.clear()
        self._journal_from = self.version

    def changed_since(self, version: int) -> list[int] | None:
        """Rows changed since that version; None when that is no longer known."""
        return None if version < self._journal_from else self._journal[version - self._journal_from :]

    def fill(self, d: NodeRecorded, held: dict[tuple[str, int], Holding]) -> None:
        """One node's free amounts, from its description and what is held on it."""
        i = self.index[d.node]
        self._changed(i)
        self.takes[i] = d.state == "up"
        cpu, memory = d.cpu_milli, d.memory_bytes
        # Cards the node reports as broken are the last ones: which ones they are is not in the telemetry yet.
        healthy = min(d.cards, max(0, d.cards_healthy))
        width = self.card_free.shape[1]
        row = [WHOLE] * healthy + [0] * (width - healthy)
        sound = True
        for h in held.values():
            cpu -= h.cpu_milli
            memory -= h.memory_bytes
            for card in cards_of(h.card_mask):
                if card >= width:
                    sound = False
                    continue
                row[card] -= h.card_milli
        if held and min(row) < 0:
            # A node that shrank under running work owes cards: none of those is free.
            sound = False
            row = [max(0, free) for free in row]
        self.card_free[i] = row
        self.whole_free[i] = row.count(WHOLE)
        self.cpu_free[i], self.memory_free[i] = cpu, memory
        self._sound[i] = sound

    def take(self, name: str, h: Holding) -> None:
        """Take a new holding off a node's free amounts."""
        self._add(self.index[name], h, -1)

    def give(self, d: NodeRecorded, h: Holding, left: dict[tuple[str, int], Holding]) -> None:
        """Give back a holding to a node that still has `left`."""
        i = self.index[d.node]
        if self._sound[i]:
            self._add(i, h, 1)
        else:
            self.fill(d, left)

    def _add(self, i: int, h: Holding, sign: int) -> None:
        self._changed(i)
        if h.cpu_milli:
            self.cpu_free[i] += sign * h.cpu_milli
        if h.memory_bytes:
            self.memory_free[i] += sign * h.memory_bytes
        if not h.card_mask:
            return
        row, milli, whole = self.card_free[i], sign * h.card_milli, 0
        for card in cards_of(h.card_mask):
            before = int(row[card])
            row[card] = before + milli
            whole += (before + milli == WHOLE) - (before == WHOLE)
        if whole:
            self.whole_free[i] += whole

    def allowed(self, models: tuple[str, ...], card_memory_bytes: int, *, needs_card: bool) -> Bools:
        """Nodes whose cards may be used, whatever runs there. `card_memory_bytes`: of a whole card."""
        key = (models, card_memory_bytes, needs_card)
        found = self._allowed.get(key)
        if found is None:
            if needs_card:
                found = (self.cards > 0) & (self.card_memory >= card_memory_bytes)
                if models:
                    found &= np.isin(self.model, [i for i, m in enumerate(self.models) if m in models])
            else:
                found = np.ones(len(self.names), np.bool_)
            self._allowed[key] = found
        return found

    def place(self, level: str, row: int) -> str:
        """Name of the place of `level` that a row is in."""
        if level == "domain":
            return "the whole domain"
        return self.names[row] if level == "node" else self.paths[row][LEVELS.index(level)]


@dataclass(slots=True)
class Scan:
    """For one kind of request: members that fit on each node, and how tight each is; right at `version` of the arrays."""

    version: int
    fit: I64
    score: I64


_NOTHING: Final[dict[tuple[str, int], Holding]] = {}


def _place_of(d: NodeRecorded) -> tuple[str, ...]:
    """A node's place from the widest level to the narrowest, itself."""
    return (d.region, d.city, d.site, d.data_centre, d.row, d.rack, d.node)


@lru_cache(maxsize=1 << 14)
def cards_of(mask: int) -> tuple[int, ...]:
    """Cards of a mask, ascending."""
    return tuple(card for card in range(mask.bit_length()) if mask >> card & 1)


class State:
    """The state of one domain. Changed only by `evolve`."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.seq = 0
        self.at = 0
        self.descriptions: dict[str, NodeRecorded] = {}
        self.links: dict[str, LinkRecorded] = {}
        # Silent nodes in the order they fell silent -> since when.
        self.silent_since: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        # Ended jobs still in `jobs`, oldest first.
        self.ended: dict[str, None] = {}
        # node -> (job, attempt) -> what it holds there. Held until the node confirms, or is removed.
        self.holdings: dict[str, dict[tuple[str, int], Holding]] = {}
        # Placed attempts -> when their start receipts are overdue; running ones with a limit -> when it is reached.
        self.due = Timers()
        self.limits = Timers()
        # (job, attempt) -> since when which nodes' releases are awaited, in the order they began.
        self.releasing: dict[tuple[str, int], tuple[int, list[str]]] = {}
        # (job, attempt, node) -> since when its release is overdue.
        self.quarantined: dict[tuple[str, int, str], int] = {}
        # Jobs that `decide` must look at: cancelled, in trouble, all started, all finished.
        self.attention: dict[str, None] = {}
        # Waiting jobs never told why since they began to wait.
        self.unexplained: dict[str, None] = {}
        # Kind of request -> code and reason last told to one of its waiting jobs.
        self.told: dict[Request, tuple[str, str]] = {}
        # Something was freed or changed since the last round that placed or explained: all kinds must be tried again.
        self.stale = False
        # Derived, never in a snapshot:
        # the line: all waiting jobs in order, and the same by kind of request;
        self.order = Line()
        self.line: dict[Request, Line] = {}
        # node arrays, and whether they must be laid out anew;
        self.nodes = Nodes()
        self.nodes_dirty = False
        # kind -> version of the node arrays at which it did not fit, and why (what the search would answer again).
        self.memo: dict[Request, tuple[int, str, str]] = {}
        # and what the search for a kind found on each node.
        self.scans: dict[Request, Scan] = {}

    @classmethod
    def empty(cls, domain: str) -> "State":
        return cls(domain)

    def settle(self) -> Nodes:
        """Node arrays, laid out anew first if the set of nodes or their places changed."""
        if self.nodes_dirty:
            self.nodes.lay_out(self.descriptions, self.holdings)
            self.nodes_dirty = False
        return self.nodes

    def position(self, job: Job) -> int:
        """Place of a waiting job in the whole line, from 1."""
        return self.order.position(job.key) + 1
