"""How long an engine takes to come back: snapshot of a 10,000-card map, and a million ledger entries since.

Run by `python -m benchmarks restore`. The ledger is one the engine wrote itself: 1,250 nodes, jobs of mixed sizes that start,
report and end, about seven entries each. `streams.replay` decodes it from the log's bytes and evolves it, block by block.
`place_per_s` is how many one-card jobs one round places on that map. Asserts no speed.
"""

import statistics
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

from benchmarks._frame import QUICK_RUNS, RUNS, seconds
from schemas.codec import encode
from schemas.log import Log
from schemas.messages import Block, TopicPartition
from schemas.records import JobPlaced, JobSubmitted, LedgerEntry, NodeChanged, Receipt
from streams.engine import State, accept, decide, restore, snapshot
from streams.replay import catch_up

ENTRIES: Final = 1_000_000
NODES: Final = 1_250
BLOCK: Final = 20_000
DOMAIN: Final = "default"
BEGIN_MS: Final = 1_800_000_000_000
# Cards of each member, members: the kinds of a mixed day.
KINDS: Final = ((1000, 1), (500, 1), (8000, 1), (250, 1), (1000, 1), (2000, 1), (8000, 4), (1000, 1), (4000, 1), (0, 1))


def _map(state: State) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    for i in range(NODES):
        row = NodeChanged(
            f"node-{i:05d}", BEGIN_MS, DOMAIN, "site-1", "north", "", "dc-1", f"row-{i // 160}", f"rack-{i // 16}", 8,
            "A100-SXM4-80GB", 80 << 30, 128_000, 1 << 40, 1 << 42, "", (), "", "up", 8, "registered", 0,
        )  # fmt: skip
        found += accept(state, row, f"changes/0@{i}", BEGIN_MS)
    return found


def _job(i: int, now: int, cards_milli: int = -1) -> JobSubmitted:
    milli, members = KINDS[i % len(KINDS)] if cards_milli < 0 else (cards_milli, 1)
    return JobSubmitted(
        f"job-{i:07d}", now, DOMAIN, f"user-{i % 50}", "default", i % 3, members, milli, (), 0, 4_000, 16 << 30, "", 0,
        3_600_000, ("python", "train.py"), (), ("run_estimate_ms",),
    )  # fmt: skip


class _Day:
    """A busy day: jobs come, start, end and are released, so that the map stays about half full."""

    def __init__(self) -> None:
        self.state = State.empty(DOMAIN)
        self.now = BEGIN_MS
        self.jobs = 0
        self._running: deque[JobPlaced] = deque()

    def begin(self) -> list[LedgerEntry]:
        return _map(self.state)

    def step(self) -> list[LedgerEntry]:
        """The entries of one second: jobs come and start, the oldest running ones end and are released."""
        self.now += 1_000
        found: list[LedgerEntry] = []
        for _ in range(200):
            found += accept(self.state, _job(self.jobs, self.now), f"jobs/{self.jobs % 4}@{self.jobs // 4}", self.now)
            self.jobs += 1
        entries = decide(self.state, self.now)
        placed = [e for e in entries if isinstance(e, JobPlaced)]
        self._running += placed
        over = [self._running.popleft() for _ in range(len(self._running) - 1_000)]
        found += entries + self._tell(placed, "started") + self._tell(over, "finished")
        # Everybody ends, and what waited is placed only in the next second: nothing is free before its release.
        return found + decide(self.state, self.now) + self._tell(over, "released")

    def _tell(self, placed: list[JobPlaced], kind: str) -> list[LedgerEntry]:
        found: list[LedgerEntry] = []
        for p in placed:
            for node in p.nodes:
                row = Receipt(p.job, self.now, DOMAIN, p.attempt, node, kind, 0, "")
                found += accept(self.state, row, f"receipts/0@{self.now}", self.now)
        return found


def _ledger(entries: int) -> tuple[list[Block], State]:
    """Blocks of an own ledger, and the state that wrote it."""
    day = _Day()
    blocks: list[Block] = []
    values: list[bytes | None] = [encode(e) for e in day.begin()]
    count = len(values)
    while count < entries:
        new = day.step()
        count += len(new)
        values += [encode(e) for e in new]
        while len(values) >= BLOCK:
            blocks.append(Block("ledger", 0, values[:BLOCK], (len(blocks) + 1) * BLOCK))
            del values[:BLOCK]
    if values:
        blocks.append(Block("ledger", 0, values, count))
    return blocks, day.state


class _Blocks:
    """The reader that `catch_up` asks a log for, without the log's own cost."""

    def __init__(self, blocks: list[Block]) -> None:
        self._left = deque(blocks)

    def reader(self, positions: Mapping[TopicPartition, int]) -> "_Blocks":
        return self

    def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
        return [self._left.popleft()]

    def close(self) -> None:
        return None


def _evolve(blocks: list[Block]) -> State:
    """Exactly what a restarted engine does after its snapshot."""
    state = State.empty(DOMAIN)
    catch_up(cast(Log, _Blocks(blocks)), state, 0, 0, blocks[-1].next_offset)
    return state


def _place(count: int) -> float:
    """One-card jobs placed a second, in one round, reasons and masks and all."""
    state = State.empty(DOMAIN)
    _map(state)
    decide(state, BEGIN_MS)
    for i in range(count):
        accept(state, _job(i, BEGIN_MS, 1000), "", BEGIN_MS)
    begun = time.perf_counter()
    placed = decide(state, BEGIN_MS)
    took = time.perf_counter() - begun
    if sum(isinstance(e, JobPlaced) for e in placed) != count:
        raise RuntimeError("not every job was placed")
    return count / took


def run(quick: bool) -> dict[str, float]:
    """`evolve_million_s` decodes and evolves; with `quick` it is scaled up from fewer entries."""
    entries = 50_000 if quick else ENTRIES
    runs = QUICK_RUNS if quick else RUNS
    blocks, lived = _ledger(entries)
    count = sum(len(b) for b in blocks)
    state = _evolve(blocks)
    data = snapshot(state)
    if data != snapshot(lived):
        raise RuntimeError("the replayed state is not the one that lived")
    return {
        "snapshot_s": seconds(lambda: snapshot(state), runs),
        "restore_s": seconds(lambda: restore(data).settle(), runs),
        "snapshot_bytes": float(len(data)),
        "evolve_million_s": seconds(lambda: _evolve(blocks), 2) * 1_000_000 / count,
        "place_per_s": statistics.median(_place(2_000 if quick else 9_000) for _ in range(runs)),
    }
