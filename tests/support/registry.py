"""A real schema registry for tests: Apicurio with Confluent's API, from an archive that Maven puts into `var/registry` once.

`Registry.start` gives a running one on a free port of the loopback, with its schemas in memory. It ends with the process that
started it, however that ends. Never used in production.
"""

import fcntl
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Final

import httpx

from tests.support.broker import ROOT, free_ports

VERSION: Final = "2.6.13.Final"
ARTIFACT: Final = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
HOME: Final = ROOT / "var" / "registry"
# 4 s on a quiet machine.
START_S: Final = 120
STOP_S: Final = 15


class NoRegistry(OSError):
    """A real registry cannot be had here; the message says what is missing."""


def app() -> Path:
    """The folder of the unpacked registry, filled through Maven when it is not there yet."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise NoRegistry(f"a real schema registry needs `{tool}` (Debian: default-jdk-headless, maven)")
    unpacked = HOME / f"app-{VERSION}"
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side fetch once
        if not unpacked.exists():
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={HOME}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            archive = HOME / f"apicurio-registry-app-{VERSION}-all.tar.gz"
            if done.returncode or not archive.exists():
                raise NoRegistry(f"Maven could not fetch {ARTIFACT}: {(done.stdout + done.stderr)[-1000:]}")
            part = unpacked.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(archive) as tar:
                # The filter came with Python 3.11.4; the archive is one of ours, pinned.
                tar.extractall(part, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            part.rename(unpacked)
            archive.unlink()
    return unpacked


class Registry:
    """One registry; `Registry.start(folder)` makes it. A restart forgets its schemas."""

    def __init__(self, folder: Path) -> None:
        self._app = app()
        (self._port,) = free_ports(1)
        self._log = folder / "registry.log"
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path) -> "Registry":
        """A running registry that logs into `folder`. Raises `NoRegistry` when Java, Maven or the archive are missing."""
        registry = cls(folder)
        registry.restart()
        return registry

    def restart(self) -> None:
        """Start it, with nothing in it; ends the running one first."""
        self.stop()
        (jar,) = self._app.glob("apicurio-registry-app-*-runner.jar")
        command = [
            "java",
            "-Xmx384m",
            f"-Dquarkus.http.port={self._port}",
            "-Dquarkus.http.host=127.0.0.1",
            "-jar",
            str(jar),
        ]
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, cwd=self._app, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        # Its input ends when we do, by whatever death; then it ends the registry, which nobody else would.
        guard = ["sh", "-c", "read _; kill -9 $0", str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise NoRegistry(f"the registry did not start: {self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/subjects", timeout=2).is_success
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End it; harmless when it is not running."""
        guard, self._guard = self._guard, None
        process, self._process = self._process, None
        if guard is not None:
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
