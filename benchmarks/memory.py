"""What the engine's state takes: 1,000,000 cards and 100,000 jobs, half of them running, half waiting.

Run by `python -m benchmarks memory`. A fresh process builds the state and tells what it holds resident, before and after: 50,000
running jobs of 1 to 8 cards, 50,000 waiting ones of 500 kinds that ask for more than a node has free, each told why it waits.
`process_gib` is the whole process after a garbage collection, `state_gib` what the state added. Asserts nothing.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks._maps import BEGIN_MS, Condition, a_map, job
from streams.engine import accept, decide

CARDS: Final = 1_000_000
JOBS: Final = 100_000
KINDS: Final = 500


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def build(cards: int, jobs: int) -> None:
    """Build the state, print resident bytes before and after."""
    before = _resident_bytes()
    state = a_map(cards, Condition.FRAGMENTED)
    for i in range(jobs // 2):
        accept(state, job(f"runs-{i:06d}", cards=1 + i % 7), f"jobs/0@{i}", BEGIN_MS)
    decide(state, BEGIN_MS)
    for i in range(jobs // 2):
        row = job(f"waits-{i:06d}", cards=8, cpu_milli=64_000 + 100 * (i % KINDS), queue=f"team-{i % 100}")
        accept(state, row, f"jobs/1@{i}", BEGIN_MS)
    decide(state, BEGIN_MS)
    waiting = len(state.order)
    if waiting < jobs // 2 or len(state.jobs) < jobs:
        raise RuntimeError(f"{waiting} of {len(state.jobs)} jobs wait: not what was to be measured")
    gc.collect()
    print(before, _resident_bytes())


def run(quick: bool) -> dict[str, float]:
    """GiB by name."""
    size = ("10000", "1000") if quick else (str(CARDS), str(JOBS))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", *size], stdout=subprocess.PIPE, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    return {"process_gib": after / (1 << 30), "state_gib": (after - before) / (1 << 30)}


if __name__ == "__main__":
    build(int(sys.argv[1]), int(sys.argv[2]))
