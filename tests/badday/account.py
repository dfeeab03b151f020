"""The account of a bad day: what the log, the ledger and ClickHouse hold at the end, compared.

Nothing here knows how the pieces work; it reads all inputs, the whole ledger and all tables, and says what is missing or
doubled. Used by every bad-day test.
"""

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from schemas.codec import decode_rows
from schemas.log import Log
from schemas.messages import TopicPartition
from schemas.records import (
    JobAccepted,
    JobCancelled,
    JobRefused,
    JobSubmitted,
    LedgerEntry,
    NodeChanged,
    NodeRecorded,
    NodeTelemetry,
    Row,
)

# Longer than a broker takes to come back on a busy machine; a reader that stands still for so long is a finding, not a wait.
STILL_S = 90.0


def read_all(log: Log, topic: str) -> Iterator[tuple[int, int, Row]]:
    """(partition, offset, row) of everything readable in a topic; fails on poison, and on a reader that stands still."""
    spans = log.span(topic)
    reader = log.reader({TopicPartition(topic, p): s.begin for p, s in spans.items()})
    try:
        seen = {p: s.begin for p, s in spans.items()}
        moved = time.monotonic()
        while any(seen[p] < s.end for p, s in spans.items()):
            assert time.monotonic() - moved < STILL_S, f"reading {topic} stands still at {seen} of {spans}"
            for block in reader.poll(10_000, 2_000):
                decoded = decode_rows(block)
                assert not decoded.poison, decoded.poison[:3]
                for i, row in decoded.rows:
                    yield block.partition, block.offsets[i], row
                if block.next_offset > seen[block.partition]:
                    moved = time.monotonic()
                seen[block.partition] = block.next_offset
    finally:
        reader.close()


@dataclass
class Account:
    """What was counted. `wrong()` is empty on a good ending to a bad day."""

    submitted: set[str] = field(default_factory=set)
    answered: Counter[str] = field(default_factory=Counter)
    seqs: list[int] = field(default_factory=list)
    entries: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    landed: Counter[int] = field(default_factory=Counter)
    # Of each node: healthy cards by its newest sample; state and healthy cards as observe told them, as the ledger has them.
    sampled: dict[str, tuple[int, int]] = field(default_factory=dict)
    told: defaultdict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    recorded: defaultdict[str, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    changes: Counter[tuple[str, int, str, int]] = field(default_factory=Counter)

    def wrong(self) -> list[str]:
        found = []
        lost = self.submitted - set(self.answered)
        if lost:
            found.append(
                f"{len(lost)} of {len(self.submitted)} submitted jobs are not in the ledger: {sorted(lost)[:5]}"
            )
        doubled = [j for j, n in self.answered.items() if n > 1]
        if doubled:
            found.append(f"{len(doubled)} jobs are in the ledger more than once: {doubled[:5]}")
        invented = set(self.answered) - self.submitted
        if invented:
            found.append(f"jobs in the ledger that nobody submitted: {sorted(invented)[:5]}")
        if self.seqs != list(range(1, len(self.seqs) + 1)):
            first = next(i for i, s in enumerate(self.seqs, 1) if s != i)
            found.append(f"seq is not dense: place {first} holds {self.seqs[first - 1]}")
        twice = [s for s, n in self.sources.items() if n > 1]
        if twice:
            found.append(f"inputs that entered the ledger twice: {twice[:5]}")
        missing = [s for s in self.seqs if self.landed[s] == 0]
        if missing:
            found.append(f"{len(missing)} ledger entries are not in ClickHouse: seq {missing[:5]}")
        extra = [s for s, n in self.landed.items() if n > 1]
        if extra:
            found.append(f"{len(extra)} ledger entries are in ClickHouse more than once: seq {extra[:5]}")
        return found + self._wrong_of_nodes()

    def _wrong_of_nodes(self) -> list[str]:
        found = []
        twice = [c for c, n in self.changes.items() if n > 1]
        if twice:
            found.append(f"changes that observe told twice: {twice[:5]}")
        for node, (_, healthy) in self.sampled.items():
            told, recorded = self.told[node], self.recorded[node]
            if not told or told[-1][1] != healthy:
                found.append(f"{node} has {healthy} healthy cards, and observe told {told[-3:]}")
            again = [b for a, b in itertools.pairwise(recorded) if a == b]
            if again:
                found.append(f"{node} is in the ledger anew though nothing changed: {again[:3]}")
            # `changes` may have been compacted meanwhile: what is left of it must be in the ledger, in order, up to the last.
            left = iter(recorded)
            if not all(fact in left for fact in told) or recorded[-1:] != told[-1:]:
                found.append(f"{node}: observe told {told[-5:]}, the ledger has {recorded[-5:]}")
        return found


def take(log: Log, landed_seqs: Callable[[], list[int]]) -> Account:
    """Count it all. `landed_seqs` gives the `seq` of every row of every ledger table in ClickHouse."""
    account = Account()
    for _, _, row in read_all(log, "resource-telemetry"):
        assert isinstance(row, NodeTelemetry)
        account.sampled[row.node] = max(account.sampled.get(row.node, (-1, 0)), (row.counter, row.cards_healthy))
    for _, _, row in read_all(log, "changes"):
        assert isinstance(row, NodeChanged)
        account.told[row.node].append((row.state, row.cards_healthy))
        account.changes[row.node, row.counter, row.state, row.cards_healthy] += 1
    for _, _, row in read_all(log, "jobs"):
        if isinstance(row, JobSubmitted):
            account.submitted.add(row.job)
        else:
            assert isinstance(row, JobCancelled)
    for _, _, entry in read_all(log, "ledger"):
        assert isinstance(entry, LedgerEntry)
        if isinstance(entry, NodeRecorded):
            account.recorded[entry.node].append((entry.state, entry.cards_healthy))
        account.seqs.append(entry.seq)
        account.entries[type(entry).__name__] += 1
        if entry.source:
            account.sources[f"{entry.source} {type(entry).__name__}"] += 1
        if isinstance(entry, JobAccepted | JobRefused):
            account.answered[entry.job] += 1
    account.landed.update(landed_seqs())
    return account
