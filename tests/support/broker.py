"""A real Apache Kafka for tests and benchmarks: one process, from jars that Maven puts into `var/kafka-libs` once.

`Broker.start` gives a running one on free ports of the loopback; `kill` and `restart` make bad days. It ends with the
process that started it, however that ends. Never used in production.
"""

import contextlib
import fcntl
import hashlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
POM: Final = Path(__file__).with_name("kafka") / "pom.xml"
LIBS: Final = ROOT / "var" / "kafka-libs"
# 2.4 s on a quiet machine; a busy one with two cores and other JVMs may take many times that.
START_S: Final = 90
STOP_S: Final = 15
STARTED: Final = b"Kafka Server started"
# The SASL listener's only account. It guards nothing.
USER: Final = "lockstep-test"
PASSWORD: Final = "correct-horse-battery"


class NoBroker(OSError):
    """A real broker cannot be had here; the message says what is missing."""


def libs() -> Path:
    """The folder of the broker's jars, filled by Maven when it is not yet, or is of another pom."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise NoBroker(f"a real Kafka broker needs `{tool}` (Debian: default-jdk-headless, maven)")
    version = hashlib.sha256(POM.read_bytes()).hexdigest()
    stamp = LIBS / ".pom"
    LIBS.parent.mkdir(parents=True, exist_ok=True)
    with (LIBS.parent / "kafka-libs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side fetch once
        if not stamp.exists() or stamp.read_text() != version:
            shutil.rmtree(LIBS, ignore_errors=True)
            command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={LIBS}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoBroker(f"Maven could not fetch the broker's jars: {(done.stdout + done.stderr)[-1000:]}")
            stamp.write_text(version)
    return LIBS


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, below the range from which the system gives clients theirs: a restart finds them free."""
    found: list[int] = []
    rng = random.SystemRandom()
    while len(found) < count:
        port = rng.randrange(20_000, 32_000)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _properties(folder: Path, plain: int, sasl: int, controller: int) -> str:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    lines = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "log.dirs": folder / "data",
        # One broker: a copy of everything is all there can be. Few internal partitions start faster.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        # After kill -9 the controller waits this long (9 s by default) before it lets the same broker in again.
        "broker.session.timeout.ms": 3_000,
        "broker.heartbeat.interval.ms": 500,
        # Tests of members that fall silent do not want to wait for 6 s.
        "group.min.session.timeout.ms": 500,
        "message.max.bytes": 16 << 20,
    }
    return "".join(f"{k}={v}\n" for k, v in lines.items())


class Broker:
    """One broker; `Broker.start(folder)` makes it."""

    def __init__(self, folder: Path, port: int | None, *, measured: bool) -> None:
        self._folder = folder
        # A broker of a minute's life is better off with the quick compiler only: the thorough one would take a core for all of it.
        self._options = [] if measured else ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._libs = libs()
        plain, sasl, controller = free_ports(3)
        self._plain = plain if port is None else port
        self.bootstrap = f"127.0.0.1:{self._plain}"
        self.sasl_bootstrap = f"127.0.0.1:{sasl}"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "server.properties").write_text(_properties(folder, self._plain, sasl, controller))
        # Its first character may be a dash, which would be taken for an option.
        cluster = "L" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        self._java("kafka.tools.StorageTool", "format", "-t", cluster)

    @classmethod
    def start(cls, data_dir: Path, port: int | None = None, *, measured: bool = False) -> "Broker":
        """A running broker with its data in `data_dir`; `measured`: compiled as in production. Raises `NoBroker` when Java, Maven or
        the jars are missing."""
        broker = cls(data_dir, port, measured=measured)
        broker.restart()
        return broker

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [
            "java", "-Xmx512m", *self._options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info", "-cp", f"{self._libs}/*", main, *arguments,
        ]  # fmt: skip

    def _java(self, main: str, *arguments: str) -> None:
        command = self._command(main, *arguments, "-c", str(self._folder / "server.properties"))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoBroker(f"{main} failed: {(done.stdout + done.stderr)[-1000:]}")

    @property
    def log_file(self) -> Path:
        """What the broker printed."""
        return self._folder / "broker.log"

    def restart(self) -> None:
        """Start on what is in the data folder; ends the running one first, kindly."""
        self.stop()
        with self.log_file.open("ab") as out:
            seen = out.tell()
            command = self._command("kafka.Kafka", str(self._folder / "server.properties"))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        # Its input ends when we do, by whatever death; then it ends the broker, which nobody else would.
        guard = ["sh", "-c", "read _; kill -9 $0", str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + START_S
        while STARTED not in self.log_file.read_bytes()[seen:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NoBroker(f"the broker did not start: {self.log_file.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9: no goodbye, nothing flushed by the broker itself."""
        self._end(kind=False)

    def stop(self) -> None:
        """End it; harmless when it is not running."""
        self._end(kind=True)

    def _end(self, *, kind: bool) -> None:
        guard, self._guard = self._guard, None
        process, self._process = self._process, None
        if guard is not None:
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()
        if process is None:
            return
        if kind:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        process.kill()
        process.wait()


def main() -> None:
    """`python -m tests.support.broker`: a broker to play with, until Enter."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker.start(Path(folder))
        print(
            f"bootstrap {broker.bootstrap}, with SASL/PLAIN {broker.sasl_bootstrap} (pid {os.getpid()}); Enter ends it"
        )
        try:
            input()
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
