"""How long a round takes behind a long line: 100, 10,000 and 100,000 pending jobs, of which few can run.

Run by `python -m benchmarks queue`. A full map of 10,000 cards; jobs of 100 kinds in 100 queues wait for more than is free (two cards
and more, 16 cores and more); once more with 100,000 jobs that are each of a kind of its own. In each round a one-card job ends somewhere, and a new one takes its place: receipts, release,
submission and decision are timed together, as the engine would do them in one batch. Medians; the cycle collector is
set as the engine's process sets it. Asserts nothing.
"""

import gc
import statistics
import time
from collections import deque
from typing import Final

from benchmarks._frame import collector_as_in_the_engine
from benchmarks._maps import BEGIN_MS, a_map, job, tell
from schemas.records import JobPlaced
from streams.engine import accept, decide

PENDING: Final = (100, 10_000, 100_000)
CARDS: Final = 10_000
KINDS: Final = 100
QUEUES: Final = 100
ROUNDS: Final = 200


def _round_ms(pending: int, kinds: int, cards: int, rounds: int) -> float:
    """Median milliseconds of a round with so many jobs waiting, of so many kinds."""
    state = a_map(cards)
    for i in range(cards):
        accept(state, job(f"runs-{i:06d}"), "", BEGIN_MS)
    running = deque(e for e in decide(state, BEGIN_MS) if isinstance(e, JobPlaced))
    for placed in running:
        tell(state, placed, "started", BEGIN_MS)
    decide(state, BEGIN_MS)
    for i in range(pending):
        kind = i % kinds
        row = job(
            f"waits-{i:06d}", cards=2 + kind % 7, cpu_milli=16_000 + kind, queue=f"lab-{kind % 5}/team-{kind % QUEUES}"
        )
        accept(state, row, "", BEGIN_MS)
    decide(state, BEGIN_MS)
    times = []
    for i in range(rounds):
        now = BEGIN_MS + 1_000 * (i + 1)
        over = running.popleft()
        gc.collect(0)
        begun = time.perf_counter()
        tell(state, over, "finished", now)
        decide(state, now)
        tell(state, over, "released", now)
        accept(state, job(f"new-{i:06d}"), "", now)
        placed_now = [e for e in decide(state, now) if isinstance(e, JobPlaced)]
        times.append(1000 * (time.perf_counter() - begun))
        if [p.job for p in placed_now] != [f"new-{i:06d}"]:
            raise RuntimeError("the round did not place the one job that fits")
        running += placed_now
        tell(state, placed_now[0], "started", now)
        decide(state, now)
    return statistics.median(times)


def run(quick: bool) -> dict[str, float]:
    """Milliseconds by name: `round_100_ms`, `round_10000_ms`, `round_100000_ms`, `round_100000_kinds_ms`."""
    cards, rounds = (400, 10) if quick else (CARDS, ROUNDS)
    with collector_as_in_the_engine():
        figures = {f"round_{n}_ms": _round_ms(n, KINDS, cards, rounds) for n in (PENDING[:1] if quick else PENDING)}
        most = PENDING[0 if quick else -1]
        return figures | {f"round_{most}_kinds_ms": _round_ms(most, most, cards, rounds)}
