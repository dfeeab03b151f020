"""How many telemetry samples a second one observe takes from a log through to `changes`, exactly once.

Run by `python -m benchmarks observe`. Writes samples of 2,500 nodes first, then times one observe (positions and changes in one
transaction per batch) part by part until nothing is left; counts afterwards that each change was told once. Asserts no speed.
"""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers import others
from schemas.codec import decode_rows, encoder
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import NodeChanged, NodeRegistered, NodeTelemetry
from schemas.topics import TOPICS
from streams.observe import Observe
from streams.runner import ProcessorWorker

NODES: Final = 2_500
SAMPLED: Final = "resource-telemetry"
RUNS: Final = 5
SAMPLES: Final = 1_000_000
# One sample in a thousand says something new, as in a fleet where cards fail now and then.
ONE_CHANGE_IN: Final = 1_000


@contextmanager
def a_log(home: str) -> Iterator[tuple[Log, str]]:
    """A fresh log and where it is: `kafka` is a real broker, started here; `embedded` a file in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        if home == "embedded":
            from connectors.log.embedded import EmbeddedLog

            embedded = EmbeddedLog(Path(folder))
            embedded.provision(TOPICS, dry_run=False)
            yield embedded, folder
            embedded.close()
            return
        from connectors.log.kafka import KafkaLog
        from tests.support.broker import Broker

        broker = Broker.start(Path(folder), measured=True)
        try:
            kafka = KafkaLog(broker.bootstrap)
            kafka.provision(TOPICS, dry_run=False)
            yield kafka, broker.bootstrap
            kafka.close()
        finally:
            broker.stop()


def _registration(node: str, now: int) -> NodeRegistered:
    return NodeRegistered(
        node, now, "default", "site-1", "north", "", "dc-1", "", "rack-1", 8, "A100-SXM4-80GB", 80 << 30, 128_000, 1 << 40,
        1 << 42, "", (), "", "active",
    )  # fmt: skip


def _send(log: Log, records: Iterator[Record]) -> None:
    appender = log.appender("benchmark")
    for record in records:
        appender.send(record)
    appender.flush(120_000)
    appender.close(10_000)


def _samples(first: int, count: int, now: int) -> Iterator[Record]:
    """Samples number `first` and on, nodes in turn. A node's healthy cards flip from round to round of one in a thousand."""
    encode = encoder(NodeTelemetry)
    for i in range(first, first + count):
        turn, n = divmod(i, NODES)
        node = f"node-{n:05}"
        healthy = 8 - ((turn + n) // ONE_CHANGE_IN) % 2
        row = NodeTelemetry(node, now, turn, healthy, 93.5, 75 << 30, 64_000, 1 << 38, 5_200.0)
        yield Record(SAMPLED, node.encode(), encode(row))


def _told_twice(log: Log) -> int:
    """Changes that were told more than once."""
    told: Counter[tuple[str, int]] = Counter()
    for partition, span in log.span("changes").items():
        position = span.begin
        reader = log.reader({TopicPartition("changes", partition): position})
        while position < span.end:
            for block in reader.poll(50_000, 5_000):
                told.update((r.node, r.counter) for _, r in decode_rows(block).rows if isinstance(r, NodeChanged))
                position = block.next_offset
        reader.close()
    return sum(n - 1 for n in told.values())


def _until(worker: ProcessorWorker, wanted: float) -> float:
    """Step until this many samples were handled in all. Returns how many."""
    while (handled := worker.metrics.values.get(("lockstep_records_total", (worker.name, SAMPLED)), 0.0)) < wanted:
        worker.step(time.time_ns() // 1_000_000, 100)
    return handled


def run(quick: bool) -> dict[str, float]:
    """`samples_per_s`, and in the same run on the same broker with the same samples the peers' (`benchmarks.peers.others`)."""
    samples, runs = (100_000, 2) if quick else (SAMPLES, RUNS)
    return measure(samples=samples, runs=runs, peers=True)


def measure(*, samples: int = SAMPLES, runs: int = RUNS, home: str = "kafka", peers: bool = False) -> dict[str, float]:
    """Figures by name. One worker reads all; each figure is the median over `runs` equal parts after the first."""
    with a_log(home) as (log, where):
        now = time.time_ns() // 1_000_000
        _send(log, (Record("resources", f"node-{n:05}".encode(), encoder(NodeRegistered)(_registration(f"node-{n:05}", now))) for n in range(NODES)))  # fmt: skip
        worker = ProcessorWorker(log, Observe)
        while worker.step(now, 500) or not worker.health().ready:
            pass
        worker.close(5_000)
        # All of it before anybody reads, for observe as for its peers: whoever reads while it is written reads small batches.
        _send(log, _samples(0, samples * (runs + 1), now))
        worker = ProcessorWorker(log, Observe)
        rates = []
        done, at = _until(worker, 1), time.perf_counter()
        # The first part warms caches up; it is not counted.
        for part in range(runs + 1):
            before, begun = done, at
            done, at = _until(worker, (part + 1.0) * samples), time.perf_counter()
            rates.append((done - before) / (at - begun))
        worker.close(5_000)
        twice = _told_twice(log)
        if twice:
            raise RuntimeError(f"{twice} changes were told more than once: the figure would be worth nothing")
        figures = {"samples_per_s": statistics.median(rates[1:])}
        if peers:
            figures |= others(where, samples * (runs + 1))
        return figures


def main(arguments: Sequence[str]) -> None:
    """`python -m benchmarks.observe [embedded|kafka] [samples] [runs]`, for profiling."""
    home = arguments[0] if arguments else "kafka"
    samples = int(arguments[1]) if len(arguments) > 1 else SAMPLES
    runs = int(arguments[2]) if len(arguments) > 2 else RUNS
    for name, value in measure(samples=samples, runs=runs, home=home).items():
        print(f"{name}  {value:,.0f}")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
