"""How long the engine takes to place one gang: from the head of the queue to the ledger entry with every node and card.

Run by `python -m benchmarks gang`. Gangs of 8 to 10,000 cards on maps of 10,000, 100,000 and 1,000,000 cards (8 to a node), empty,
half full (every second node, by chance) and fragmented (1 to 7 cards of every node taken). Members have 8 cards, on fragmented maps
one. One `decide` is timed, state changes included; between two timings the gang is ended and released, so that every search
looks at a changed map. Medians; a gang that a map cannot hold is left out. Asserts nothing.
"""

import gc
import statistics
import time
from typing import Final

from benchmarks._maps import BEGIN_MS, CARDS, Condition, a_map, end, job
from schemas.records import JobPlaced
from streams.engine import State, accept, decide

GANGS: Final = (8, 64, 512, 4_096, 10_000)
MAPS: Final = (10_000, 100_000, 1_000_000)
RUNS: Final = 15


def _time(state: State, cards: int, each: int, runs: int) -> float | None:
    """Median milliseconds for a gang of `cards`, `each` of a member; None: it finds no place."""
    times = []
    now = max(BEGIN_MS, state.at)
    for i in range(runs + 1):
        now += 1_000
        name = f"gang-{state.seq}"
        accept(state, job(name, members=cards // each, cards=each, cpu_milli=each * 8_000), "", now)
        gc.collect()
        begun = time.perf_counter()
        entries = decide(state, now)
        took = time.perf_counter() - begun
        placed = [e for e in entries if isinstance(e, JobPlaced)]
        if not placed:
            return None
        if sum(mask.bit_count() for mask in placed[0].card_masks) != cards:
            raise RuntimeError("not all cards of the gang were placed")
        if i:  # the first warms caches
            times.append(1000 * took)
        end(state, placed[0], now)
    return statistics.median(times)


def run(quick: bool) -> dict[str, float]:
    """Milliseconds by name: `gang_10000_map_10000_ms` is of the empty map, `..._half_ms` and `..._fragmented_ms` of the others."""
    figures: dict[str, float] = {}
    for cards in MAPS[:1] if quick else MAPS:
        for condition in Condition:
            state = a_map(cards, condition)
            each = 1 if condition is Condition.FRAGMENTED else CARDS
            for gang in GANGS:
                took = _time(state, gang, each, 2 if quick else RUNS)
                suffix = "" if condition is Condition.EMPTY else f"_{condition}"
                if took is not None:
                    figures[f"gang_{gang}_map_{cards}{suffix}_ms"] = took
    return figures
