"""`accept`: an input becomes ledger entries, or nothing (a double, news of an older attempt), or `Poison`.

Values are checked here once more: observe and the SDK check too, but the topics are open to others. What infrastructure
says and cannot be is `Poison`; what a user asks and cannot be is a `JobRefused`, so that the user hears of it. A wish that no
node of today's map can grant is accepted and waits with its reason: nodes may come. Called by `streams.decide`.
"""

import math
from typing import Final

from schemas.errors import Poison
from schemas.records import (
    JobAccepted,
    JobCancelled,
    JobCancelRequested,
    JobProgress,
    JobProgressed,
    JobRefused,
    JobSubmitted,
    LedgerEntry,
    LinkChanged,
    LinkRecorded,
    NodeChanged,
    NodeRecorded,
    Receipt,
    ReceiptRecorded,
    Row,
)
from streams.engine._classes import WHOLE
from streams.engine._evolve import ACTIVE, evolve
from streams.engine._nodes import LEVELS
from streams.engine._state import State

DAY_MS: Final = 24 * 3600 * 1000
MAX_CARDS_ON_NODE: Final = 63
MAX_MEMBERS: Final = 100_000
# Bytes, 1/1000 cores: beyond any machine (1 PiB), and products with 1000 stay far inside 64 bits.
MAX_AMOUNT: Final = 1 << 50
# 100 years: sums with any time stay dates that databases know.
MAX_RUN_MS: Final = 100 * 366 * DAY_MS
# Characters of a name, and of what others say and entries repeat. An input may have 4 MiB, and an entry or command that holds two or
# three such texts would be too large to be written: its input would end the engine again after every restart.
MAX_NAME: Final = 1_000
MAX_TOLD: Final = 10_000
ADJACENCIES: Final = ("", *LEVELS)
RECEIPT_KINDS: Final = ("started", "start_failed", "finished", "failed", "released")
STATES: Final = ("up", "silent", "draining", "maintenance", "removed")
_ASK_FIELDS: Final = JobAccepted._fields[6:]


def accept(state: State, row: Row, source: str, now: int) -> list[LedgerEntry]:
    """Propose and evolve what an input changes. `source` is its position, `now` the runner's time in milliseconds.

    Raises `Poison` for impossible values. Rows of another domain change nothing.
    """
    at = max(now, state.at)
    if not isinstance(row, NodeChanged | LinkChanged | JobSubmitted | JobCancelled | Receipt | JobProgress):
        raise Poison("wrong_record", f"a {type(row).__name__} is not an input of the engine")
    if row.domain != state.domain:
        return []
    if row.at > at + DAY_MS:
        raise Poison(
            "from_the_future", f"the event's time {row.at} is {(row.at - at) // DAY_MS} days ahead of the clock ({at})"
        )
    if row.at < 0:
        raise Poison("before_1970", f"the event's time {row.at} is before 1970; milliseconds since then would be right")
    entry: LedgerEntry | None
    if isinstance(row, Receipt):
        entry = _receipt(state, row, source, at)
    elif isinstance(row, JobSubmitted):
        entry = _job(state, row, source, at)
    elif isinstance(row, NodeChanged):
        entry = _node(state, row, source, at)
    elif isinstance(row, JobProgress):
        entry = _progress(state, row, source, at)
    elif isinstance(row, JobCancelled):
        entry = _cancel(state, row, source, at)
    else:
        entry = _link(state, row, source, at)
    if entry is None:
        return []
    evolve(state, entry)
    return [entry]


def _impossible(what: str) -> Poison:
    return Poison("impossible_value", what)


def _named(what: str, *names: str) -> None:
    """The first of these must not be empty."""
    if not names[0]:
        raise _impossible(f"the {what} has no name")
    for name in names:
        if len(name) > MAX_NAME:
            raise _impossible(f"{what} {names[0][:99]}: a name of {len(name):,} characters; {MAX_NAME:,} can be")


def _short(told: str) -> str:
    return told if len(told) <= MAX_TOLD else f"{told[:MAX_TOLD]}…"


def _node(state: State, row: NodeChanged, source: str, at: int) -> NodeRecorded | None:
    _named("node", row.node, *row[3:9])  # and the places from site to rack
    if row.state not in STATES:
        raise _impossible(f"node {row.node}: state is {row.state!r}, not one of {', '.join(STATES)}")
    if not 0 <= row.cards <= MAX_CARDS_ON_NODE or not row.cards_healthy >= 0:
        raise _impossible(
            f"node {row.node}: {row.cards} cards ({row.cards_healthy} healthy); 0 to {MAX_CARDS_ON_NODE} can be"
        )
    if not _amounts(row.cpu_milli, row.memory_bytes, row.card_memory_bytes):
        raise _impossible(f"node {row.node}: CPU, memory or card memory is negative or larger than 2^50")
    if row.disk_bytes < 0:
        raise _impossible(f"node {row.node}: its disk is negative")
    if row.cards and not row.card_model:
        raise _impossible(f"node {row.node}: {row.cards} cards without a model")
    # NodeChanged less node, at, domain, counter and described_at is NodeRecorded less its header and node.
    entry = NodeRecorded(state.domain, state.seq + 1, at, source, row.node, *row[3:-2])
    before = state.descriptions.get(row.node)
    if before is None:
        return entry if row.state != "removed" else None
    # `reason` alone is no change.
    return entry if before[5:-1] != entry[5:-1] else None


def _link(state: State, row: LinkChanged, source: str, at: int) -> LinkRecorded | None:
    _named("link", row.link)
    if row.state not in STATES:
        raise _impossible(f"link {row.link}: state is {row.state!r}, not one of {', '.join(STATES)}")
    figures = (row.capacity_gbps, row.base_latency_ms, row.cost_usd_per_gb, row.used_gbps, row.latency_ms)
    if not all(math.isfinite(f) and f >= 0 for f in figures):
        raise _impossible(f"link {row.link}: a figure is negative or not a number")
    entry = LinkRecorded(state.domain, state.seq + 1, at, source, row.link, *row[3:-2])
    before = state.links.get(row.link)
    if before is None:
        return entry if row.state != "removed" else None
    return entry if before[5:-1] != entry[5:-1] else None


def _job(state: State, row: JobSubmitted, source: str, at: int) -> JobAccepted | JobRefused | None:
    _named("job", row.job, row.user, row.queue)
    existing = state.jobs.get(row.job)
    ask = row[3:]
    if existing is not None:
        if existing.ask[6:] == ask:
            return None  # the same submission once more
        return _refuse(
            state, row, source, at, "job_exists", f"job {row.job} exists with other contents; choose another id"
        )
    wrong = never_grantable(row)
    if wrong is not None:
        return _refuse(state, row, source, at, *wrong)
    # A clock that is ahead must not make its jobs younger than those that come later. One far back is believed: an import
    # brings the ages of another system's queue with it.
    return JobAccepted(state.domain, state.seq + 1, at, source, row.job, min(row.at, at), *ask)


def never_grantable(row: JobSubmitted) -> tuple[str, str] | None:
    """What no map could ever grant: code and reason."""
    cards = row.cards_milli
    if not 1 <= row.members <= MAX_MEMBERS:
        return "bad_gang", f"{row.members} members; 1 to {MAX_MEMBERS:,} can be"
    if cards < 0 or (cards > WHOLE and cards % WHOLE) or cards > MAX_CARDS_ON_NODE * WHOLE:
        allowed = f"0, a share from 0.001 to 0.999, or whole cards up to {MAX_CARDS_ON_NODE} can be"
        return "bad_cards", f"{cards / WHOLE:g} cards for each member; {allowed}"
    if row.adjacency not in ADJACENCIES:
        return "bad_adjacency", f"adjacency {row.adjacency[:99]!r} is not one of {', '.join(ADJACENCIES[1:])}"
    if not _amounts(row.cpu_milli, row.memory_bytes, row.card_memory_bytes):
        return "bad_amount", "CPU, memory or card memory is negative or larger than 2^50"
    if not (0 <= row.run_limit_ms <= MAX_RUN_MS and 0 <= row.run_estimate_ms <= MAX_RUN_MS):
        return "bad_amount", "run limit or estimate is negative or longer than 100 years"
    return None


def _amounts(*amounts: int) -> bool:
    return all(0 <= amount <= MAX_AMOUNT for amount in amounts)


def _refuse(state: State, row: JobSubmitted, source: str, at: int, code: str, reason: str) -> JobRefused:
    return JobRefused(state.domain, state.seq + 1, at, source, row.job, row.user, row.queue, code, reason)


def _cancel(state: State, row: JobCancelled, source: str, at: int) -> JobCancelRequested | None:
    job = state.jobs.get(row.job)
    if job is None or job.phase == "ended" or job.cancelled_by:
        return None
    _named("job", row.job, row.user)
    reason = _short(row.reason) or "cancelled by the user"
    return JobCancelRequested(state.domain, state.seq + 1, at, source, row.job, row.user or "unknown", reason)


def _receipt(state: State, row: Receipt, source: str, at: int) -> ReceiptRecorded | None:
    if row.kind not in RECEIPT_KINDS:
        raise _impossible(f"job {row.job}: receipt {row.kind!r} is not one of {', '.join(RECEIPT_KINDS)}")
    if row.attempt < 1:
        raise _impossible(f"job {row.job}: attempt {row.attempt}; attempts count from 1")
    job = state.jobs.get(row.job)
    if job is None:
        return None
    if row.kind == "released":
        at_work = job.attempt == row.attempt and job.phase in ACTIVE
        if at_work or (row.job, row.attempt) not in state.holdings.get(row.node, {}):
            return None  # nobody asked for it yet, or it is known
    else:
        # Older attempts have no say; neither has a node that the attempt does not run on.
        if job.attempt != row.attempt or job.phase not in ACTIVE or row.node not in job.nodes:
            return None
        known = row.node in (job.started if row.kind == "started" else job.finished)
        if known or (row.kind == "start_failed" and job.trouble):
            return None
    return ReceiptRecorded(
        state.domain, state.seq + 1, at, source, row.job, row.attempt, row.node, row.kind, row.exit_code,
        _short(row.reason),
    )  # fmt: skip


def _progress(state: State, row: JobProgress, source: str, at: int) -> JobProgressed | None:
    if not (math.isfinite(row.progress_fraction) and 0 <= row.progress_fraction <= 1):
        raise _impossible(f"job {row.job}: progress {row.progress_fraction} is not between 0 and 1")
    if row.checkpoint_at < 0:
        raise _impossible(f"job {row.job}: its checkpoint is of {row.checkpoint_at}")
    job = state.jobs.get(row.job)
    if job is None or job.attempt != row.attempt or job.phase not in ACTIVE:
        return None
    if (job.progress, job.checkpoint, job.checkpoint_at) == (row.progress_fraction, row.checkpoint, row.checkpoint_at):
        return None
    return JobProgressed(
        state.domain,
        state.seq + 1,
        at,
        source,
        row.job,
        row.attempt,
        row.progress_fraction,
        row.checkpoint,
        row.checkpoint_at,
    )
