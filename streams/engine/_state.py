"""What the engine knows: nodes as arrays in topology order, jobs and holdings as dictionaries.

Everything here follows from the ledger alone. Arrays are derived from `descriptions` and `holdings`; they are laid out
anew (`settle`) when the set of nodes or their places changed, and patched in place otherwise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.records import JobAccepted, LinkRecorded, NodeRecorded

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# Places from the widest to the narrowest; a node is the narrowest.
LEVELS: Final = ("region", "site", "data_centre", "row", "rack", "node")
# Ended jobs kept for questions and to recognise a second submission; older ones are in ClickHouse only.
KEEP_ENDED: Final = 20_000
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
    """A job's course. `phase`: pending, placed, running, ended."""

    ask: JobAccepted
    request: Request
    phase: str = "pending"
    outcome: str = ""
    attempt: int = 0
    failures: int = 0
    waiting_since: int = 0
    placed_at: int = 0
    started_at: int = 0
    ended_at: int = 0
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
    def key(self) -> tuple[int, int, str]:
        """Order in the line: priority, then age, then name."""
        return (-self.ask.priority, self.ask.submitted_at, self.ask.job)


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


class Nodes:
    """Node arrays in topology order; row i of each is node `names[i]`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.lay_out({}, lambda _: iter(()))

    def lay_out(self, descriptions: dict[str, NodeRecorded], held: Callable[[str], Iterator[Holding]]) -> None:
        """Build all arrays. O(nodes log nodes)."""
        order = sorted(descriptions.values(), key=lambda d: (d.region, d.site, d.data_centre, d.row, d.rack, d.node))
        n = len(order)
        width = max((d.cards for d in order), default=0)
        self.names = [d.node for d in order]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.paths = [(d.region, d.site, d.data_centre, d.row, d.rack) for d in order]
        self.models = sorted({d.card_model for d in order})
        model_id = {m: i for i, m in enumerate(self.models)}
        self.model: I32 = np.fromiter((model_id[d.card_model] for d in order), np.int32, n)
        self.cards: I32 = np.fromiter((d.cards for d in order), np.int32, n)
        self.card_memory: I64 = np.fromiter((d.card_memory_bytes for d in order), np.int64, n)
        self.cpu: I64 = np.fromiter((d.cpu_milli for d in order), np.int64, n)
        self.memory: I64 = np.fromiter((d.memory_bytes for d in order), np.int64, n)
        self.takes: Bools = np.zeros(n, np.bool_)
        self.card_free: I32 = np.zeros((n, max(1, width)), np.int32)
        self.whole_free: I32 = np.zeros(n, np.int32)
        self.cpu_free: I64 = np.zeros(n, np.int64)
        self.memory_free: I64 = np.zeros(n, np.int64)
        # starts[level]: first row of each place of that level. An unknown name ('') is no place: its nodes stand alone.
        self.starts: dict[str, I64] = {
            "domain": np.zeros(1 if n else 0, np.int64),
            "node": np.arange(n, dtype=np.int64),
        }
        for depth, level in enumerate(LEVELS[:-1]):
            starts = []
            before: tuple[str, ...] | None = None
            for i, whole in enumerate(self.paths):
                path = whole[: depth + 1]
                if path != before or path[-1] == "":
                    starts.append(i)
                before = path
            self.starts[level] = np.asarray(starts, np.int64)
        for d in order:
            self.fill(d, held(d.node))

    def fill(self, d: NodeRecorded, held: Iterator[Holding]) -> None:
        """One node's free amounts, from its description and what is held on it."""
        i = self.index[d.node]
        self.takes[i] = d.state == "up"
        self.cpu_free[i] = d.cpu_milli
        self.memory_free[i] = d.memory_bytes
        row = self.card_free[i]
        row[:] = 0
        # Cards the node reports as broken are the last ones: which ones they are is not in the telemetry yet.
        row[: min(d.cards, max(0, d.cards_healthy))] = WHOLE
        for h in held:
            self._add(i, h, -1)
        # A node that shrank under running work can owe cards: none of them is free.
        np.maximum(row, 0, out=row)
        self.whole_free[i] = int(np.count_nonzero(row == WHOLE))

    def places(self, level: str, row: int) -> str:
        """Name of the place of `level` that a row is in."""
        if level == "domain":
            return "the whole domain"
        return self.names[row] if level == "node" else self.paths[row][LEVELS.index(level)]

    def take(self, name: str, h: Holding) -> None:
        """Take a holding off a node's free amounts."""
        i = self.index[name]
        self._add(i, h, -1)
        self.whole_free[i] = int(np.count_nonzero(self.card_free[i] == WHOLE))

    def _add(self, i: int, h: Holding, sign: int) -> None:
        self.cpu_free[i] += sign * h.cpu_milli
        self.memory_free[i] += sign * h.memory_bytes
        mask, card, row = h.card_mask, 0, self.card_free[i]
        while mask:
            if mask & 1 and card < row.shape[0]:
                row[card] += sign * h.card_milli
            mask >>= 1
            card += 1


class State:
    """The state of one domain. Changed only by `evolve`."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.seq = 0
        self.at = 0
        self.descriptions: dict[str, NodeRecorded] = {}
        self.links: dict[str, LinkRecorded] = {}
        self.silent_since: dict[str, int] = {}
        self.jobs: dict[str, Job] = {}
        self.ended: dict[str, None] = {}
        # node -> (job, attempt) -> what it holds there
        self.holdings: dict[str, dict[tuple[str, int], Holding]] = {}
        # placed attempts by when their start receipts are overdue
        self.due: dict[str, int] = {}
        # (job, attempt) -> since when which nodes' releases are awaited, in the order they began
        self.releasing: dict[tuple[str, int], tuple[int, list[str]]] = {}
        self.quarantined: dict[tuple[str, int, str], int] = {}
        # running jobs with a limit -> when it is reached
        self.limits: dict[str, int] = {}
        # jobs that `decide` must look at: trouble, all started, all finished, cancelled
        self.attention: dict[str, None] = {}
        # the line: request -> keys of pending jobs in order
        self.line: dict[Request, list[tuple[int, int, str]]] = {}
        # Derived, never in a snapshot:
        self.nodes = Nodes()
        self.nodes_dirty = False
        # Grows whenever something became free or changed: requests that failed before may fit now.
        self.freed = 0
        self.blocked: dict[Request, tuple[int, str, str]] = {}
        self.unexplained: dict[str, None] = {}

    @classmethod
    def empty(cls, domain: str) -> "State":
        return cls(domain)

    def not_awaited(self, job: str, attempt: int, node: str) -> None:
        """The release of this attempt on this node is no longer awaited."""
        found = self.releasing.get((job, attempt))
        if found is not None and node in found[1]:
            found[1].remove(node)
            if not found[1]:
                del self.releasing[(job, attempt)]

    def held_on(self, node: str) -> Iterator[Holding]:
        return iter(self.holdings.get(node, {}).values())

    def settle(self) -> Nodes:
        """Node arrays, laid out anew first if the set of nodes changed."""
        if self.nodes_dirty:
            self.nodes.lay_out(self.descriptions, self.held_on)
            self.nodes_dirty = False
        return self.nodes
