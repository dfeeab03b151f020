"""`evolve`: apply one ledger entry to a state. Deterministic, never asks for anything but its arguments.

One handler per entry type. Called for every entry ever, by restores and followers too: each handler costs a few
dictionary and array updates, never a scan. What `decide` must look at next is worked out here, so that a state
replayed from its ledger decides exactly as the one that lived through it.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, cast

from schemas.errors import Corrupted
from schemas.records import (
    CapacityQuarantined,
    EngineStarted,
    JobAccepted,
    JobCancelRequested,
    JobEnded,
    JobInterrupted,
    JobPending,
    JobPlaced,
    JobProgressed,
    JobRefused,
    JobStarted,
    LedgerEntry,
    LinkRecorded,
    MixLearned,
    NodeRecorded,
    ReceiptRecorded,
)
from streams.engine._classes import Holding
from streams.engine._costs import Costs
from streams.engine._line import Line
from streams.engine._request import request_of
from streams.engine._state import KEEP_ENDED, KEEP_GONE, Job, State

ACTIVE: Final = ("placed", "running")


def evolve(state: State, entry: LedgerEntry) -> None:
    """Apply `entry`. Raises `Corrupted` when it is not the next one of this domain, or speaks of what does not exist."""
    if entry.seq != state.seq + 1 or entry.domain != state.domain:
        raise Corrupted(
            f"ledger entry {entry.seq} of domain {entry.domain} cannot follow {state.seq} of domain {state.domain}"
        )
    if entry.at < state.at:
        raise Corrupted(f"ledger entry {entry.seq} goes back in time, from {state.at} to {entry.at}")
    try:
        _HANDLERS[type(entry)](state, entry)
    except (KeyError, IndexError) as e:
        raise Corrupted(f"ledger entry {entry.seq} ({type(entry).__name__}) speaks of {e}, which is not there") from e
    state.seq = entry.seq
    state.at = entry.at


def _engine_started(state: State, entry: EngineStarted) -> None:
    # Another version may see what this one did not.
    state.stale = True


# --- the map ---


def _node_recorded(state: State, e: NodeRecorded) -> None:
    before = state.descriptions.get(e.node)
    state.stale = True
    if e.state == "removed":
        state.silent_since.pop(e.node, None)
        if before is not None:
            _lose(state, e.node)
            del state.descriptions[e.node]
            state.nodes_dirty = True
        return
    state.descriptions[e.node] = e
    if before is None and e.node in state.gone:
        _return(state, e.node, e.at)
    if e.state == "silent":
        state.silent_since.setdefault(e.node, e.at)
    else:
        state.silent_since.pop(e.node, None)
    # From site to rack, and from cards to memory: what the arrays are laid out by.
    if before is None or before[5:16] != e[5:16]:
        state.nodes_dirty = True
    elif not state.nodes_dirty:
        state.nodes.fill(e, state.holdings.get(e.node, {}))


def _lose(state: State, node: str) -> None:
    """A node is gone, and nobody knows what still runs there: all stays held under its name. No release is awaited from it."""
    held = state.holdings.get(node)
    if held is None:
        return
    for name, attempt in held:
        _not_awaited(state, name, attempt, node)
        job = state.jobs[name]
        # A member that had finished is not lost.
        if job.attempt == attempt and job.phase in ACTIVE and node not in job.finished and not job.trouble:
            job.trouble, job.trouble_reason = "node_lost", f"node {node} was removed"
            _look(state, name, job)
    state.gone[node] = None
    state.gone_held += len(held)
    while state.gone_held > KEEP_GONE:
        oldest = next(iter(state.gone))
        for name, attempt in list(islice(state.holdings[oldest], state.gone_held - KEEP_GONE)):
            _drop(state, name, attempt, oldest)


def _return(state: State, node: str, at: int) -> None:
    """A node of that name is there again: what was held there is, and of attempts that are over its release is awaited."""
    held = state.holdings[node]
    del state.gone[node]
    state.gone_held -= len(held)
    for key in held:
        if key in state.unreleased:
            state.releasing[(*key, node)] = at


def _link_recorded(state: State, e: LinkRecorded) -> None:
    if e.state == "removed":
        state.links.pop(e.link, None)
    else:
        state.links[e.link] = e


# --- the line ---


def _job_accepted(state: State, e: JobAccepted) -> None:
    job = Job(e, request_of(e), waiting_since=e.at)
    state.jobs[e.job] = job
    state.mix.accepted(job.request)
    _enqueue(state, e.job, job)


def _enqueue(state: State, name: str, job: Job) -> None:
    key = job.key
    state.order.add(key)
    kind = state.line.get(job.request)
    if kind is None:
        kind = state.line[job.request] = Line()
        state.needs.add(job.request)
    kind.add(key)
    state.unexplained[name] = None


def _dequeue(state: State, name: str, job: Job) -> None:
    key = job.key
    state.order.remove(key)
    kind = state.line[job.request]
    kind.remove(key)
    if not kind:
        del state.line[job.request]
        state.needs.remove(job.request)
        state.told.pop(job.request, None)
        state.memo.pop(job.request, None)
    _drop_key(state.unexplained, name)


def _drop_key(names: dict[str, None], name: str) -> None:
    """An emptied dict keeps room for all it ever held, and whoever walks it next walks that: 60 µs after 100,000 names."""
    if name in names:
        del names[name]
        if not names:
            names.clear()


def _job_refused(state: State, e: JobRefused) -> None:
    """A refusal changes nothing, least of all a job that exists under the same id."""


def _job_pending(state: State, e: JobPending) -> None:
    job = state.jobs[e.job]
    job.code, job.reason = e.code, e.reason
    _drop_key(state.unexplained, e.job)
    state.told[job.request] = (e.code, e.reason)
    # Only a round that tried every kind that had to be explains.
    _all_tried(state)


def _all_tried(state: State) -> None:
    state.stale = False
    state.freed.clear()


# --- an attempt ---


def _job_placed(state: State, e: JobPlaced) -> None:
    name = e.job
    job = state.jobs[name]
    _dequeue(state, name, job)
    job.phase, job.attempt, job.placed_at = "placed", e.attempt, e.at
    job.nodes, job.members_on_node = e.nodes, e.members_on_node
    job.code, job.reason = "", e.reason
    job.held_nodes += len(e.nodes)
    state.due.set(name, e.due_at)
    _all_tried(state)
    cpu, memory = job.request.cpu_milli, job.request.memory_bytes
    # Nodes of a gang mostly hold the same of it: one object for all of them.
    same: dict[tuple[int, int], Holding] = {}
    held: list[Holding] = []
    for key in zip(e.members_on_node, e.card_masks, strict=True):
        h = same.get(key)
        if h is None:
            h = same[key] = Holding(key[1], e.card_milli, key[0] * cpu, key[0] * memory)
        held.append(h)
    attempt = (name, e.attempt)
    for node, h in zip(e.nodes, held, strict=True):
        on_node = state.holdings.get(node)
        if on_node is None:
            state.holdings[node] = {attempt: h}
        else:
            on_node[attempt] = h
    if not state.nodes_dirty:
        state.nodes.take_all(e.nodes, held)


def _job_cancel_requested(state: State, e: JobCancelRequested) -> None:
    job = state.jobs[e.job]
    job.cancelled_by, job.cancel_reason = e.user, e.reason
    _look(state, e.job, job)


def _receipt_recorded(state: State, e: ReceiptRecorded) -> None:
    if e.kind == "released":
        _free(state, e.job, e.attempt, e.node)
        return
    job = state.jobs[e.job]
    if e.kind == "start_failed":
        job.trouble = job.trouble or "start_failed"
        job.trouble_reason = job.trouble_reason or f"node {e.node} could not start its members" + _because(e.reason)
    else:
        # A member that finished had started, whichever receipt comes first.
        if e.node not in job.started:
            job.started.append(e.node)
        if e.kind != "started" and e.node not in job.finished:
            job.finished.append(e.node)
        if e.kind == "failed" and not job.exit_code:
            job.exit_code = e.exit_code or 1
            job.trouble_reason = f"a member on {e.node} failed with exit code {job.exit_code}" + _because(e.reason)
    _look(state, e.job, job)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _look(state: State, name: str, job: Job) -> None:
    """Note whether `decide` has something to do for this job."""
    count = len(job.nodes)
    if job.phase == "placed":
        wants = len(job.started) == count or bool(job.trouble or job.exit_code or job.cancelled_by)
    elif job.phase == "running":
        wants = len(job.finished) == count or bool(job.trouble or job.exit_code or job.cancelled_by)
    elif job.phase == "pending":
        wants = bool(job.cancelled_by)
    else:
        wants = job.phase == "ending"
    if wants:
        state.attention[name] = None
    else:
        _drop_key(state.attention, name)


def _job_started(state: State, e: JobStarted) -> None:
    job = state.jobs[e.job]
    job.phase, job.started_at, job.ran_attempt = "running", e.at, e.attempt
    state.due.drop(e.job)
    if job.ask.run_limit_ms:
        state.limits.set(e.job, e.at + job.ask.run_limit_ms)
    _look(state, e.job, job)


def _job_progressed(state: State, e: JobProgressed) -> None:
    job = state.jobs[e.job]
    job.progress = e.progress_fraction
    if e.checkpoint:
        job.checkpoint, job.checkpoint_at = e.checkpoint, e.checkpoint_at


def _job_interrupted(state: State, e: JobInterrupted) -> None:
    job = state.jobs[e.job]
    _await_release(state, e.job, job, e.at)
    job.failures += 1
    job.code, job.reason = e.code, e.reason
    job.started, job.finished = [], []
    job.trouble, job.trouble_reason, job.exit_code = "", "", 0
    if e.requeued:
        job.phase, job.waiting_since, job.nodes, job.members_on_node = "pending", e.at, (), ()
        _enqueue(state, e.job, job)
    else:
        job.phase = "ending"
    _look(state, e.job, job)


def _job_ended(state: State, e: JobEnded) -> None:
    job = state.jobs[e.job]
    if job.phase == "pending":
        _dequeue(state, e.job, job)
    else:
        _await_release(state, e.job, job, e.at)
    job.phase, job.outcome, job.ended_at = "ended", e.outcome, e.at
    state.mix.ended(job.request, e.ran_ms)
    # The reason of a failure begins with its code.
    job.code = e.reason.partition(":")[0] if e.outcome == "failed" else e.outcome
    job.reason, job.exit_code = e.reason, e.exit_code
    _look(state, e.job, job)
    state.ended[e.job] = None
    _forget_oldest(state)


def _forget_oldest(state: State) -> None:
    """One job ends, two are looked at: so the bound is kept even when some must stay."""
    for _ in range(2):
        if len(state.ended) <= KEEP_ENDED:
            return
        oldest = next(iter(state.ended))
        del state.ended[oldest]
        if state.jobs[oldest].held_nodes:
            # Its id must not be taken again while some node may still hold its capacity.
            state.ended[oldest] = None
        else:
            del state.jobs[oldest]


# --- giving back ---


def _await_release(state: State, name: str, job: Job, at: int) -> None:
    """The attempt is over: the release of what it holds is awaited, node by node, but from none that is gone."""
    state.due.drop(name)
    state.limits.drop(name)
    key = (name, job.attempt)
    if job.phase not in ACTIVE:
        return
    holders = {n: None for n in job.nodes if key in state.holdings.get(n, {})}
    if holders:
        state.unreleased[key] = holders
    for node in holders:
        if node not in state.gone:
            state.releasing[(*key, node)] = at


def _not_awaited(state: State, job: str, attempt: int, node: str) -> None:
    """The release of this attempt on this node is no longer awaited, nor overdue."""
    state.releasing.pop((job, attempt, node), None)
    state.quarantined.pop((job, attempt, node), None)


def _free(state: State, name: str, attempt: int, node: str) -> None:
    """The node confirmed that it holds nothing of this attempt any more."""
    held = _drop(state, name, attempt, node)
    if node not in state.descriptions:
        # Confirmed by a node that is gone: nothing that could be used became free.
        return
    state.freed[node] = None
    if not state.nodes_dirty:
        state.nodes.give(node, held)


def _drop(state: State, name: str, attempt: int, node: str) -> Holding:
    """The attempt holds nothing on this node any more."""
    key = (name, attempt)
    on_node = state.holdings[node]
    held = on_node.pop(key)
    _not_awaited(state, name, attempt, node)
    holders = state.unreleased.get(key)
    if holders is not None:
        holders.pop(node, None)
        if not holders:
            del state.unreleased[key]
    state.jobs[name].held_nodes -= 1
    if node in state.gone:
        state.gone_held -= 1
        if not on_node:
            del state.gone[node]
    if not on_node:
        del state.holdings[node]
    return held


def _capacity_quarantined(state: State, e: CapacityQuarantined) -> None:
    _not_awaited(state, e.job, e.attempt, e.node)
    state.quarantined[(e.job, e.attempt, e.node)] = e.at


def _mix_learned(state: State, e: MixLearned) -> None:
    state.mix.learned = e
    state.costs = Costs(e)


_HANDLERS = cast(
    dict[type[LedgerEntry], Callable[[State, LedgerEntry], None]],
    {
        EngineStarted: _engine_started,
        NodeRecorded: _node_recorded,
        LinkRecorded: _link_recorded,
        JobAccepted: _job_accepted,
        JobRefused: _job_refused,
        JobPending: _job_pending,
        JobPlaced: _job_placed,
        JobCancelRequested: _job_cancel_requested,
        ReceiptRecorded: _receipt_recorded,
        JobStarted: _job_started,
        JobProgressed: _job_progressed,
        JobInterrupted: _job_interrupted,
        JobEnded: _job_ended,
        CapacityQuarantined: _capacity_quarantined,
        MixLearned: _mix_learned,
    },
)
