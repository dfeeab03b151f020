"""The compose file, run for real: all healthy, a job from outside is placed and found by SQL, restarts lose nothing.

Marked `container`: deselected from the default run, run by `bin/test-containers`. chDB behind its HTTP front stands in for
ClickHouse and Grafana is left out (tests/containers/override.yml), because not every machine can pull those images.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = "lockstep-test"
REGISTRY_VERSION = "2.6.13.Final"
# What somebody beside the containers sets.
OUTSIDE = {"LOCKSTEP_KAFKA": "localhost:29092", "LOCKSTEP_REGISTRY": "http://localhost:8081/apis/ccompat/v7"}
pytestmark = pytest.mark.container


def _absent(reason: str) -> None:
    if os.environ.get("LOCKSTEP_REQUIRE_CONTAINERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _run(*args: str, timeout_s: int = 600, check: bool = True, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        args,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode:
        pytest.fail(f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def _chdb_version() -> str:
    found = re.search(r"^chdb==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _compose(*args: str, timeout_s: int = 600, check: bool = True) -> str:
    return _run(
        "docker", "compose", "-p", PROJECT, "-f", "docker-compose.yml", "-f", "tests/containers/override.yml",
        "--profile", "simulate", *args, timeout_s=timeout_s, check=check, env={"CHDB_VERSION": _chdb_version()},
    )  # fmt: skip


def _registry_image_context() -> None:
    """The registry's archive comes from Maven, unpacked beside its Dockerfile in var/."""
    context = ROOT / "var" / "registry-image"
    context.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tests/containers/registry/Dockerfile", context / "Dockerfile")
    if (context / "app").is_dir():
        return
    _run(
        "mvn", "-q", "-B", "dependency:copy",
        f"-Dartifact=io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all", f"-DoutputDirectory={context}",
    )  # fmt: skip
    unpacked = context / "unpacked"
    unpacked.mkdir()
    (archive,) = context.glob("*.tar.gz")
    _run("tar", "-xzf", str(archive), "-C", str(unpacked))
    (runner,) = unpacked.rglob("apicurio-registry-app-*-runner.jar")
    archive.unlink()
    runner.parent.rename(context / "app")
    shutil.rmtree(unpacked, ignore_errors=True)


def _sql(query: str) -> list[dict[str, object]]:
    request = urllib.request.Request(
        "http://127.0.0.1:8123/?" + urllib.parse.urlencode({"user": "lockstep", "password": "lockstep"}),
        data=f"{query} FORMAT JSONEachRow".encode(),
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [json.loads(line) for line in answer.read().decode().splitlines() if line]


def _until(what: str, check: "object", timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = check()  # type: ignore[operator]
            if last:
                return
        except (OSError, KeyError, IndexError, ValueError) as e:
            last = e
        time.sleep(1)
    logs = _compose("logs", "--tail", "40", check=False)
    pytest.fail(f"not within {timeout_s:.0f} s: {what}; last seen: {last!r}\n{logs[-6000:]}")


def _lockstep(*args: str) -> str:
    """The command line, outside the containers, through the published port."""
    return _run(sys.executable, "-m", "infra.cli", *args, env=OUTSIDE, timeout_s=60)


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        _absent("no container engine answers: `docker info` failed")
    images = _run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}")
    for image in ("python:3.11-slim-bookworm", "apache/kafka:4.3.1", "prom/prometheus:v2.42.0"):
        if image not in images and _run("docker", "pull", "-q", image, check=False) == "":
            _absent(f"the image {image} is neither here nor to be pulled")
    _registry_image_context()
    try:
        _compose("build", timeout_s=900)
        _compose("up", "-d", "--wait", timeout_s=300)
        yield
    finally:
        _compose("down", "-v", "--remove-orphans", check=False)


def _landed(job: str) -> bool:
    return bool(_sql(f"SELECT job FROM lockstep.job_placed WHERE job = '{job}'"))


SUBMIT = ("submit", "--cards", "1", "--json", "--", "python", "train.py")


def _submit() -> str:
    return str(json.loads(_lockstep(*SUBMIT))["job"])


def _try_to_submit() -> str:
    """Raises `ValueError` when it was not taken."""
    return str(
        json.loads(_run(sys.executable, "-m", "infra.cli", *SUBMIT, env=OUTSIDE, timeout_s=60, check=False))["job"]
    )


def test_all_services_are_healthy(stack: None) -> None:
    states = [json.loads(line) for line in _compose("ps", "--format", "json").splitlines()]
    assert {s["Service"] for s in states} >= {
        "kafka",
        "registry",
        "clickhouse",
        "observe",
        "decide",
        "land",
        "prometheus",
    }
    assert {s["Service"]: s["State"] for s in states if s["State"] != "running"} == {}
    assert {s["Service"]: s["Health"] for s in states if s["Health"] not in ("healthy", "")} == {}


def test_a_job_from_outside_is_placed_and_found_by_sql(stack: None) -> None:
    job = _submit()
    _until(f"job {job} placed and landed", lambda: _landed(job))


def test_prometheus_scrapes_every_role(stack: None) -> None:
    def up() -> bool:
        url = "http://127.0.0.1:9090/api/v1/query?query=" + urllib.parse.quote('up{job="lockstep"}')
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = {r["metric"]["role"]: r["value"][1] for r in json.load(answer)["data"]["result"]}
        return found == {"observe": "1", "decide": "1", "land": "1"}

    _until("Prometheus sees the three roles up", up)


@pytest.mark.parametrize(
    "service", ["kafka", "registry", "clickhouse", "observe", "decide", "land", "simulate", "prometheus"]
)
def test_restart_of_each_service_loses_nothing(stack: None, service: str) -> None:
    before = _submit()
    _compose("restart", service, timeout_s=120)
    _until("a command answers again", _answers)
    taken: list[str] = []
    # Whoever submits while a service comes back is told so, and tries again.
    _until("a job is taken again", lambda: taken.append(_try_to_submit()) or True)
    for job in (before, taken[0]):
        _until(f"job {job} placed and landed after the restart of {service}", lambda job=job: _landed(job))
    _until("every ledger entry landed once", _ledger_landed_once)


def _answers() -> bool:
    return "dead-letter" in _run(sys.executable, "-m", "infra.cli", "topics", env=OUTSIDE, timeout_s=60, check=False)


def _ledger_landed_once() -> bool:
    """`seq` over all tables: dense from 1, each once."""
    (row,) = _sql("SELECT count() AS n, uniqExact(seq) AS distinct, max(seq) AS last FROM lockstep.ledger")
    return int(str(row["n"])) == int(str(row["distinct"])) == int(str(row["last"])) > 0


def test_alerts_fire_when_they_should() -> None:
    """Prometheus' own test of rules, by its own tool."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        _absent("no container engine answers: `docker info` failed")
    _run(
        "docker", "run", "--rm", "-v", f"{ROOT}:/src:ro", "--entrypoint", "promtool", "prom/prometheus:v2.42.0",
        "test", "rules", "/src/tests/infra_roles/alerts_test.yml",
    )  # fmt: skip
