"""`commands`: what nodes must do because of a ledger entry. A function of state and entry, so a restart repeats it exactly.

Called by `streams.decide` for each new entry, in order, after it was evolved. Changes nothing.
"""

from collections.abc import Iterable

from schemas.records import Command, JobCancelRequested, JobEnded, JobInterrupted, JobPlaced, LedgerEntry, NodeRecorded
from streams.engine._classes import Holding
from streams.engine._state import State


def commands(state: State, entry: LedgerEntry) -> list[Command]:
    """Commands for an entry that was evolved, by node. `start` on placement; `stop` (end what runs, keep the cards) when a
    user cancels; `release` (stop what still runs of the attempt, clean up, confirm) when an attempt is over, and once more
    when a node that was removed meanwhile returns.

    `due_at` is 0 but for `start`: `decide` watches releases by its own rule. Equal `command_id`: the same command."""
    if isinstance(entry, JobPlaced):
        ask = state.jobs[entry.job].ask
        return [
            Command(
                f"{entry.domain}/{entry.seq}/{node}", entry.at, entry.domain, "start", entry.job, entry.attempt, node, members,
                mask, entry.card_milli, members * ask.cpu_milli, members * ask.memory_bytes, ask.command, entry.due_at,
            )
            for node, members, mask in zip(entry.nodes, entry.members_on_node, entry.card_masks, strict=True)
        ]  # fmt: skip
    if isinstance(entry, JobCancelRequested):
        job = state.jobs[entry.job]
        # A waiting job has no nodes.
        return _to_holders(state, entry, "stop", job.attempt, job.nodes)
    if isinstance(entry, JobEnded) or (isinstance(entry, JobInterrupted) and entry.requeued):
        # An interruption that is not requeued is followed by the job's end, which asks.
        # A node that is gone is asked, too: it may only be out of the map.
        holders = state.unreleased.get((entry.job, entry.attempt), {})
        return _to_holders(state, entry, "release", entry.attempt, holders)
    if isinstance(entry, NodeRecorded):
        # What is awaited since this very entry: the node returned with it, and may have been away when it was asked.
        return [
            _command(entry, f"/{job}/{attempt}", "release", job, attempt, entry.node, held)
            for (job, attempt), held in state.holdings.get(entry.node, {}).items()
            if state.releasing.get((job, attempt, entry.node)) == entry.at
        ]
    return []


def _to_holders(
    state: State, entry: JobCancelRequested | JobEnded | JobInterrupted, kind: str, attempt: int, nodes: Iterable[str]
) -> list[Command]:
    """One command for each of these nodes that still holds something of the attempt."""
    key = (entry.job, attempt)
    found = []
    for node in nodes:
        held = state.holdings.get(node, {}).get(key)
        if held is not None:
            found.append(_command(entry, "", kind, entry.job, attempt, node, held))
    return found


def _command(entry: LedgerEntry, suffix: str, kind: str, job: str, attempt: int, node: str, held: Holding) -> Command:
    """`suffix` tells apart what one entry asks of one node."""
    return Command(
        f"{entry.domain}/{entry.seq}/{node}{suffix}", entry.at, entry.domain, kind, job, attempt, node, 0,
        held.card_mask, held.card_milli, held.cpu_milli, held.memory_bytes, (), 0,
    )  # fmt: skip
