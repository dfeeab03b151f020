"""The Kafka half of the benchmark `log`: messages of 120 bytes in and out of a real broker, and transactions back to back.

Messages go in through the log's appender and come out through its reader; both halves of the round trip are timed together.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks._frame import QUICK_RUNS, RUNS
from connectors.log.kafka import KafkaLog
from schemas.messages import Committed, Record, TopicPartition
from schemas.topics import TOPIC, TOPICS
from tests.support.broker import Broker

MESSAGES: Final = 500_000
WARM_TRANSACTIONS: Final = 1_000
TRANSACTIONS: Final = 500
TELEMETRY: Final = "resource-telemetry"


class _Deaf:
    """A listener that has nothing to do."""

    def assigned(self, committed: object) -> dict[TopicPartition, int]:
        return {}

    def revoked(self, partitions: object, *, lost: bool) -> None: ...


def _in(log: KafkaLog, records: list[Record]) -> None:
    appender = log.appender("benchmark")
    for record in records:
        appender.send(record)
    appender.flush(120_000)
    appender.close(10_000)


def _out(log: KafkaLog, positions: dict[TopicPartition, int], count: int) -> None:
    """Read `count` messages from `positions`, which move on."""
    reader = log.reader(positions)
    got = 0
    while got < count:
        for block in reader.poll(50_000, 1_000):
            got += len(block)
            positions[block.tp] = block.next_offset
    reader.close()


def _commits(log: KafkaLog, count: int) -> list[float]:
    """Milliseconds of each of `count` transactions of one position and two records, back to back."""
    member = log.member("benchmark", [TELEMETRY], _Deaf(), owner="benchmark", assign_all=True)
    member.poll(1, 5_000)
    records = [Record("ledger", b"default", bytes(120)), Record("commands", b"node-1", bytes(120))]
    times = []
    for i in range(count):
        begun = time.perf_counter()
        member.commit({TopicPartition(TELEMETRY, 0): Committed(i)}, records)
        times.append(1_000 * (time.perf_counter() - begun))
    member.close(1_000)
    return times


def run(quick: bool) -> dict[str, float]:
    """`kafka_round_trip_per_s`, `kafka_in_per_s`, `kafka_out_per_s`, `kafka_transaction_p50_ms`."""
    count = MESSAGES // 10 if quick else MESSAGES
    records = [Record(TELEMETRY, b"node-%05d" % (i % 2_500), (b"%010d" % i) * 12) for i in range(count)]
    ins, outs, both = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.start(Path(folder), measured=True)
        try:
            log = KafkaLog(broker.bootstrap)
            log.provision(TOPICS, dry_run=False)
            positions = {TopicPartition(TELEMETRY, p): 0 for p in range(TOPIC[TELEMETRY].partitions)}
            for _ in range(1 + (QUICK_RUNS if quick else RUNS)):  # the first warms the broker up
                begun = time.perf_counter()
                _in(log, records)
                written = time.perf_counter()
                _out(log, positions, count)
                read = time.perf_counter()
                ins.append(count / (written - begun))
                outs.append(count / (read - written))
                both.append(count / (read - begun))
            # A broker's code for transactions is compiled after a thousand of them.
            commits = _commits(log, WARM_TRANSACTIONS + TRANSACTIONS // (10 if quick else 1))[WARM_TRANSACTIONS:]
            log.close()
        finally:
            broker.stop()
    return {
        "kafka_round_trip_per_s": statistics.median(both[1:]),
        "kafka_in_per_s": statistics.median(ins[1:]),
        "kafka_out_per_s": statistics.median(outs[1:]),
        "kafka_transaction_p50_ms": statistics.median(commits),
    }
