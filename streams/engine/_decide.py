"""`decide`: one scheduling round, as numbered steps.

1. Time-outs: nodes silent for too long, start receipts overdue, releases not confirmed, run limits reached.
2. Attention: attempts in trouble are interrupted, those that all started are running, those that ended are ended.
3. The line: for each kind of request the oldest of the highest priority; the best of those heads is tried first.
4. Place: the smallest, tightest place that holds the whole gang; else its kind is blocked until something is freed.
5. Explain: every waiting job whose reason changed gets its entry.

A blocked kind costs nothing until capacity is freed, and never holds back another kind (no reservations yet: a large gang
can be overtaken by smaller work for as long as that work keeps coming).
"""

import heapq
from collections.abc import Callable
from typing import Final

from schemas.records import (
    CapacityQuarantined,
    JobEnded,
    JobInterrupted,
    JobPending,
    JobPlaced,
    JobStarted,
    LedgerEntry,
)
from streams.engine._evolve import _trouble, _trouble_on, evolve
from streams.engine._place import Fit, NoFit, find
from streams.engine._state import EngineConfig, Job, Request, State

DEFAULT: Final = EngineConfig()
Propose = Callable[[LedgerEntry], None]


def decide(state: State, now: int, config: EngineConfig = DEFAULT) -> list[LedgerEntry]:
    """Propose and evolve what follows at `now` (milliseconds). Never goes back in time: `at` is at least the last entry's."""
    at = max(now, state.at)
    entries: list[LedgerEntry] = []

    def propose(entry: LedgerEntry) -> None:
        evolve(state, entry)
        entries.append(entry)

    _time_outs(state, at, config, propose)
    _attend(state, at, config, propose)
    _place_line(state, at, config, propose)
    return entries


def next_wake(state: State, config: EngineConfig = DEFAULT) -> int | None:
    """When `decide` has something to do even without input, milliseconds; None when never."""
    times = [since + config.lost_after_ms for since in state.silent_since.values() if since >= 0]
    times += list(state.due.values())[:1]
    times += [since + config.release_timeout_ms for since, _ in list(state.releasing.values())[:1]]
    times += state.limits.values()
    return min(times) if times else None


def _time_outs(state: State, at: int, config: EngineConfig, propose: Propose) -> None:
    for node, since in list(state.silent_since.items()):
        if since >= 0 and at - since >= config.lost_after_ms:
            _trouble_on(state, node, f"node {node} was silent for {(at - since) / 1000:g} s")
    for name, due in list(state.due.items()):
        if due > at:
            break  # placed in order of time, all with the same patience
        job = state.jobs[name]
        missing = [n for n in job.nodes if n not in job.started]
        if missing:
            _trouble(state, name, job, "start_overdue", f"no start receipt from {_names(missing)} in time")
    while state.releasing:
        (name, attempt), (since, nodes) = next(iter(state.releasing.items()))
        if since + config.release_timeout_ms > at:
            break
        for node in list(nodes):
            held = state.holdings[node][(name, attempt)]
            reason = f"{node} did not confirm the release within {config.release_timeout_ms / 1000:g} s"
            propose(
                CapacityQuarantined(
                    state.domain, state.seq + 1, at, "", name, attempt, node, held.card_mask, held.card_milli, reason
                )
            )
    for name, limit in list(state.limits.items()):
        if limit <= at:
            job = state.jobs[name]
            _trouble(state, name, job, "run_limit", f"ran into its limit of {job.ask.run_limit_ms / 1000:g} s")


def _names(nodes: list[str]) -> str:
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


def _attend(state: State, at: int, config: EngineConfig, propose: Propose) -> None:
    while state.attention:
        name = next(iter(state.attention))
        job = state.jobs[name]
        if job.phase == "ended":
            del state.attention[name]
        elif job.cancelled_by:
            _end(state, at, propose, name, job, "cancelled", f"cancelled by {job.cancelled_by}: {job.cancel_reason}")
        elif job.phase == "pending":
            del state.attention[name]
        elif job.exit_code:
            _end(state, at, propose, name, job, "failed", job.trouble_reason)
        elif len(job.finished) == len(job.nodes) and not job.trouble:
            if job.phase == "placed":
                _start(state, at, propose, name, job)
            _end(state, at, propose, name, job, "finished", "all members finished")
        elif job.trouble in ("too_many_attempts", "run_limit"):
            _end(state, at, propose, name, job, "failed", job.trouble_reason)
        elif job.trouble:
            _interrupt(state, at, config, propose, name, job)
        elif job.phase == "placed" and len(job.started) == len(job.nodes):
            _start(state, at, propose, name, job)
        else:
            del state.attention[name]


def _start(state: State, at: int, propose: Propose, name: str, job: Job) -> None:
    propose(JobStarted(state.domain, state.seq + 1, at, "", name, job.attempt, max(0, at - job.ask.submitted_at)))


def _interrupt(state: State, at: int, config: EngineConfig, propose: Propose, name: str, job: Job) -> None:
    again = job.failures + 1 < config.max_attempts
    reason = job.trouble_reason + ("" if again else f"; that was attempt {job.attempt}, no more are made")
    ran = at - job.started_at if job.phase == "running" else 0
    propose(JobInterrupted(state.domain, state.seq + 1, at, "", name, job.attempt, job.trouble, reason, ran, again))


def _end(state: State, at: int, propose: Propose, name: str, job: Job, outcome: str, reason: str) -> None:
    started = job.started_at if job.attempt and job.started_at >= job.placed_at else 0
    waited = (started or at) - job.ask.submitted_at
    ran = at - started if started else 0
    ask = job.ask
    propose(
        JobEnded(
            state.domain, state.seq + 1, at, "", name, job.attempt, ask.user, ask.queue, outcome, reason, job.exit_code,
            max(0, waited), ran, ask.members * ask.cards_milli,
        )
    )  # fmt: skip


def _place_line(state: State, at: int, config: EngineConfig, propose: Propose) -> None:
    heads = [(keys[0], request) for request, keys in state.line.items() if not _blocked(state, request)]
    heapq.heapify(heads)
    while heads:
        key, request = heapq.heappop(heads)
        name = key[2]
        found = find(state.settle(), request)
        if isinstance(found, NoFit):
            state.blocked[request] = (state.freed, found.code, found.reason)
            _explain_changed(state, at, propose, request, found)
            continue
        _place(state, at, config, propose, name, found)
        keys = state.line.get(request)
        if keys:
            heapq.heappush(heads, (keys[0], request))
    _explain_new(state, at, propose)


def _blocked(state: State, request: Request) -> bool:
    known = state.blocked.get(request)
    return known is not None and known[0] == state.freed


def _place(state: State, at: int, config: EngineConfig, propose: Propose, name: str, fit: Fit) -> None:
    job = state.jobs[name]
    ask = job.ask
    nodes = state.nodes
    propose(
        JobPlaced(
            state.domain, state.seq + 1, at, "", name, job.attempt + 1, ask.user, ask.queue,
            tuple(nodes.names[r] for r in fit.rows), fit.members, fit.masks, fit.card_milli, ask.members * ask.cards_milli,
            fit.level, fit.place, max(0, at - (ask.submitted_at if not job.attempt else job.waiting_since)), fit.candidates,
            fit.reason, at + config.start_timeout_ms,
        )
    )  # fmt: skip


def _explain_changed(state: State, at: int, propose: Propose, request: Request, why: NoFit) -> None:
    """Those of the kind that were told another reason before. New ones are told at the end of the round."""
    first = state.jobs[state.line[request][0][2]]
    if first.code == why.code or first.ask.job in state.unexplained:
        return
    for position, (_, _, name) in enumerate(state.line[request], 1):
        job = state.jobs[name]
        if name not in state.unexplained and job.code != why.code:
            _tell(state, at, propose, name, job, why.code, why.reason, position)


def _explain_new(state: State, at: int, propose: Propose) -> None:
    for name in list(state.unexplained):
        job = state.jobs[name]
        _, code, reason = state.blocked[job.request]
        keys = state.line[job.request]
        position = len(keys) if keys[-1] == job.key else keys.index(job.key) + 1
        _tell(state, at, propose, name, job, code, reason, position)


def _tell(state: State, at: int, propose: Propose, name: str, job: Job, code: str, reason: str, position: int) -> None:
    propose(JobPending(state.domain, state.seq + 1, at, "", name, job.attempt + 1, code, reason, position))
