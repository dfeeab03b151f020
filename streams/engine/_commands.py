"""`commands`: what nodes must do because of a ledger entry. A function of state and entry, so a restart repeats it exactly."""

from schemas.records import Command, JobEnded, JobInterrupted, JobPlaced, LedgerEntry
from streams.engine._state import State


def commands(state: State, entry: LedgerEntry) -> list[Command]:
    """Commands for an entry that was just evolved. `due_at` of a release is 0: `decide` watches it by its own rule."""
    if isinstance(entry, JobPlaced):
        request = state.jobs[entry.job].request
        argv = state.jobs[entry.job].ask.command
        return [
            Command(
                f"{entry.domain}/{entry.seq}/{node}", entry.at, entry.domain, "start", entry.job, entry.attempt, node, members,
                mask, entry.card_milli, members * request.cpu_milli, members * request.memory_bytes, argv, entry.due_at,
            )
            for node, members, mask in zip(entry.nodes, entry.members_on_node, entry.card_masks, strict=True)
        ]  # fmt: skip
    if isinstance(entry, JobEnded | JobInterrupted):
        if isinstance(entry, JobInterrupted) and not entry.requeued:
            return []  # its end follows, and asks
        # `release` means: stop what still runs of this attempt, clean up, confirm.
        found = []
        for node in state.releasing.get((entry.job, entry.attempt), (0, []))[1]:
            held = state.holdings[node][(entry.job, entry.attempt)]
            found.append(
                Command(
                    f"{entry.domain}/{entry.seq}/{node}", entry.at, entry.domain, "release", entry.job, entry.attempt, node, 0,
                    held.card_mask, held.card_milli, held.cpu_milli, held.memory_bytes, (), 0,
                )
            )  # fmt: skip
        return found
    return []
