"""From snapshot and ledger to state: how the engine restores, and how followers keep up.

The newest valid snapshot is taken, a damaged one is passed over for the one before, and the ledger since is evolved.
Entries the snapshot already holds are skipped by `seq`, so a position that is a little early does no harm.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from schemas.codec import decode_rows
from schemas.collector import asleep
from schemas.errors import Corrupted, Fatal, Refused, Transient, Where
from schemas.log import Log
from schemas.messages import Block, TopicPartition
from schemas.records import LEDGER_TYPES, LedgerEntry
from schemas.snapshots import SnapshotStore
from streams.engine import State, evolve, restore

_log = logging.getLogger("lockstep.replay")
READ_RECORDS: Final = 20_000
READ_TIMEOUT_MS: Final = 5_000
_LEDGER: Final = frozenset(LEDGER_TYPES)


@dataclass(slots=True)
class Restored:
    """A state, the ledger position it has reached, and the seq of the snapshot it came from (0: none)."""

    state: State
    position: int
    snapshot_seq: int


def read_up_to(
    log: Log, where: TopicPartition, position: int, end: int, at_once: int = READ_RECORDS
) -> Iterator[Block]:
    """Blocks from `position` until `end` is reached, `at_once` messages at most in memory.

    Never ends early: a state restored from a part of its log would go on to contradict the rest. Raises `Transient` when
    nothing comes though it is there, `Fatal` when the log was cut short."""
    if position >= end:
        return
    reader = log.reader({where: position})
    try:
        while position < end:
            blocks = reader.poll(at_once, READ_TIMEOUT_MS)
            if not blocks:
                told = f"{where.topic}/{where.partition}: nothing to read at {position}, though it ends at {end}"
                if log.span(where.topic)[where.partition].end < end:
                    raise Fatal(f"{told}, or did: it was cut short meanwhile")
                raise Transient(told)
            for block in blocks:
                yield block
                position = block.next_offset
    finally:
        reader.close()


def catch_up(log: Log, state: State, partition: int, position: int, end: int) -> int:
    """Evolve the ledger from `position` up to `end`; returns the position reached."""
    return _catch_up(log, state, partition, position, end)[0]


def _catch_up(log: Log, state: State, partition: int, position: int, end: int) -> tuple[int, int]:
    """The position reached, and the seq of the last entry read (0: none)."""
    if end - position < READ_RECORDS:
        return _evolve_all(log, state, partition, position, end)
    # A replay makes millions of objects that stay: looking through them for garbage costs a third of its time.
    with asleep():
        return _evolve_all(log, state, partition, position, end)


def _evolve_all(log: Log, state: State, partition: int, position: int, end: int) -> tuple[int, int]:
    seq = 0
    for block in read_up_to(log, TopicPartition("ledger", partition), position, end):
        decoded = decode_rows(block)
        if decoded.poison:
            raise Corrupted(f"the ledger holds a message that is not an entry: {decoded.poison[0][1]}")
        for _, row in decoded.rows:
            if type(row) not in _LEDGER:
                raise Corrupted(f"the ledger holds a {type(row).__name__}")
            entry = cast(LedgerEntry, row)
            seq = entry.seq
            if seq > state.seq:
                evolve(state, entry)
        position = block.next_offset
    return position, seq


def check_domain(log: Log, domain: str, partition: int) -> None:
    """Raises `Refused` when the ledger is another domain's, by its first entry. What is no entry is not judged here."""
    span = log.span("ledger")[partition]
    for block in read_up_to(log, TopicPartition("ledger", partition), span.begin, span.end, 1):
        for i, row in decode_rows(block).rows:
            if isinstance(row, LedgerEntry) and row.domain != domain:
                where = Where("ledger", partition, block.offsets[i])
                raise Refused(
                    f"{where}: this ledger belongs to domain {row.domain!r}, and a log has one domain; set LOCKSTEP_DOMAIN={row.domain}, "
                    f"or give domain {domain!r} a log of its own: another LOCKSTEP_DATA_DIR and, on Kafka, another LOCKSTEP_TOPIC_PREFIX"
                )
        if len(block):
            return


def restore_state(log: Log, domain: str, partition: int, snapshots: SnapshotStore) -> Restored:
    """The domain's state now. Raises `Corrupted` when no snapshot fits the ledger and the ledger does not begin at 1, `Refused`
    when it is another domain's."""
    span = log.span("ledger")[partition]
    for stored in snapshots.newest_first():
        try:
            state = restore(stored.data)
            if state.domain != domain or stored.position < span.begin or stored.position > span.end:
                raise Corrupted(f"snapshot {stored.seq} does not belong to this ledger")
            position, last = _catch_up(log, state, partition, stored.position, span.end)
            if last < stored.seq:
                # An older copy of the ledger was put in the place of the one it was taken of.
                raise Corrupted(
                    f"snapshot {stored.seq} is of a ledger that went on longer than this one, which ends at {last}"
                )
        except Corrupted as e:
            # The usual cause of a foreign snapshot, and it has an error of its own.
            check_domain(log, domain, partition)
            _log.warning("snapshot of seq %d is passed over: %s", stored.seq, e)
            continue
        return Restored(state, position, stored.seq)
    check_domain(log, domain, partition)
    state = State.empty(domain)
    return Restored(state, catch_up(log, state, partition, span.begin, span.end), 0)
