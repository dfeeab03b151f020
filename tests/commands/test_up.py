"""`lockstep up` and the commands around it, in real processes: both ways to an answer, ends, restarts, refusals."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

from connectors.log.kafka import KafkaLog
from schemas.topics import TOPICS
from tests.commands.conftest import Lockstep
from tests.support.broker import Broker


def _file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # given to one process, closed with this one


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def _placed(lockstep: Lockstep, *words: str) -> str:
    """Submit a job and wait until it is placed; its id."""
    job = str(lockstep("submit", "--json", *words, "--", "true").json["job"])
    lockstep.until("placed", lambda: lockstep("jobs", "--json").json[0]["state"] in ("placed", "running", "finished"))
    return job


def test_a_job_through_a_running_lockstep_and_after_it(lockstep: Lockstep) -> None:
    url = lockstep.start("up", "--simulate")
    lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48)
    told = lockstep("submit", "--cards", "8", "--model", "H100", "--", "python", "train.py")
    assert told.code == 0
    assert "its cards' share of a node" in told.out
    assert "is placed on" in told.out or "waits" in told.out
    job = lockstep("jobs", "--json").json[0]["job"]
    lockstep.until("landed", lambda: lockstep("sql", "--json", f"SELECT job FROM job_placed WHERE job = '{job}'").json)
    # The same questions, answered by the running process and without one.
    questions = (
        ("nodes", "--json"), ("links", "--json"), ("topics",), ("queries", "--json"), ("jobs", "--json", "--state", "failed"),
        ("sql", "--json", "SELECT 1 AS one"), ("nodes", "--site", "nowhere"),
    )  # fmt: skip
    assert _get(f"{url}/livez")[0] == 200
    lockstep.until("ready", lambda: _get(f"{url}/readyz")[0] == 200)
    metrics = _get(f"{url}/metrics")[1]
    assert 'lockstep_decisions_total{entry="JobPlaced"} 1.0' in metrics
    assert 'lockstep_landed_rows_total{table="job_placed"} 1.0' in metrics
    while_up = [lockstep(*q) for q in questions]
    assert lockstep.stop() == 0, lockstep.output()
    assert not (lockstep.data / "api.json").exists()
    after = [lockstep(*q) for q in questions]
    assert [a.code for a in while_up] == [a.code for a in after] == [0] * len(questions)
    assert [n["node"] for n in while_up[0].json] == [n["node"] for n in after[0].json]
    assert while_up[3].out == after[3].out
    assert while_up[6].out == after[6].out == "No node fits.\n"
    why = lockstep("why", job)
    assert why.code == 0
    assert f"{job} is" in why.out
    assert "Inferred:" in why.out
    assert "job_placed" in why.out  # its history, from ClickHouse


def test_it_goes_on_where_it_was(lockstep: Lockstep) -> None:
    """Ended in good order, and killed: jobs, seq and rows go on; nothing twice."""
    lockstep.start("up", "--simulate")
    lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48)
    jobs = [_placed(lockstep)]
    assert lockstep.stop() == 0
    queued = lockstep("submit", "--json", "--", "true")
    assert queued.code == 0
    assert queued.json["state"] == ""  # nothing runs: it waits in the log
    jobs.append(queued.json["job"])
    lockstep.start("up", "--simulate")
    lockstep.until("taken up", lambda: len(lockstep("jobs", "--json").json) == 2)
    assert lockstep.signal(signal.SIGKILL) == -9
    assert (lockstep.data / "api.json").exists()  # left behind by the killed one: commands must see through it
    assert len(lockstep("jobs", "--json").json) == 2
    lockstep.start("up", "--simulate")
    jobs.append(_placed(lockstep))
    assert {j["job"] for j in lockstep("jobs", "--json").json} == set(jobs)
    gaps = "SELECT max(seq) AS newest, count() AS n, uniqExact(seq) AS distinct, countIf(entry = 'engine_started') AS starts FROM ledger"
    lockstep.until(
        "landed", lambda: lockstep("sql", "--json", "SELECT uniqExact(job) AS n FROM job_placed").json[0]["n"] == 3
    )
    (row,) = lockstep("sql", "--json", gaps).json
    assert row["newest"] == row["n"] == row["distinct"]
    assert row["starts"] == 3
    assert lockstep.stop() == 0


def test_a_second_up_is_refused(lockstep: Lockstep) -> None:
    lockstep.start()
    second = lockstep("up")
    assert second.code == 2
    assert "is running already" in second.err
    assert len(second.err.strip().splitlines()) == 1
    assert lockstep("nodes").code == 0
    assert lockstep.signal(signal.SIGTERM) == 0


def test_the_api_needs_its_token(lockstep: Lockstep) -> None:
    url = lockstep.start()
    assert oct((lockstep.data / "api.json").stat().st_mode)[-3:] == "600"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        answer = httpx.post(f"{url}/v1/nodes", json={}, headers=headers)
        assert answer.status_code == 401
    token = httpx.Response(200, content=(lockstep.data / "api.json").read_bytes()).json()["token"]
    good = {"Authorization": f"Bearer {token}"}
    assert httpx.post(f"{url}/v1/nodes", json={}, headers=good).json() == {"answer": []}
    assert httpx.post(f"{url}/v1/nodes", json={"colour": "red"}, headers=good).status_code == 400
    assert httpx.post(f"{url}/v1/nothing", json={}, headers=good).status_code == 404
    assert httpx.post(f"{url}/v1/nodes", content=b"{", headers=good).status_code == 400
    assert httpx.post(f"{url}/v1/job", json={"job": "x"}, headers=good).json()["kind"] == "not_found"
    assert lockstep.stop() == 0


def test_a_taken_port_is_one_sentence(lockstep: Lockstep) -> None:
    url = lockstep.start()
    other = Lockstep(lockstep.data.parent / "other", {"LOCKSTEP_HTTP_PORT": url.rsplit(":", 1)[1]})
    told = other("up")
    assert told.code == 2
    assert "name another port with LOCKSTEP_HTTP_PORT" in told.err
    assert lockstep.stop() == 0


def test_roles_in_processes_of_their_own(lockstep: Lockstep, tmp_path: Path) -> None:
    """Roles share the embedded log; an older engine is fenced by a newer one and ends with 4."""
    processes = {role: Lockstep(lockstep.data) for role in ("observe", "decide", "simulate")}
    running = {
        role: subprocess.Popen(
            [sys.executable, "-m", "infra.cli", "run", role],
            env=p.env,
            stderr=_file(tmp_path / f"{role}.err"),
            cwd=tmp_path,
        )
        for role, p in processes.items()
    }
    try:
        end = time.monotonic() + 40
        while (
            time.monotonic() < end
            and len(lockstep("nodes", "--json").json if lockstep("nodes", "--json").code == 0 else []) < 48
        ):
            time.sleep(0.2)
        newer = subprocess.Popen(
            [sys.executable, "-m", "infra.cli", "run", "decide"],
            env=lockstep.env,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        running["newer"] = newer
        job = lockstep("submit", "--json", "--", "true").json["job"]
        lockstep.until(
            "placed", lambda: lockstep("jobs", "--json").json[0]["state"] in ("placed", "running", "finished")
        )
        assert lockstep("jobs", "--json").json[0]["job"] == job
        assert running["decide"].wait(30) == 4
        assert "fenced" in (tmp_path / "decide.err").read_text()
        assert newer.poll() is None
    finally:
        for process in running.values():
            process.terminate()
        codes = {role: process.wait(30) for role, process in running.items()}
    assert codes == {"observe": 0, "decide": 4, "simulate": 0, "newer": 0}


@pytest.mark.kafka
def test_up_on_kafka(tmp_path: Path, broker: Broker) -> None:
    prefix = f"up-{time.time_ns()}."
    lockstep = Lockstep(tmp_path / "data", {"LOCKSTEP_KAFKA": broker.bootstrap, "LOCKSTEP_TOPIC_PREFIX": prefix})
    try:
        log = KafkaLog(broker.bootstrap, prefix=prefix)
        lockstep.start("up", "--simulate") if log.provision(TOPICS, dry_run=False) else None
        lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48, 60)
        job = _placed(lockstep, "--cards", "8")
        lockstep.until(
            "landed", lambda: lockstep("sql", "--json", f"SELECT job FROM job_placed WHERE job = '{job}'").json
        )
        assert lockstep.stop() == 0
        assert lockstep("why", job).code == 0  # straight from Kafka
        log.close()
    finally:
        lockstep.end()


@pytest.mark.kafka
def test_missing_topics_are_waited_for(tmp_path: Path, broker: Broker) -> None:
    prefix = f"wait-{time.time_ns()}."
    lockstep = Lockstep(tmp_path / "data", {"LOCKSTEP_KAFKA": broker.bootstrap, "LOCKSTEP_TOPIC_PREFIX": prefix})
    command = [sys.executable, "-m", "infra.cli", "run", "decide"]
    process = subprocess.Popen(command, env=lockstep.env, stderr=_file(lockstep.said), cwd=tmp_path)
    try:
        lockstep.until("it says so", lambda: "run `lockstep provision`" in lockstep.output())
        planned = lockstep("provision", "--dry-run", "--json").json
        assert {s["action"] for s in planned} == {"create"}
        assert lockstep("provision").code == 0
        assert {s["action"] for s in lockstep("provision", "--json").json} == {"keep"}
        lockstep.until("it goes on", lambda: "decide on the log Kafka" in lockstep.output())
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(10)
