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
from typing import Final, NamedTuple

from benchmarks.observe import a_log
from connectors.log.embedded import EmbeddedLog
from connectors.log.kafka import KafkaLog
from connectors.snapshots import FolderSnapshots
from schemas.codec import decode_rows, encode
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import JobPlaced, JobSubmitted, NodeChanged
from schemas.topics import TOPICS
from streams.clock import SystemClock
from streams.collecting import keep_pauses_short
from streams.decide import Decide
from streams.runner import Loop, ProcessorWorker

# 4,096 cards; a job takes a tenth of one, so that 40,000 jobs find room and no run has to wait for another's end.
NODES: Final = 512
RATE_PER_S: Final = 1_000
SECONDS: Final = 10
BURST: Final = 20_000
BROKER_WARM_S: Final = 35.0
ENGINE_WARM_S: Final = 3.0
RUNS: Final = 3
# A sender that falls back farther does not submit at the rate that is claimed.
FAR_BEHIND_S: Final = 0.5


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _node(i: int) -> Record:
    name = f"node-{i:05}"
    row = NodeChanged(
        name, _now_ms(), "default", "site-1", "north", "", "dc-1", f"row-{i // 64}", f"rack-{i // 16}", 8, "A100-SXM4-80GB",
        80 << 30, 128_000, 1 << 40, 1 << 42, "", (), "", "up", 8, "registered", -1,
    )  # fmt: skip
    return Record("changes", b"node/" + name.encode(), encode(row))


def _job(name: str) -> Record:
    row = JobSubmitted(
        name, _now_ms(), "default", "ada", "default", 0, 1, 100, (), 0, 100, 1 << 28, "", 0, 0, ("true",), (), ()
    )
    return Record("jobs", name.encode(), encode(row))


class _Place(NamedTuple):
    """A home of the log: `embedded` and a folder, or `kafka` and a broker's address; and the prefix of one run's topics."""

    home: str
    where: str
    prefix: str

    def open(self) -> Log:
        if self.home == "embedded":
            return EmbeddedLog(Path(self.where) / self.prefix)
        return KafkaLog(self.where, prefix=self.prefix)


def serve(log: Log, folder: Path, stop: threading.Event) -> None:
    """The engine, until `stop`."""
    keep_pauses_short()
    worker = ProcessorWorker(
        log, lambda: Decide("default", FolderSnapshots(folder, fork=True), version="benchmark", snapshot_every=20_000)
    )
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
def _engine(place: _Place) -> Iterator[None]:
    """The engine as another process."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.commit", "--serve", *place], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends when its input does
        process.wait(30)


def submit(log: Log, prefix: str, rate_per_s: int, count: int) -> tuple[float, float]:
    """Submit so many jobs at this rate. Returns when the first was due (`time.perf_counter`, the same in all processes of a
    machine) and by how many seconds the sender was ever behind."""
    appender = log.appender("benchmark")
    appender.send(_job(f"{prefix}first"))  # what an appender asks a broker once
    appender.flush(30_000)
    begun, behind = time.perf_counter(), 0.0
    for i in range(count):
        at = begun + i / rate_per_s
        if (ahead := at - time.perf_counter()) > 0:
            time.sleep(ahead)
        appender.send(_job(f"{prefix}{i:06}"))
        if not isinstance(log, KafkaLog):
            appender.flush(30_000)  # Kafka's client sends by itself, a few milliseconds later at most
        behind = max(behind, time.perf_counter() - at)
    appender.flush(30_000)
    appender.close(5_000)
    return begun, behind


def _steady(place: _Place, placements: _Placements, rate_per_s: int, seconds: float) -> list[float]:
    """Milliseconds from the moment a job was due to be submitted, whether or not the sender kept up, to the sight of its
    placement. The sender is another process."""
    already, count = len(placements.seen), int(rate_per_s * seconds)
    prefix = f"steady-{already}-"
    arguments = ["--submit", *place, prefix, str(rate_per_s), str(count)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.commit", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    begun, behind = map(float, done.stdout.split())
    placements.wait(already + count + 1, 60)
    if behind > FAR_BEHIND_S:
        raise RuntimeError(
            f"the sender was up to {behind * 1000:.0f} ms behind its own rate: the figures would be worth nothing"
        )
    return [(placements.seen[f"{prefix}{i:06}"] - begun - i / rate_per_s) * 1000 for i in range(count)]


def _burst(log: Log, placements: _Placements, count: int) -> float:
    """Jobs placed a second when many come at once."""
    appender = log.appender("benchmark")
    records = [_job(f"burst-{i:06}") for i in range(count)]
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
    return measure(seconds=2, burst=5_000, runs=1, warm_s=2) if quick else measure()


class _Run(NamedTuple):
    waits_ms: list[float]
    jobs_per_s: float


def _run(place: _Place, rate_per_s: int, seconds: float, burst: int) -> _Run:
    """On a fresh log, with a fresh engine."""
    log = place.open()
    log.provision(TOPICS, dry_run=False)
    with _engine(place):
        appender = log.appender("benchmark")
        for i in range(NODES):
            appender.send(_node(i))
        appender.flush(30_000)
        placements = _Placements(log)
        try:
            _steady(place, placements, rate_per_s, ENGINE_WARM_S)
            waits = sorted(_steady(place, placements, rate_per_s, seconds))
            return _Run(waits, _burst(log, placements, burst))
        finally:
            placements.close()
            log.close()


def measure(
    *,
    rate_per_s: int = RATE_PER_S,
    seconds: float = SECONDS,
    burst: int = BURST,
    runs: int = RUNS,
    warm_s: float = BROKER_WARM_S,
    home: str = "kafka",
) -> dict[str, float]:
    """Figures by name: `p50_ms`, `p99_ms` at `rate_per_s`, `max_jobs_per_s`; medians of `runs`, each on a fresh log."""
    with a_log(home) as (_, where):
        # A broker that has just started compiles itself for a minute, which on two cores takes the time from everybody.
        # In production it has been up for weeks. Not counted.
        _run(_Place(home, where, "warm."), rate_per_s, warm_s, 1_000)
        done = [_run(_Place(home, where, f"run-{i}."), rate_per_s, seconds, burst) for i in range(runs)]
    return {
        "p50_ms": statistics.median(r.waits_ms[len(r.waits_ms) // 2] for r in done),
        "p99_ms": statistics.median(r.waits_ms[len(r.waits_ms) * 99 // 100] for r in done),
        "max_jobs_per_s": statistics.median(r.jobs_per_s for r in done),
    }


def _serve_until_input_ends(log: Log) -> None:
    stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        serve(log, Path(folder), stop)


def main(arguments: Sequence[str]) -> None:
    """`python -m benchmarks.commit [embedded|kafka] [seconds] [burst] [runs]`, for profiling."""
    if arguments[:1] in (["--serve"], ["--submit"]):
        log = _Place(*arguments[1:4]).open()
        if arguments[0] == "--serve":
            _serve_until_input_ends(log)
        else:
            print(*submit(log, arguments[4], int(arguments[5]), int(arguments[6])))
        log.close()
        return
    home = arguments[0] if arguments else "kafka"
    numbers = [int(a) for a in arguments[1:]]
    seconds, burst, runs = [*numbers, *(SECONDS, BURST, RUNS)[len(numbers) :]]
    for name, value in measure(seconds=seconds, burst=burst, runs=runs, home=home).items():
        print(f"{name}  {value:,.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
