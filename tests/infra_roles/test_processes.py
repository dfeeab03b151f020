"""Roles as processes on bad mornings: what they need is not there yet, hangs, is wrong; and how they end all the same."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.commands.conftest import Lockstep
from tests.support.broker import Broker, free_ports
from tests.support.chdb_front import ChdbFront


class Process(Lockstep):
    """`lockstep` words in a process of their own whose probes are on a port known beforehand."""

    def __init__(self, data: Path, env: dict[str, str] | None = None) -> None:
        (port,) = free_ports(1)
        super().__init__(data, {"LOCKSTEP_HTTP_PORT": str(port), "LOCKSTEP_LOG_LEVEL": "info", **(env or {})})
        self.url = f"http://127.0.0.1:{port}"

    def begin(self, *words: str) -> None:
        self.said = self.data.parent / f"said-{'-'.join(words)}-{time.monotonic_ns()}"
        with self.said.open("w") as out:
            self._up = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", *words], env=self.env, stdout=out, stderr=out, text=True,
                cwd=self.data.parent,
            )  # fmt: skip

    def status(self, path: str) -> int:
        try:
            return httpx.get(self.url + path, trust_env=False).status_code
        except httpx.HTTPError:
            return 0

    def detail(self, role: str) -> str:
        try:
            return str(httpx.get(f"{self.url}/readyz", trust_env=False).json()[role]["detail"])
        except httpx.HTTPError:
            return ""

    def wait(self) -> int:
        assert self._up is not None
        code = self._up.wait(60)
        self._up = None
        return code


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "data")
    yield made
    made.end()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen(64)
        yield f"127.0.0.1:{s.getsockname()[1]}"


def test_clickhouse_is_waited_for(process: Process, tmp_path: Path) -> None:
    """Away at the start, then without tables, then ready: land goes on by itself; deciding never waited for it."""
    front = ChdbFront(tmp_path / "server", free_ports(1)[0])
    process.env |= {"LOCKSTEP_CLICKHOUSE": front.url}
    process.begin("up", "--simulate")
    try:
        process.until("land says what it waits for", lambda: "does not answer" in process.detail("land"))
        assert process.status("/livez") == 200
        assert process.status("/readyz") == 503
        job = str(process("submit", "--json", "--", "true").json["job"])
        process.until("placed", lambda: process("jobs", "--json").json[0]["state"] in ("placed", "running", "finished"))
        front.up()
        process.until("tables are asked for", lambda: "run `lockstep migrate`" in process.detail("land"))
        assert process("migrate").code == 0
        process.until("ready", lambda: process.status("/readyz") == 200)
        process.until("landed", lambda: job in front.column("SELECT job FROM job_placed"))
        assert process.signal(signal.SIGTERM) == 0
        waited = [line.split(" ", 2)[2] for line in process.output().splitlines() if line.endswith("; trying again")]
        assert waited
        assert len(waited) == len(set(waited))  # each reason once, however often it tried
    finally:
        front.kill()


def test_a_clickhouse_that_hangs_does_not_hold_the_end(process: Process, black_hole: str) -> None:
    process.env |= {"LOCKSTEP_CLICKHOUSE": f"http://{black_hole}/lockstep", "LOCKSTEP_SHUTDOWN_MS": "1500"}
    process.begin("up")
    process.until("up", lambda: "Lockstep" in process.output() and "observe: " not in process.output())
    process.until("decide is ready", lambda: "has its partitions" in process.detail("decide"))
    begun = time.monotonic()
    assert process.signal(signal.SIGTERM) == 0
    assert time.monotonic() - begun < 15  # the client would wait for two minutes
    assert "no end in time" in process.output()
    assert not (process.data / "api.json").exists()


def test_a_second_ctrl_c_ends_it_at_once(process: Process, black_hole: str) -> None:
    process.env |= {"LOCKSTEP_CLICKHOUSE": f"http://{black_hole}/lockstep", "LOCKSTEP_SHUTDOWN_MS": "60000"}
    process.begin("up")
    process.until("decide is ready", lambda: "has its partitions" in process.detail("decide"))
    assert process._up is not None
    process._up.send_signal(signal.SIGINT)
    process.until("it ends in good order", lambda: "stopping: finishing what was begun" in process.output())
    assert process._up.poll() is None
    assert process.signal(signal.SIGINT) == 130
    process.env |= {"LOCKSTEP_CLICKHOUSE": "", "LOCKSTEP_SHUTDOWN_MS": "20000"}
    process.begin("up")
    process.until("and starts again", lambda: process.status("/readyz") == 200)
    assert process.stop() == 0


def test_what_was_written_last_is_in_clickhouse(process: Process) -> None:
    """Ended while rows were still being gathered: SQL knows all the same what the ledger knows."""
    process.env |= {"LOCKSTEP_LINGER_MS": "600000"}
    process.begin("up", "--simulate")
    process.until("up", lambda: process.status("/readyz") == 200)
    process.until("nodes", lambda: len(process("nodes", "--json").json) == 48)
    process("submit", "--json", "--", "true")
    assert process.stop() == 0
    ledger = next(t for t in process("topics", "--json").json if t["topic"] == "ledger")
    (row,) = process("sql", "--json", "SELECT count() AS n, max(seq) AS newest FROM ledger").json
    assert row["n"] == row["newest"] == ledger["messages"] > 48
    assert ledger["behind"] == {"land": 0}


def test_up_and_run_do_not_share_a_folder(process: Process, tmp_path: Path) -> None:
    process.begin("run", "decide")
    process.until("ready", lambda: process.status("/readyz") == 200)
    other = Process(process.data)
    refused = other("up")
    assert refused.code == 2
    assert "`lockstep run` in another process is running already" in refused.err
    assert process.signal(signal.SIGTERM) == 0
    process.begin("up")
    process.until("ready", lambda: process.status("/readyz") == 200)
    refused = other("run", "observe")
    assert refused.code == 2
    assert "`lockstep up` (process " in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert process.stop() == 0


@pytest.mark.parametrize("words", [("up",), ("run", "decide"), ("provision",), ("migrate",), ("topics",)])
def test_a_folder_that_cannot_be_is_one_sentence(process: Process, words: tuple[str, ...]) -> None:
    process.data.write_text("a file")
    told = process(*words)
    assert told.code in (1, 2)
    assert len(told.err.strip().splitlines()) == 1, told.err
    assert str(process.data) in told.err


def test_kafka_is_waited_for(process: Process) -> None:
    (nobody,) = free_ports(1)
    process.env |= {"LOCKSTEP_KAFKA": f"127.0.0.1:{nobody}"}
    process.begin("run", "decide")
    process.until("it says so", lambda: "waiting: " in process.output())
    assert process.status("/livez") == 200
    assert process.status("/readyz") == 503
    assert f":{nobody}" in process.detail("decide")
    assert process.signal(signal.SIGTERM) == 0
    assert process.output().count("waiting: ") == 1


def test_a_registry_is_waited_for_and_a_wrong_one_refused(process: Process, black_hole: str) -> None:
    (nobody,) = free_ports(1)
    process.env |= {"LOCKSTEP_REGISTRY": f"http://user:s3cret@127.0.0.1:{nobody}"}
    process.begin("run", "decide")
    process.until("it says so", lambda: "out of reach" in process.output())
    assert process.status("/livez") == 200
    assert process.signal(signal.SIGTERM) == 0
    assert "s3cret" not in process.output()
    wrong = Process(process.data.parent / "served")
    wrong.begin("run", "decide")
    wrong.until("up", lambda: wrong.status("/livez") == 200)
    process.env |= {"LOCKSTEP_REGISTRY": wrong.url}  # answers, and is no registry
    process.begin("run", "decide")
    assert process.wait() == 1
    assert f"{wrong.url} is not a schema registry" in process.output()
    assert wrong.signal(signal.SIGTERM) == 0


@pytest.mark.kafka
def test_each_role_on_kafka(tmp_path: Path, broker: Broker) -> None:
    """One process for each role, killed and started again in between; each is ready, and nothing is behind at the end."""
    kafka = {"LOCKSTEP_KAFKA": broker.bootstrap, "LOCKSTEP_TOPIC_PREFIX": f"roles-{time.time_ns()}."}
    setup = Process(tmp_path / "cli", kafka)
    assert setup("provision").code == 0
    roles = {role: Process(tmp_path / role, kafka) for role in ("observe", "decide", "land", "simulate")}
    try:
        for role, one in roles.items():
            one.begin("run", role)
        for role, one in roles.items():
            one.until(f"{role} is ready", lambda one=one: one.status("/readyz") == 200, 60)
        setup.until("nodes", lambda: len(setup("nodes", "--json").json) == 48, 60)
        jobs = [str(setup("submit", "--json", "--", "true").json["job"])]
        for role, one in roles.items():
            assert one.signal(signal.SIGKILL) == -9
            one.begin("run", role)
            jobs.append(str(setup("submit", "--json", "--", "true").json["job"]))
        for role, one in roles.items():
            one.until(f"{role} is ready again", lambda one=one: one.status("/readyz") == 200, 60)

        setup.until(
            "all are placed",
            lambda: {j["job"] for j in setup("jobs", "--json").json if j["state"] != "pending"} == set(jobs),
            60,
        )
        metrics = "\n".join(httpx.get(f"{one.url}/metrics", trust_env=False).text for one in roles.values())
        assert 'lockstep_ready{role="decide"} 1.0' in metrics
        roles["land"].until("landed", lambda: _lag(roles["land"]) == 0, 30)
        for role in ("land", "simulate", "decide", "observe"):
            assert roles[role].signal(signal.SIGTERM) == 0, roles[role].output()
        landed = Lockstep(tmp_path / "land", kafka)
        (row,) = landed(
            "sql", "--json", "SELECT count() AS n, uniqExact(seq) AS seqs, max(seq) AS newest FROM ledger"
        ).json
        assert row["n"] == row["seqs"] == row["newest"]
    finally:
        for one in roles.values():
            one.end()


def _lag(process: Process) -> float:
    """Messages that a role has still to process, as its metrics say."""
    text = httpx.get(f"{process.url}/metrics", trust_env=False).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("lockstep_lag_records{"))


@pytest.mark.parametrize(
    ("env", "code", "told"),
    [
        ({"LOCKSTEP_CLICKHOUSE": "http://localhost:1/no-name"}, 1, "'no-name' is no name for a ClickHouse database"),
        (
            {"LOCKSTEP_REGISTRY": "http://u:s3cret@localhost:1", "LOCKSTEP_REGISTRY_OPTIONS": '{"no.such": "1"}'},
            2,
            "no.such",
        ),
        ({"LOCKSTEP_KAFKA": "localhost:1", "LOCKSTEP_KAFKA_OPTIONS": '{"acks": "1"}'}, 2, "acks"),
    ],
)
def test_what_only_shows_when_it_is_used(process: Process, env: dict[str, str], code: int, told: str) -> None:
    process.env |= env
    process.begin("up")
    assert process.wait() == code
    last = process.output().strip().splitlines()[-1]
    assert last.startswith("lockstep: ")
    assert told in last
    assert "Traceback" not in process.output()
    assert "s3cret" not in process.output()
