"""How long a submitted job waits for its placement to be visible to a read-committed reader, and how many a second can be placed.

Run by `python -m benchmarks commit`. The engine is a process of its own, as in production; this process submits at a steady
rate and reads the ledger. Asserts no speed, but every job must be placed once.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.observe import a_log
from connectors.snapshots import FolderSnapshots
from schemas.codec import decode_rows, encoder
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import JobPlaced, JobSubmitted, NodeChanged
from streams.clock import SystemClock
from streams.decide import Decide
from streams.runner import Loop, ProcessorWorker

# 4,096 cards; a job takes a tenth of one, so that 40,000 jobs find room and no run has to wait for another's end.
NODES: Final = 512
RATE_PER_S: Final = 1_000
SECONDS: Final = 10
BURST: Final = 20_000
WARM_S: Final = 5.0
RUNS: Final = 3


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _node(i: int) -> Record:
    name = f"node-{i:05}"
    row = NodeChanged(
        name, _now_ms(), "default", "site-1", "north", "", "dc-1", f"row-{i // 64}", f"rack-{i // 16}", 8, "A100-SXM4-80GB",
        80 << 30, 128_000, 1 << 40, 1 << 42, "", (), "", "up", 8, "registered", -1,
    )  # fmt: skip
    return Record("changes", b"node/" + name.encode(), encoder(NodeChanged)(row))


def _job(name: str) -> Record:
    row = JobSubmitted(
        name, _now_ms(), "default", "ada", "default", 0, 1, 100, (), 0, 100, 1 << 28, "", 0, 0, ("true",), (), ()
    )
    return Record("jobs", name.encode(), encoder(JobSubmitted)(row))


def serve(log: Log, folder: Path, stop: threading.Event) -> None:
    """The engine, until `stop`."""
    worker = ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(folder), version="benchmark"))
    loop = Loop(worker, SystemClock(), stop)
    loop.run()
    if loop.error is not None:
        raise loop.error
    worker.close(5_000)


class _Placements:
    """Reads the ledger in a thread of its own and notes when each job's placement was seen."""

    def __init__(self, log: Log) -> None:
        self.seen: dict[str, float] = {}
        self.twice: list[str] = []
        self._reader = log.reader({TopicPartition("ledger", 0): log.span("ledger")[0].begin})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for block in self._reader.poll(10_000, 50):
                at = time.perf_counter()
                for _, row in decode_rows(block).rows:
                    if isinstance(row, JobPlaced):
                        if row.job in self.seen:
                            self.twice.append(row.job)
                        self.seen[row.job] = at

    def wait(self, count: int, timeout_s: float) -> None:
        deadline = time.perf_counter() + timeout_s
        while len(self.seen) < count:
            if time.perf_counter() > deadline:
                raise RuntimeError(f"{len(self.seen)} of {count} jobs were placed within {timeout_s:.0f} s")
            time.sleep(0.002)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()
        if self.twice:
            raise RuntimeError(f"{len(self.twice)} jobs were placed twice: the figures would be worth nothing")


@contextmanager
def _engine(home: str, where: str) -> Iterator[None]:
    """The engine as another process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.commit", "--serve", home, where], stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends when its input does
        process.wait(30)


def _steady(log: Log, placements: _Placements, rate_per_s: int, seconds: float) -> list[float]:
    """Milliseconds from submission to sight, of jobs submitted at this rate."""
    appender = log.appender("benchmark")
    submitted: dict[str, float] = {}
    begun, count = time.perf_counter(), int(rate_per_s * seconds)
    already = len(placements.seen)
    for i in range(count):
        due = begun + i / rate_per_s
        if (ahead := due - time.perf_counter()) > 0:
            time.sleep(ahead)
        name = f"steady-{already}-{i:06}"
        record = _job(name)
        submitted[name] = time.perf_counter()
        appender.send(record)
        # An interactive submission is flushed; a steady stream of them is flushed by the sender's own short linger.
        if i % max(1, rate_per_s // 200) == 0:
            appender.flush(30_000)
    appender.flush(30_000)
    placements.wait(already + count, 60)
    appender.close(5_000)
    return [(placements.seen[n] - t) * 1000 for n, t in submitted.items()]


def _burst(log: Log, placements: _Placements, count: int, round_: int) -> float:
    """Jobs placed a second when many wait."""
    appender = log.appender("benchmark")
    records = [_job(f"burst-{round_}-{i:06}") for i in range(count)]
    already = len(placements.seen)
    begun = time.perf_counter()
    for record in records:
        appender.send(record)
    appender.flush(60_000)
    placements.wait(already + count, 120)
    appender.close(5_000)
    return count / (max(placements.seen.values()) - begun)


def run(quick: bool) -> dict[str, float]:
    """`p50_ms`, `p99_ms` at 1,000 jobs a second, `max_jobs_per_s`."""
    return measure(seconds=2, burst=5_000, runs=1) if quick else measure()


def measure(
    *, rate_per_s: int = RATE_PER_S, seconds: float = SECONDS, burst: int = BURST, runs: int = RUNS, home: str = "kafka"
) -> dict[str, float]:
    """Figures by name: `p50_ms`, `p99_ms` at `rate_per_s`, `max_jobs_per_s`; medians of `runs`, each on a fresh log."""
    p50s, p99s, most = [], [], []
    for round_ in range(runs):
        with a_log(home) as (log, where), _engine(home, where):
            appender = log.appender("benchmark")
            for i in range(NODES):
                appender.send(_node(i))
            appender.flush(30_000)
            placements = _Placements(log)
            try:
                _steady(log, placements, rate_per_s, min(WARM_S, seconds))  # warms up broker and engine, not counted
                waits = sorted(_steady(log, placements, rate_per_s, seconds))
                p50s.append(waits[len(waits) // 2])
                p99s.append(waits[len(waits) * 99 // 100])
                most.append(_burst(log, placements, burst, round_))
            finally:
                placements.close()
    return {
        "p50_ms": statistics.median(p50s),
        "p99_ms": statistics.median(p99s),
        "max_jobs_per_s": statistics.median(most),
    }


def _serve_until_input_ends(home: str, where: str) -> None:
    stop = threading.Event()
    log: Log
    if home == "embedded":
        from connectors.log.embedded import EmbeddedLog

        log = EmbeddedLog(Path(where))
    else:
        from connectors.log.kafka import KafkaLog

        log = KafkaLog(where)

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        serve(log, Path(folder), stop)
    log.close()


def main(arguments: Sequence[str]) -> None:
    """`python -m benchmarks.commit [embedded|kafka] [seconds] [burst] [runs]`, for profiling."""
    if arguments[:1] == ["--serve"]:
        _serve_until_input_ends(*arguments[1:3])
        return
    home = arguments[0] if arguments else "kafka"
    numbers = [int(a) for a in arguments[1:]]
    seconds, burst, runs = [*numbers, *(SECONDS, BURST, RUNS)[len(numbers) :]]
    for name, value in measure(seconds=seconds, burst=burst, runs=runs, home=home).items():
        print(f"{name}  {value:,.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
