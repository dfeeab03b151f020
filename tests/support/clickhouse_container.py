"""A ClickHouse server in a container, for the tests that kill one: the image of docker-compose.yml, by testcontainers.

It takes over from the front over chDB where a container engine answers and has the image (`docker compose pull clickhouse`);
LOCKSTEP_TEST_CLICKHOUSE=container insists on it, =front forbids it, LOCKSTEP_TEST_CLICKHOUSE_IMAGE names another image.
"""

import base64
import os
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, cast

import yaml

from tests.support.chdb_front import HttpClickHouse

COMPOSE: Final = Path(__file__).parents[2] / "docker-compose.yml"
USER: Final = "lockstep"
PASSWORD: Final = "for-tests-only"
START_S: Final = 60.0
PORT: Final = 8123


def image() -> str:
    """The server that tests run against, by default the one that users are told to run."""
    compose = yaml.safe_load(COMPOSE.read_text())
    return os.environ.get("LOCKSTEP_TEST_CLICKHOUSE_IMAGE") or str(compose["services"]["clickhouse"]["image"])


@cache
def wanted() -> bool:
    """Whether the container takes over. Raises `RuntimeError` when it must and cannot."""
    choice = os.environ.get("LOCKSTEP_TEST_CLICKHOUSE", "")
    if choice not in {"", "container", "front"}:
        raise RuntimeError(f"LOCKSTEP_TEST_CLICKHOUSE is {choice!r}; it can be container or front")
    if choice == "front":
        return False
    try:
        looked = subprocess.run(["docker", "image", "inspect", image()], capture_output=True, timeout=10, check=False)
        there, said = looked.returncode == 0, looked.stderr.decode().strip()
    except (OSError, subprocess.TimeoutExpired) as e:
        there, said = False, str(e)
    if choice == "container" and not there:
        raise RuntimeError(f"LOCKSTEP_TEST_CLICKHOUSE=container, but there is no image {image()}: {said}")
    return there


class ClickHouseContainer(HttpClickHouse):
    """One server. Its port and its data stay when it is killed and started again."""

    def __init__(self) -> None:
        # Its reaper is an image of its own, which need not be there; `stop` is in the fixture's `finally`.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.core.container import DockerContainer

        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            super().__init__(s.getsockname()[1])
        self._container = (
            DockerContainer(image())
            .with_env("CLICKHOUSE_USER", USER)
            .with_env("CLICKHOUSE_PASSWORD", PASSWORD)
            .with_env("CLICKHOUSE_DB", "lockstep")
        )
        # Its own way of binding a port would open it to the network.
        cast(dict[str, tuple[str, int]], self._container.ports)[f"{PORT}/tcp"] = ("127.0.0.1", self.port)
        self._made = False

    @classmethod
    def start(cls) -> "ClickHouseContainer":
        server = cls()
        try:
            server.up()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def url(self) -> str:
        return f"http://{USER}:{PASSWORD}@127.0.0.1:{self.port}/lockstep"

    def up(self) -> None:
        if self._made:
            self._container.get_wrapped_container().start()
        else:
            self._container.start()
            self._made = True
        self._until_it_answers(self._alive, START_S)

    def _alive(self) -> bool:
        container = self._container.get_wrapped_container()
        container.reload()
        return str(container.status) in {"created", "running"}

    def kill(self) -> None:
        if self._alive():
            container = self._container.get_wrapped_container()
            container.kill("SIGKILL")
            container.wait()

    def stop(self) -> None:
        if self._made:
            self._container.stop(force=True, delete_volume=True)
            self._made = False

    def _headers(self) -> dict[str, str]:
        return {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
