"""`decide`: one scheduling round, as numbered steps.

1. Facts: attempts that ended are ended, those in trouble interrupted, those whose members all started are running.
2. Time-outs: nodes silent too long, start receipts overdue, run limits reached, releases not confirmed.
3. Learn: when enough was accepted since the last time, what the mix of requests says about free capacity (`_mix`).
4. Order: every kind of request is represented by its first job in line (priority downwards, then age); best head first.
   Kinds known not to fit are left out until something is freed that could hold a member of theirs.
5. Place: the smallest place that holds the whole gang on cards of one model, where it costs the others least; if there is
   none, the kind is set aside for this round.
6. Explain: waiting jobs that were never told why they wait, and those whose reason code changed.

A kind set aside never holds back another (first fit behind a blocked head). There are no reservations yet: a large gang can
be overtaken by smaller work of equal or lower priority for as long as that keeps coming.
Called by `streams.decide` after each batch and when `next_wake` is reached. Changes the state through `evolve` only.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from schemas.records import (
    CapacityQuarantined,
    JobEnded,
    JobInterrupted,
    JobPending,
    JobPlaced,
    JobStarted,
    LedgerEntry,
    MixLearned,
)
from streams.engine import _mix
from streams.engine._evolve import ACTIVE, evolve
from streams.engine._line import Key
from streams.engine._place import Fit, NoFit, find
from streams.engine._request import Request
from streams.engine._state import EngineConfig, Job, State

DEFAULT: Final = EngineConfig()
# When a kind's reason code changes, its first jobs in line are told; the others read it from their kind (`inspect`).
# All of them would be 100,000 entries whenever a long line of equal jobs meets another shortage.
TELL_FIRST: Final = 64
Propose = Callable[[LedgerEntry], None]


def decide(state: State, now: int, config: EngineConfig = DEFAULT) -> list[LedgerEntry]:
    """Propose and evolve what follows at `now` (milliseconds). Never goes back in time: `at` is at least the last entry's."""
    at = max(now, state.at)
    entries: list[LedgerEntry] = []

    def propose(entry: LedgerEntry) -> None:
        evolve(state, entry)
        entries.append(entry)

    _facts(state, at, config, propose)
    _time_outs(state, at, config, propose)
    _learn(state, at, propose)
    why = _place_line(state, at, config, propose)
    _explain(state, at, why, propose)
    return entries


def next_wake(state: State, config: EngineConfig = DEFAULT) -> int | None:
    """When `decide` has something to do even without input, milliseconds; None when never."""
    if state.attention or state.unexplained:
        return state.at
    times = [state.due.first(), state.limits.first()]
    for node, since in state.silent_since.items():
        if _runs_on(state, node):
            times.append(since + config.lost_after_ms)
            break
    for since in state.releasing.values():
        times.append(since + config.release_timeout_ms)
        break
    return min((t for t in times if t is not None), default=None)


# --- 1. facts ---


def _facts(state: State, at: int, config: EngineConfig, propose: Propose) -> None:
    for name in list(state.attention):
        job = state.jobs[name]
        if job.phase in ACTIVE and not job.exit_code and len(job.finished) == len(job.nodes):
            if job.phase == "placed":
                _start(state, at, propose, name, job)
            _end(state, at, propose, name, job, "finished", "all members finished")
        elif job.cancelled_by:
            _end(state, at, propose, name, job, "cancelled", f"cancelled by {job.cancelled_by}: {job.cancel_reason}")
        elif job.phase == "ending":
            _end(state, at, propose, name, job, "failed", f"{job.code}: {job.reason}")
        elif job.exit_code:
            _end(state, at, propose, name, job, "failed", f"member_failed: {job.trouble_reason}")
        elif job.trouble:
            _interrupt(state, at, config, propose, name, job, job.trouble, job.trouble_reason)
        else:
            _start(state, at, propose, name, job)


def _start(state: State, at: int, propose: Propose, name: str, job: Job) -> None:
    propose(JobStarted(state.domain, state.seq + 1, at, "", name, job.attempt, max(0, at - job.ask.submitted_at)))


def _interrupt(
    state: State, at: int, config: EngineConfig, propose: Propose, name: str, job: Job, code: str, reason: str
) -> None:
    """Give up the attempt; the job waits again, or fails when it had all its attempts."""
    again = code != "run_limit" and job.failures + 1 < config.max_attempts
    ran = at - job.started_at if job.phase == "running" else 0
    propose(JobInterrupted(state.domain, state.seq + 1, at, "", name, job.attempt, code, reason, ran, again))
    if not again:
        if code != "run_limit":
            code, reason = "too_many_attempts", f"{job.failures} attempts were interrupted, the last because {reason}"
        _end(state, at, propose, name, job, "failed", f"{code}: {reason}")


def _end(state: State, at: int, propose: Propose, name: str, job: Job, outcome: str, reason: str) -> None:
    ask = job.ask
    waited = (job.started_at if job.ran_attempt else at) - ask.submitted_at
    ran = at - job.started_at if job.ran_attempt == job.attempt > 0 else 0
    propose(
        JobEnded(
            state.domain, state.seq + 1, at, "", name, job.attempt, ask.user, ask.queue, outcome, reason, job.exit_code,
            max(0, waited), ran, ask.members * ask.cards_milli,
        )
    )  # fmt: skip


# --- 2. time-outs ---


def _runs_on(state: State, node: str) -> list[tuple[str, Job]]:
    """Attempts at work on a node, whose member there has not finished."""
    found = []
    for name, attempt in state.holdings.get(node, {}):
        job = state.jobs[name]
        if job.attempt == attempt and job.phase in ACTIVE and node not in job.finished:
            found.append((name, job))
    return found


def _time_outs(state: State, at: int, config: EngineConfig, propose: Propose) -> None:
    for node, since in state.silent_since.items():
        if at - since < config.lost_after_ms:
            break  # in the order they fell silent
        for name, job in _runs_on(state, node):
            reason = f"node {node} was silent for {(at - since) / 1000:g} s"
            _interrupt(state, at, config, propose, name, job, "node_lost", reason)
    for name in state.due.due(at):
        job = state.jobs[name]
        missing = [n for n in job.nodes if n not in job.started]
        reason = f"no start receipt from {_some(missing)} in time"
        _interrupt(state, at, config, propose, name, job, "start_overdue", reason)
    for name in state.limits.due(at):
        job = state.jobs[name]
        reason = f"ran into its limit of {job.ask.run_limit_ms / 1000:g} s"
        _interrupt(state, at, config, propose, name, job, "run_limit", reason)
    patience = config.release_timeout_ms
    overdue = []
    for key, since in state.releasing.items():
        if since + patience > at:
            break  # in the order they began
        overdue.append(key)
    for name, attempt, node in overdue:
        held = state.holdings[node][(name, attempt)]
        reason = f"{node} did not confirm the release within {patience / 1000:g} s"
        propose(
            CapacityQuarantined(
                state.domain, state.seq + 1, at, "", name, attempt, node, held.card_mask, held.card_milli, reason
            )
        )


def _some(nodes: list[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


# --- 3. learn ---


def _learn(state: State, at: int, propose: Propose) -> None:
    if _mix.due(state.mix):
        model = _mix.learn(state.mix, state.settle())
        if model is not None:
            propose(MixLearned(state.domain, state.seq + 1, at, "", *model))


# --- 4. order and 5. place ---


def _place_line(state: State, at: int, config: EngineConfig, propose: Propose) -> dict[Request, NoFit]:
    """Place all that fits. Returns why the kinds that were tried and still wait do not fit."""
    kinds = _to_try(state)
    heads: list[tuple[Key, Request]] = [(state.line[request].first(), request) for request in kinds]
    heapq.heapify(heads)
    why: dict[Request, NoFit] = {}
    while heads:
        key, request = heads[0]
        found = _find(state, request)
        if isinstance(found, NoFit):
            why[request] = found
            heapq.heappop(heads)
            continue
        _place(state, at, config, propose, key[-1], found)
        kind = state.line.get(request)
        if kind is not None:
            heapq.heapreplace(heads, (kind.first(), request))
        else:
            heapq.heappop(heads)
    state.tried_version = state.nodes.version
    return why


def _to_try(state: State) -> Iterable[Request]:
    """Kinds that may fit better than when they were tried last: new ones, and those that what was freed could hold a member of."""
    new = dict.fromkeys([state.jobs[name].request for name in state.unexplained])
    if not (state.stale or state.freed) or state.settle().version == state.tried_version:
        return new
    if state.stale:
        return state.line
    nodes = state.nodes
    rows = [nodes.index[node] for node in state.freed if node in nodes.index]
    for c in sorted(set(nodes.class_of[rows].tolist())):
        if nodes.takes(c):
            new |= dict.fromkeys(state.needs.that_fit(nodes.classes.conditions[c]))
    return new


def _find(state: State, request: Request) -> Fit | NoFit:
    """`find`, but not twice for the same question to unchanged arrays."""
    nodes = state.settle()
    known = state.memo.get(request)
    if known is not None and known[0] == nodes.version:
        return NoFit(*known[1:])
    found = find(nodes, request, state.scans, state.costs)
    if isinstance(found, NoFit):
        state.memo[request] = (nodes.version, *found)
    return found


def _place(state: State, at: int, config: EngineConfig, propose: Propose, name: str, fit: Fit) -> None:
    job = state.jobs[name]
    ask = job.ask
    names = state.nodes.names
    since = job.waiting_since if job.attempt else ask.submitted_at
    propose(
        JobPlaced(
            state.domain, state.seq + 1, at, "", name, job.attempt + 1, ask.user, ask.queue,
            tuple([names[r] for r in fit.rows]), fit.members, fit.masks, fit.card_milli, ask.members * ask.cards_milli,
            fit.level, fit.place, max(0, at - since), fit.candidates, fit.reason, at + config.start_timeout_ms,
        )
    )  # fmt: skip


# --- 6. explain ---


def _explain(state: State, at: int, why: dict[Request, NoFit], propose: Propose) -> None:
    changed = [r for r, no in why.items() if r in state.told and state.told[r][0] != no.code]
    for request in changed:
        for *_, name in state.line[request].head(TELL_FIRST):
            if name not in state.unexplained:
                _tell(state, at, propose, name, why[request])
    for name in list(state.unexplained):
        _tell(state, at, propose, name, why[state.jobs[name].request])


def _tell(state: State, at: int, propose: Propose, name: str, why: NoFit) -> None:
    job = state.jobs[name]
    propose(
        JobPending(
            state.domain, state.seq + 1, at, "", name, job.attempt + 1, why.code, why.reason, state.position(job)
        )
    )
