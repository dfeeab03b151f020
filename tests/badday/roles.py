"""Roles as real processes, to be killed. Used by the bad-day tests; holds no assertion about scheduling."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROLES = ("observe", "decide", "land")


class RoleProcess:
    """`lockstep run ROLE` in a process of its own; `kill` is kill -9."""

    def __init__(self, role: str, env: Mapping[str, str], log_file: Path) -> None:
        self.role = role
        self._env = {**os.environ, **env}
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log_file.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "infra.cli", "run", self.role], env=self._env, stdout=out, stderr=out
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def tail(self) -> str:
        return self._log_file.read_text(errors="replace")[-3000:]
