"""Questions to a state, for people: nodes, links, jobs as flat rows, and why a job waits at this moment.

Used by the API and the command line. Changes nothing but derived arrays; never decides.
"""

from typing import NamedTuple

from streams.engine._classes import WHOLE, Condition
from streams.engine._place import NoFit, find
from streams.engine._state import Job, State


class NodeView(NamedTuple):
    """A node now. Amounts in milli-cards, 1/1000 core, bytes; `jobs` holds what runs or is being released there."""

    node: str
    site: str
    rack: str
    state: str
    card_model: str
    cards: int
    cards_free_milli: int
    cpu_milli: int
    cpu_free_milli: int
    memory_bytes: int
    memory_free_bytes: int
    jobs: tuple[str, ...]


class LinkView(NamedTuple):
    """A link now; Gbit/s and milliseconds."""

    link: str
    src_site: str
    dst_site: str
    state: str
    capacity_gbps: float
    used_gbps: float
    latency_ms: float


class JobView(NamedTuple):
    """A job now. `state`: pending, placed, running, finished, failed or cancelled. Times in milliseconds, 0: not yet."""

    job: str
    user: str
    queue: str
    priority: int
    state: str
    attempt: int
    members: int
    cards_milli_total: int
    submitted_at: int
    placed_at: int
    started_at: int
    ended_at: int
    nodes: tuple[str, ...]
    code: str
    reason: str
    inferred: tuple[str, ...]
    position: int


def nodes(state: State) -> list[NodeView]:
    """All nodes in topology order."""
    arrays = state.settle()
    found = []
    for i, name in enumerate(arrays.names):
        d = state.descriptions[name]
        free = arrays.classes.conditions[arrays.class_of[i]]
        found.append(
            NodeView(
                name, d.site, d.rack, d.state, d.card_model, d.cards, _free(free), d.cpu_milli,
                max(0, free.cpu_free), d.memory_bytes, max(0, free.memory_free),
                tuple(sorted({holder for holder, _ in state.holdings.get(name, {})})),
            )
        )  # fmt: skip
    return found


def links(state: State) -> list[LinkView]:
    return [
        LinkView(e.link, e.src_site, e.dst_site, e.state, e.capacity_gbps, e.used_gbps, e.latency_ms)
        for e in sorted(state.links.values(), key=lambda e: e.link)
    ]


def _view(state: State, name: str, job: Job, position: int) -> JobView:
    ask = job.ask
    code, reason = job.code, job.reason
    if job.phase == "pending" and name not in state.unexplained:
        # What was last told to a job of its kind: in a long line only the first are told each change.
        code, reason = state.told.get(job.request, (code, reason))
    return JobView(
        name, ask.user, ask.queue, ask.priority, job.outcome or job.phase, job.attempt, ask.members,
        ask.members * ask.cards_milli, ask.submitted_at, job.placed_at, _started(job), job.ended_at, job.nodes, code,
        reason, ask.inferred, position,
    )  # fmt: skip


def _started(job: Job) -> int:
    """When the present attempt started; 0 when it has not."""
    return job.started_at if job.ran_attempt == job.attempt else 0


def jobs(state: State) -> list[JobView]:
    """All jobs the state still knows, in the order they were accepted; `position` is the place in the whole line, 0: not in it."""
    positions = {key[-1]: i for i, key in enumerate(state.order, 1)}
    return [_view(state, name, job, positions.get(name, 0)) for name, job in state.jobs.items()]


def job(state: State, name: str) -> JobView | None:
    found = state.jobs.get(name)
    if found is None:
        return None
    return _view(state, name, found, state.position(found) if found.phase == "pending" else 0)


def why(state: State, name: str) -> NoFit | None:
    """Why a waiting job does not fit at this moment, with the figures of this moment. None: not waiting, or it would fit."""
    found = state.jobs.get(name)
    if found is None or found.phase != "pending":
        return None
    answer = find(state.settle(), found.request)
    return answer if isinstance(answer, NoFit) else None


def cards_milli(state: State) -> tuple[int, int]:
    """(all cards of nodes that are up, free ones of those), milli-cards."""
    arrays = state.settle()
    there = free = 0
    for condition, count in zip(arrays.classes.conditions, arrays.classes.nodes.tolist(), strict=True):
        kind = arrays.classes.types[condition.type]
        if kind.takes:
            there += count * kind.cards * WHOLE
            free += count * _free(condition)
    return there, free


def _free(condition: Condition) -> int:
    """Milli-cards; cards that are owed count as none."""
    return sum(f for f in condition.card_free if f > 0)
