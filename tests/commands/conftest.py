"""`lockstep` as people run it: processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import broker

__all__ = ["broker"]


class Answer:
    """What a command left: exit code, both outputs."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Lockstep:
    """Commands on one data folder, and `up` on it."""

    def __init__(self, data: Path, env: dict[str, str] | None = None) -> None:
        self.data = data
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
        self.env = {**clean, "LOCKSTEP_DATA_DIR": str(data), "LOCKSTEP_LINGER_MS": "50", **(env or {})}
        self.said = data.parent / "said"
        self._up: subprocess.Popen[str] | None = None

    def __call__(self, *words: str, stdin: str | None = None) -> Answer:
        return Answer(
            subprocess.run(
                [sys.executable, "-m", "infra.cli", *words], env=self.env, input=stdin, capture_output=True, text=True,
                check=False, timeout=120, cwd=self.data.parent,
            )
        )  # fmt: skip

    def start(self, *words: str) -> str:
        """Start `up` (or other words); returns its API's or probes' address once it is ready."""
        words = words or ("up",)
        self.said = self.data.parent / "said"
        with self.said.open("a") as out:
            self._up = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", *words],
                env=self.env,
                stdout=out,
                stderr=out,
                text=True,
                cwd=self.data.parent,
            )
        return self.address()

    def address(self) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self._up is not None
            assert self._up.poll() is None, self.output()
            file = self.data / "api.json"
            if file.is_file():
                told = json.loads(file.read_text())
                if told["pid"] == self._up.pid:
                    return str(told["url"])
            time.sleep(0.05)
        raise AssertionError(f"not up within a minute: {self.output()}")

    def output(self) -> str:
        return self.said.read_text() if self.said.exists() else ""

    def signal(self, number: int) -> int:
        """Send a signal to `up`, and its exit code."""
        assert self._up is not None
        self._up.send_signal(number)
        code = self._up.wait(60)
        self._up = None
        return code

    def stop(self) -> int:
        return self.signal(signal.SIGINT)

    def end(self) -> None:
        if self._up is not None:
            self._up.kill()
            self._up.wait(10)

    def until(self, what: str, check: Callable[[], object], timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        last: object = None
        while time.monotonic() < end:
            last = check()
            if last:
                return
            time.sleep(0.1)
        raise AssertionError(f"not within {timeout_s} s: {what}; last {last!r}\n{self.output()}")


@pytest.fixture
def lockstep(tmp_path: Path) -> Iterator[Lockstep]:
    made = Lockstep(tmp_path / "data")
    yield made
    made.end()
