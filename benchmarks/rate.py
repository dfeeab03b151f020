"""How many one-card jobs the engine places in a second: alone on maps of 10,000 and 1,000,000 cards, and through the embedded log.

Run by `python -m benchmarks rate`. Alone: each job is accepted and a round decided for it, as when jobs come one by one
(`map_10000_per_s`), and 500 at a time, as when they come in a burst (`..._burst_per_s`). Through the embedded log: the engine as it
runs, reading jobs and writing ledger and commands in synced transactions (`embedded_log_per_s`). The empty map is filled to 90 %;
what the engine learns of the mix on the way is part of the time. Medians; the cycle collector is
set as the engine's process sets it. Asserts nothing.
"""

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks._frame import QUICK_RUNS, RUNS, collector_as_in_the_engine
from benchmarks._maps import BEGIN_MS, DOMAIN, a_map, job, node
from connectors.log.embedded import EmbeddedLog
from connectors.snapshots import FolderSnapshots
from schemas.codec import encode
from schemas.messages import Record
from schemas.records import JobPlaced
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.engine import accept, decide
from streams.runner import ProcessorWorker

MAPS: Final = (10_000, 1_000_000)
JOBS: Final = 9_000
BURST: Final = 500


def _alone(cards: int, jobs: int, at_once: int) -> float:
    """Jobs placed a second on a fresh map."""
    state = a_map(cards)
    asked = [job(f"job-{i:06d}") for i in range(jobs)]
    gc.collect()
    placed = 0
    begun = time.perf_counter()
    for first in range(0, jobs, at_once):
        now = BEGIN_MS + first
        for i in range(first, min(first + at_once, jobs)):
            accept(state, asked[i], f"jobs/0@{i}", now)
        placed += sum(isinstance(e, JobPlaced) for e in decide(state, now))
    took = time.perf_counter() - begun
    if placed != jobs:
        raise RuntimeError(f"{placed} of {jobs} jobs were placed: the figure would be worth nothing")
    return jobs / took


def _embedded(cards: int, jobs: int) -> float:
    """Jobs placed a second by the engine as it runs, jobs waiting in the log."""
    with tempfile.TemporaryDirectory() as folder:
        log = EmbeddedLog(Path(folder) / "log")
        log.provision(TOPICS, dry_run=False)
        appender = log.appender("benchmark")
        for i in range(cards // 8):
            row = node(i)
            appender.send(Record("changes", f"node/{row.node}".encode(), encode(row)))
        appender.flush(30_000)
        worker = ProcessorWorker(log, lambda: Decide(DOMAIN, FolderSnapshots(Path(folder)), version="benchmark"))
        now = BEGIN_MS
        while worker.step(now, 0):
            now += 1
        for i in range(jobs):
            row_ = job(f"job-{i:06d}")
            appender.send(Record("jobs", row_.job.encode(), encode(row_)))
        appender.flush(30_000)
        appender.close(5_000)
        before = log.span("ledger")[0].end
        begun = time.perf_counter()
        while worker.step(now, 0):
            now += 1
        took = time.perf_counter() - begun
        if log.span("ledger")[0].end - before < 2 * jobs:
            raise RuntimeError("not every job was placed: the figure would be worth nothing")
        worker.close(5_000)
        log.close()
    return jobs / took


def run(quick: bool) -> dict[str, float]:
    """Jobs a second by name."""
    runs, jobs = (QUICK_RUNS, 900) if quick else (RUNS, JOBS)
    figures: dict[str, float] = {}
    with collector_as_in_the_engine():
        for cards in MAPS[:1] if quick else MAPS:
            figures[f"map_{cards}_per_s"] = statistics.median(_alone(cards, jobs, 1) for _ in range(runs))
            figures[f"map_{cards}_burst_per_s"] = statistics.median(_alone(cards, jobs, BURST) for _ in range(runs))
        figures["embedded_log_per_s"] = statistics.median(_embedded(MAPS[0], jobs) for _ in range(runs))
    return figures
