"""Bad day 1: kill -9 of observe, decide and land at random moments, 50 times in one run, on Kafka and on the embedded log.

Every role is a real process; ClickHouse is the real engine behind an HTTP front. The seed is printed, so that a failing
run can be repeated as far as a machine's timing lets it.
"""

import os
import random
import time
from pathlib import Path

import pytest

from connectors.clickhouse.landing import TABLES
from connectors.log.embedded import EmbeddedLog
from connectors.log.kafka import KafkaLog
from schemas.codec import decode_rows, encode
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import Command, JobSubmitted, NodeRegistered, NodeTelemetry, Receipt
from schemas.topics import TOPICS
from tests.badday.account import take
from tests.badday.roles import ROLES, RoleProcess
from tests.support.broker import Broker
from tests.support.chdb_front import ChdbFront

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "50"))
NODES = 16
JOBS_A_KILL = 20


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _node(i: int) -> NodeRegistered:
    return NodeRegistered(
        f"node-{i:02}", _now_ms(), "default", "site-1", "north", "", "dc-1", "", f"rack-{i // 4}", 8, "A100-SXM4-80GB",
        80 << 30, 128_000, 1 << 40, 1 << 42, "", (), "", "active",
    )  # fmt: skip


def _job(i: int) -> JobSubmitted:
    return JobSubmitted(
        f"job-{i:05}", _now_ms(), "default", "user-1", "default", 0, 1 + i % 3, 1000 if i % 2 else 500, (), 0, 1000, 1 << 30,
        "", 0, 0, ("true",), (), (),
    )  # fmt: skip


def _send(log: Log, records: list[Record]) -> None:
    appender = log.appender("bad-day")
    for record in records:
        appender.send(record)
    appender.flush(30_000)
    appender.close(10_000)


class Nodes:
    """Answers every start and release command at once, so that cards come back while the roles die."""

    def __init__(self, log: Log) -> None:
        self._log = log
        spans = log.span("commands")
        self._reader = log.reader({TopicPartition("commands", p): s.begin for p, s in spans.items()})

    def answer(self) -> None:
        out = []
        while blocks := self._reader.poll(10_000, 50):
            for block in blocks:
                for _, c in decode_rows(block).rows:
                    assert isinstance(c, Command)
                    for kind in ("started", "finished") if c.kind == "start" else ("released",):
                        receipt = Receipt(c.job, _now_ms(), "default", c.attempt, c.node, kind, 0, "")
                        out.append(Record("receipts", c.job.encode(), encode(receipt)))
        _send(self._log, out)

    def close(self) -> None:
        self._reader.close()


def _landed(front: ChdbFront) -> list[int]:
    found: list[int] = []
    for table in TABLES["ledger"].values():
        found += [int(s) for s in front.column(f"SELECT seq FROM lockstep.{table}")]
    return found


def _bad_day(log: Log, env: dict[str, str], front: ChdbFront, tmp_path: Path) -> None:
    seed = int(os.environ.get("LOCKSTEP_SEED", str(time.time_ns() % 1_000_000)))
    print(f"reproduce with LOCKSTEP_SEED={seed}")
    rng = random.Random(seed)
    log.provision(TOPICS, dry_run=False)
    env = {**env, "LOCKSTEP_CLICKHOUSE": front.url, "LOCKSTEP_LINGER_MS": "100"}
    _send(log, [Record("resources", n.node.encode(), encode(n)) for n in map(_node, range(NODES))])
    roles = {role: RoleProcess(role, env, tmp_path / f"{role}.log") for role in ROLES}
    nodes = Nodes(log)
    sent = counter = 0
    try:
        for process in roles.values():
            process.start()
        for _ in range(KILLS):
            counter += 1
            telemetry = [
                NodeTelemetry(f"node-{i:02}", _now_ms(), counter, 8, 50.0, 0, 0, 0, 300.0) for i in range(NODES)
            ]
            _send(log, [Record("resource-telemetry", t.node.encode(), encode(t)) for t in telemetry])
            jobs = [_job(i) for i in range(sent, sent + JOBS_A_KILL)]
            sent += JOBS_A_KILL
            _send(log, [Record("jobs", j.job.encode(), encode(j)) for j in jobs])
            nodes.answer()
            time.sleep(rng.uniform(0.05, 1.2))  # the random moment
            victim = roles[rng.choice(ROLES)]
            victim.kill()
            victim.start()
        # A killed member's partitions wait for its session to end; then all must come to rest by itself.
        deadline = time.monotonic() + 120
        while True:
            nodes.answer()
            account = take(log, lambda: _landed(front))
            if (not account.wrong() and account.entries["JobEnded"] == sent) or time.monotonic() > deadline:
                break
            time.sleep(1)
        dead = {role: p.tail() for role, p in roles.items() if not p.alive}
        assert not dead, dead
        assert len(account.submitted) == sent
        assert account.wrong() == []
        assert account.entries["JobEnded"] == sent, account.entries
        assert {role: p.stop() for role, p in roles.items()} == dict.fromkeys(ROLES, 0)
    finally:
        nodes.close()
        for process in roles.values():
            process.kill()


def test_on_the_embedded_log(front: ChdbFront, tmp_path: Path) -> None:
    env = {"LOCKSTEP_DATA_DIR": str(tmp_path / "data")}
    log = EmbeddedLog(tmp_path / "data")
    try:
        _bad_day(log, env, front, tmp_path)
    finally:
        log.close()


@pytest.mark.kafka
def test_on_kafka(broker: Broker, front: ChdbFront, tmp_path: Path) -> None:
    prefix = f"kill9-{time.time_ns()}."
    bootstrap = broker.bootstrap
    env = {
        "LOCKSTEP_DATA_DIR": str(tmp_path / "data"), "LOCKSTEP_KAFKA": bootstrap, "LOCKSTEP_TOPIC_PREFIX": prefix,
    }  # fmt: skip
    log = KafkaLog(bootstrap, prefix=prefix)
    try:
        _bad_day(log, env, front, tmp_path)
    finally:
        log.close()
