"""A day of three roles at work: real processes, ClickHouse as the real engine behind an HTTP front, jobs and telemetry all along.

The tests of this folder say what goes wrong meanwhile. Every day ends with the account: nothing lost, nothing doubled.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from connectors.clickhouse.landing import TABLES
from schemas.codec import decode_rows, encode
from schemas.errors import Transient
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import Command, JobSubmitted, NodeRegistered, NodeTelemetry, Receipt
from schemas.topics import TOPICS
from tests.badday.account import take
from tests.badday.roles import ROLES, RoleProcess
from tests.support.chdb_front import HttpClickHouse

NODES = 16
JOBS_A_ROUND = 8
# Longer than a broker takes to come back on a busy machine.
SEND_MS = 120_000


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
    appender.flush(SEND_MS)
    appender.close(10_000)


class Nodes:
    """Answers every start and release command at once, so that cards come back while the roles die."""

    def __init__(self, log: Log) -> None:
        self._log = log
        spans = log.span("commands")
        self._reader = log.reader({TopicPartition("commands", p): s.begin for p, s in spans.items()})
        self._unsent: list[Record] = []

    def answer(self) -> None:
        """Raises `Transient` when the log is away; what was read is answered by the next call."""
        while blocks := self._reader.poll(10_000, 50):
            for block in blocks:
                for _, c in decode_rows(block).rows:
                    assert isinstance(c, Command)
                    for kind in ("started", "finished") if c.kind == "start" else ("released",):
                        receipt = Receipt(c.job, _now_ms(), "default", c.attempt, c.node, kind, 0, "")
                        self._unsent.append(Record("receipts", c.job.encode(), encode(receipt)))
        _send(self._log, self._unsent)
        self._unsent = []

    def close(self) -> None:
        self._reader.close()


def _samples(counter: int) -> list[Record]:
    """A sample of each node. From one counter to the next a card fails or comes back, so that observe has something to tell."""
    healthy = 8 - counter % 2
    telemetry = [NodeTelemetry(f"node-{i:02}", _now_ms(), counter, healthy, 50.0, 0, 0, 0, 300.0) for i in range(NODES)]
    return [Record("resource-telemetry", t.node.encode(), encode(t)) for t in telemetry]


def _landed(front: HttpClickHouse) -> list[int]:
    found: list[int] = []
    for table in TABLES["ledger"].values():
        found += [int(s) for s in front.column(f"SELECT seq FROM lockstep.{table}")]
    return found


def bad_day(
    log: Log,
    env: dict[str, str],
    front: HttpClickHouse,
    folder: Path,
    rounds: int,
    harm: Callable[[random.Random, dict[str, RoleProcess]], None],
) -> None:
    """So many rounds of work, each with `harm` done at a random moment of it, in a thread that is waited for; then the account.

    The seed is printed, so that a failing run can be repeated as far as a machine's timing lets it."""
    seed = int(os.environ.get("LOCKSTEP_SEED", str(time.time_ns() % 1_000_000)))
    print(f"reproduce with LOCKSTEP_SEED={seed}")
    rng = random.Random(seed)
    log.provision(TOPICS, dry_run=False)
    env = {**env, "LOCKSTEP_CLICKHOUSE": front.url, "LOCKSTEP_LINGER_MS": "100"}
    _send(log, [Record("resources", n.node.encode(), encode(n)) for n in map(_node, range(NODES))])
    roles = {role: RoleProcess(role, env, folder / f"{role}.log") for role in ROLES}
    nodes = Nodes(log)
    sent = counter = 0
    try:
        for process in roles.values():
            process.start()
        for _ in range(rounds):
            harming = threading.Thread(target=harm, args=(rng, roles))
            harming.start()
            while True:
                counter += 1
                _send(log, _samples(counter))
                jobs = [_job(i) for i in range(sent, sent + JOBS_A_ROUND)]
                sent += JOBS_A_ROUND
                _send(log, [Record("jobs", j.job.encode(), encode(j)) for j in jobs])
                with suppress(Transient):
                    nodes.answer()
                if not harming.is_alive():
                    break
                harming.join(0.5)
        # A killed member's partitions wait for its session to end; then all must come to rest by itself.
        deadline = time.monotonic() + 120
        while True:
            try:
                counter += 2  # nothing new
                _send(log, _samples(counter))  # or they fall silent, and nothing more is placed
                nodes.answer()
                account = take(log, lambda: _landed(front))
                if (not account.wrong() and account.entries["JobEnded"] == sent) or time.monotonic() > deadline:
                    break
            except Transient:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1)
        dead = {role: p.tail() for role, p in roles.items() if not p.alive}
        assert not dead, dead
        assert len(account.submitted) == sent
        wrong = account.wrong()
        assert not wrong, wrong
        assert account.entries["JobEnded"] == sent, account.entries
        assert {role: p.stop() for role, p in roles.items()} == dict.fromkeys(ROLES, 0)
    finally:
        nodes.close()
        for process in roles.values():
            process.kill()
