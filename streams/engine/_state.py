"""What the engine knows: the map, jobs, what is held where, and who waits. Changed only by `evolve`.

Everything here follows from the ledger alone. What is derived (the line, node arrays, memories of searches) is rebuilt by
`restore`; node arrays are laid out anew (`settle`) when nodes or their places changed, and patched in place otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from schemas.records import JobAccepted, LinkRecorded, NodeRecorded
from streams.engine._classes import Holding, Scan
from streams.engine._costs import Costs
from streams.engine._line import Key, Line
from streams.engine._mix import Mix
from streams.engine._needs import Needs
from streams.engine._nodes import Nodes
from streams.engine._request import Request

# Newest ended jobs kept, for questions and to recognise a second submission; older ones are in ClickHouse only. About
# 700 bytes each: 14 MB. A constant, not a setting: `evolve` uses it, so it is part of the ledger's meaning.
KEEP_ENDED: Final = 20_000
# Newest holdings of removed nodes kept, for the day a node of that name returns: names that never return must not fill the
# memory. Part of the ledger's meaning, too.
KEEP_GONE: Final = 10_000


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What may differ between runs without touching the meaning of a ledger: only `decide` and `next_wake` read it.

    How long a start receipt and a release may take; after what silence of a node its jobs are given up (a short network blip
    interrupts nobody); after how many interrupted attempts a job fails."""

    start_timeout_ms: int = 120_000
    release_timeout_ms: int = 120_000
    lost_after_ms: int = 60_000
    max_attempts: int = 5


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
        # node -> (job, attempt) -> what it holds there. Held until the node confirms, even while the node is removed.
        self.holdings: dict[str, dict[tuple[str, int], Holding]] = {}
        # Removed nodes that have holdings, in the order they were removed.
        self.gone: dict[str, None] = {}
        # Attempts that are over -> nodes that still hold something of them: awaited, quarantined or gone.
        self.unreleased: dict[tuple[str, int], dict[str, None]] = {}
        # Placed attempts -> when their start receipts are overdue; running ones with a limit -> when it is reached.
        self.due = Timers()
        self.limits = Timers()
        # (job, attempt, node) -> since when its release is awaited, in the order that began. Never of a node that is gone.
        self.releasing: dict[tuple[str, int, str], int] = {}
        # (job, attempt, node) -> since when its release is overdue.
        self.quarantined: dict[tuple[str, int, str], int] = {}
        # Jobs that `decide` must look at: cancelled, in trouble, all started, all finished.
        self.attention: dict[str, None] = {}
        # Waiting jobs never told why since they began to wait.
        self.unexplained: dict[str, None] = {}
        # Kind of request -> code and reason last told to one of its waiting jobs.
        self.told: dict[Request, tuple[str, str]] = {}
        # What was asked for and ran, and what was learned from it.
        self.mix = Mix()
        # Since the last round that placed or explained: something of the map changed, so all kinds must be tried again;
        self.stale = False
        # nodes on which something was freed: kinds must be that they could hold a member of.
        self.freed: dict[str, None] = {}
        # Derived, never in a snapshot:
        # holdings of nodes that are gone, count;
        self.gone_held = 0
        # the line: all waiting jobs in order, and the same by kind of request;
        self.order = Line()
        self.line: dict[Request, Line] = {}
        # what a member of each of those kinds needs;
        self.needs = Needs()
        # node arrays, and whether they must be laid out anew;
        self.nodes = Nodes()
        self.nodes_dirty = False
        # version of the node arrays at which all that had to be tried was: the same again would find the same;
        self.tried_version = -1
        # kind -> version of the node arrays at which it did not fit, and why (what the search would answer again).
        self.memo: dict[Request, tuple[int, str, str]] = {}
        # what the search for a kind found on nodes of each class;
        self.scans: dict[Request, Scan] = {}
        # and costs by what was learned of the mix, if anything was.
        self.costs: Costs | None = None

    @classmethod
    def empty(cls, domain: str) -> "State":
        return cls(domain)

    def settle(self) -> Nodes:
        """Node arrays, laid out anew first if the set of nodes or their places changed."""
        if self.nodes_dirty:
            self.nodes.lay_out(self.descriptions, self.holdings)
            self.nodes_dirty = False
        else:
            self.nodes.compact()
        return self.nodes

    def position(self, job: Job) -> int:
        """Place of a waiting job in the whole line, from 1."""
        return self.order.position(job.key) + 1
