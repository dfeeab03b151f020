"""`evolve`: apply one ledger entry to a state. Deterministic, total, never asks for anything but its arguments."""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import cast

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
    NodeRecorded,
    ReceiptRecorded,
)
from streams.engine._state import KEEP_ENDED, Holding, Job, State, request_of


def evolve(state: State, entry: LedgerEntry) -> None:
    """Apply `entry`. Raises `Corrupted` when it is not the next one of this domain."""
    if entry.seq != state.seq + 1 or entry.domain != state.domain:
        raise Corrupted(
            f"ledger entry {entry.seq} of domain {entry.domain} cannot follow {state.seq} of domain {state.domain}"
        )
    if entry.at < state.at:
        raise Corrupted(f"ledger entry {entry.seq} goes back in time, from {state.at} to {entry.at}")
    state.seq = entry.seq
    state.at = entry.at
    _HANDLERS[type(entry)](state, entry)


def _engine_started(state: State, entry: EngineStarted) -> None:
    pass


def _node_recorded(state: State, e: NodeRecorded) -> None:
    before = state.descriptions.get(e.node)
    state.freed += 1
    if e.state == "removed":
        state.silent_since.pop(e.node, None)
        if before is not None:
            _trouble_on(state, e.node, f"node {e.node} was removed")
            del state.descriptions[e.node]
            # The node is gone with all it held: nothing there can be free, nothing is awaited from it.
            for job, attempt in state.holdings.pop(e.node, {}):
                state.not_awaited(job, attempt, e.node)
                state.quarantined.pop((job, attempt, e.node), None)
            state.nodes_dirty = True
        return
    state.descriptions[e.node] = e
    if e.state == "silent":
        state.silent_since.setdefault(e.node, e.at)
    else:
        state.silent_since.pop(e.node, None)
    same_place = before is not None and (
        before.region, before.site, before.data_centre, before.row, before.rack, before.cards, before.card_model,
        before.card_memory_bytes, before.cpu_milli, before.memory_bytes,
    ) == (
        e.region, e.site, e.data_centre, e.row, e.rack, e.cards, e.card_model, e.card_memory_bytes, e.cpu_milli, e.memory_bytes,
    )  # fmt: skip
    if same_place and not state.nodes_dirty:
        state.nodes.fill(e, state.held_on(e.node))
    else:
        state.nodes_dirty = True


def _trouble_on(state: State, node: str, reason: str) -> None:
    """Every attempt at work on this node is in trouble."""
    for name, attempt in state.holdings.get(node, {}):
        job = state.jobs.get(name)
        if job is not None and job.attempt == attempt and job.phase in ("placed", "running"):
            _trouble(state, name, job, "node_lost", reason)


def _trouble(state: State, name: str, job: Job, code: str, reason: str) -> None:
    if not job.trouble:
        job.trouble, job.trouble_reason = code, reason
    state.attention[name] = None


def _link_recorded(state: State, e: LinkRecorded) -> None:
    if e.state == "removed":
        state.links.pop(e.link, None)
    else:
        state.links[e.link] = e


def _job_accepted(state: State, e: JobAccepted) -> None:
    job = Job(e, request_of(e), waiting_since=e.at)
    state.jobs[e.job] = job
    state.ended.pop(e.job, None)
    _enqueue(state, e.job, job)


def _enqueue(state: State, name: str, job: Job) -> None:
    insort(state.line.setdefault(job.request, []), job.key)
    state.unexplained[name] = None


def _dequeue(state: State, name: str, job: Job) -> None:
    keys = state.line[job.request]
    i = bisect_left(keys, job.key)
    del keys[i]
    if not keys:
        del state.line[job.request]
        state.blocked.pop(job.request, None)
    state.unexplained.pop(name, None)


def _job_refused(state: State, e: JobRefused) -> None:
    pass


def _job_pending(state: State, e: JobPending) -> None:
    job = state.jobs[e.job]
    job.code, job.reason = e.code, e.reason
    state.unexplained.pop(e.job, None)


def _job_placed(state: State, e: JobPlaced) -> None:
    job = state.jobs[e.job]
    _dequeue(state, e.job, job)
    job.phase, job.attempt, job.placed_at = "placed", e.attempt, e.at
    job.nodes, job.members_on_node = e.nodes, e.members_on_node
    job.code, job.reason = "", e.reason
    job.started, job.finished, job.trouble, job.trouble_reason = [], [], "", ""
    state.due[e.job] = e.due_at
    nodes = state.nodes if not state.nodes_dirty else None
    request = job.request
    for node, members, mask in zip(e.nodes, e.members_on_node, e.card_masks, strict=True):
        held = Holding(mask, e.card_milli, members * request.cpu_milli, members * request.memory_bytes)
        state.holdings.setdefault(node, {})[(e.job, e.attempt)] = held
        if nodes is not None:
            nodes.take(node, held)


def _job_cancel_requested(state: State, e: JobCancelRequested) -> None:
    job = state.jobs[e.job]
    job.cancelled_by, job.cancel_reason = e.user, e.reason
    state.attention[e.job] = None


def _receipt_recorded(state: State, e: ReceiptRecorded) -> None:
    if e.kind == "released":
        _free(state, e.job, e.attempt, e.node)
        return
    job = state.jobs[e.job]
    if e.kind == "start_failed":
        _trouble(
            state,
            e.job,
            job,
            "start_failed",
            f"node {e.node} could not start its members: {e.reason or 'no reason given'}",
        )
        return
    if e.node not in job.started:
        job.started.append(e.node)
        if len(job.started) == len(job.nodes):
            state.attention[e.job] = None
    if e.kind in ("finished", "failed"):
        if e.node not in job.finished:
            job.finished.append(e.node)
        if e.kind == "failed" and not job.exit_code:
            job.exit_code = e.exit_code or 1
            job.trouble_reason = e.reason or f"a member on {e.node} failed with exit code {job.exit_code}"
        if len(job.finished) == len(job.nodes) or e.kind == "failed":
            state.attention[e.job] = None


def _free(state: State, job: str, attempt: int, node: str) -> None:
    """The node confirmed that it holds nothing of this attempt any more."""
    state.not_awaited(job, attempt, node)
    state.quarantined.pop((job, attempt, node), None)
    held = state.holdings.get(node, {})
    if held.pop((job, attempt), None) is None:
        return
    if not held:
        del state.holdings[node]
    state.freed += 1
    if not state.nodes_dirty and node in state.nodes.index:
        state.nodes.fill(state.descriptions[node], state.held_on(node))


def _job_started(state: State, e: JobStarted) -> None:
    job = state.jobs[e.job]
    job.phase, job.started_at = "running", e.at
    state.due.pop(e.job, None)
    if job.ask.run_limit_ms:
        state.limits[e.job] = e.at + job.ask.run_limit_ms
    if len(job.finished) < len(job.nodes) and not job.exit_code and not job.cancelled_by and not job.trouble:
        state.attention.pop(e.job, None)


def _job_progressed(state: State, e: JobProgressed) -> None:
    job = state.jobs[e.job]
    job.progress = e.progress_fraction
    if e.checkpoint:
        job.checkpoint, job.checkpoint_at = e.checkpoint, e.checkpoint_at


def _give_back(state: State, name: str, job: Job, at: int) -> None:
    """The attempt is over: what it holds is awaited, node by node."""
    state.due.pop(name, None)
    state.limits.pop(name, None)
    state.attention.pop(name, None)
    key = (name, job.attempt)
    if key in state.releasing:
        return
    awaited = [n for n in job.nodes if key in state.holdings.get(n, {}) and (*key, n) not in state.quarantined]
    if awaited:
        state.releasing[key] = (at, awaited)


def _job_interrupted(state: State, e: JobInterrupted) -> None:
    job = state.jobs[e.job]
    _give_back(state, e.job, job, e.at)
    job.failures += 1
    job.code, job.reason = e.code, e.reason
    job.trouble, job.trouble_reason, job.exit_code = "", "", 0
    if e.requeued:
        job.phase, job.waiting_since, job.nodes, job.members_on_node = "pending", e.at, (), ()
        job.started, job.finished = [], []
        _enqueue(state, e.job, job)
    else:
        # Its end follows as an entry of its own.
        job.phase = "placed"
        state.attention[e.job] = None
        job.trouble, job.trouble_reason = "too_many_attempts" if e.code != "run_limit" else "run_limit", e.reason


def _job_ended(state: State, e: JobEnded) -> None:
    job = state.jobs[e.job]
    if job.phase == "pending":
        _dequeue(state, e.job, job)
    _give_back(state, e.job, job, e.at)
    job.phase, job.outcome, job.ended_at = "ended", e.outcome, e.at
    job.code, job.reason, job.exit_code = e.outcome, e.reason, e.exit_code
    state.ended[e.job] = None
    if len(state.ended) > KEEP_ENDED:
        oldest = next(iter(state.ended))
        del state.ended[oldest]
        del state.jobs[oldest]


def _capacity_quarantined(state: State, e: CapacityQuarantined) -> None:
    state.not_awaited(e.job, e.attempt, e.node)
    state.quarantined[(e.job, e.attempt, e.node)] = e.at


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
    },
)
