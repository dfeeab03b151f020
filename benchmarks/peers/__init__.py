"""Peers of the benchmark `observe`: the same work on the same samples of the same broker, by Kafka Streams and by Faust.

Each starts reading at the first sample, in a process of its own, while nothing else runs. The first part of what it reads warms it
up and is not counted.
"""

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from connectors.log.kafka import KafkaLog
from schemas.codec import PACKAGED
from schemas.records import NodeTelemetry
from schemas.topics import TopicSpec

HERE: Final = Path(__file__).parent
CLASSES: Final = HERE.parents[1] / "var" / "peers"
# Kafka Streams reads all samples, Faust as many as it gets through in this time.
STREAMS_S: Final = 300.0
FAUST_S: Final = 25.0
CHANGES: Final = "peer-changes"


def others(bootstrap: str, samples: int) -> dict[str, float]:
    """`kafka_streams_per_s`, whose store survives a restart as observe's state does, `kafka_streams_forgetful_per_s`, whose store
    has no changelog and does not, and `faust_per_s`; of `samples` that are in the topic."""
    log = KafkaLog(bootstrap, prefix="")
    log.provision([TopicSpec(CHANGES, (), "node", 4, "delete", -1, (), (), "What the peers tell")], dry_run=False)
    log.close()
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "sample.avsc"
        schema.write_text(_plain(PACKAGED.writer(PACKAGED.newest(NodeTelemetry)).avsc))
        java = ["java", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", _classpath()]

        def streams(store: str) -> float:
            command = [*java, "ObserveStreams", bootstrap, str(schema), str(samples), store]
            return _rate(command, {}, samples, STREAMS_S, Path(folder))

        faust = [sys.executable, str(HERE / "faust_agent.py"), "worker", "-l", "error", "--without-web"]
        env = {"PEER_BOOTSTRAP": bootstrap, "PEER_SCHEMA": str(schema)}
        return {
            "kafka_streams_per_s": streams("changelog"),
            "kafka_streams_forgetful_per_s": streams("none"),
            "faust_per_s": _rate(faust, env, samples, FAUST_S, Path(folder)),
        }


def _plain(avsc: str) -> str:
    """The schema without its `lockstep` namespace's docs: both readers want a file of their own."""
    return json.dumps(json.loads(avsc))


def _classpath() -> str:
    """Jars and class, made once."""
    source, made = HERE / "ObserveStreams.java", CLASSES / "ObserveStreams.class"
    if not made.is_file() or made.stat().st_mtime < source.stat().st_mtime:
        CLASSES.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "pom.xml", CLASSES / "pom.xml")
        copy = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(CLASSES / "pom.xml"),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={CLASSES / 'libs'}",
        ]
        subprocess.run(copy, check=True)
        subprocess.run(["javac", "-cp", f"{CLASSES / 'libs'}/*", "-d", str(CLASSES), str(source)], check=True)
    return f"{CLASSES}:{CLASSES / 'libs'}/*"


def _rate(command: Sequence[str], env: Mapping[str, str], samples: int, limit_s: float, folder: Path) -> float:
    """Samples a second, by what it said it had seen."""
    said: list[tuple[int, float]] = []

    def listen(out: IO[str]) -> None:
        for line in out:
            words = line.split()
            if len(words) == 2 and words[0].isdigit():
                said.append((int(words[0]), float(words[1])))

    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            list(command),
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
        )
        assert process.stdout is not None
        listener = threading.Thread(target=listen, args=(process.stdout,), daemon=True)
        listener.start()
        end = time.monotonic() + limit_s
        try:
            while time.monotonic() < end and process.poll() is None and not (said and said[-1][0] >= samples):
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
            listener.join(5)
        if len(said) < 2:
            errors.seek(0)
            raise RuntimeError(f"{command[0]} said nothing of use: {errors.read()[-1500:]}")
    return _median_rate(said)


def _median_rate(said: Sequence[tuple[int, float]]) -> float:
    """Of six equal parts of what was read, the median rate of the last five: as observe's own is taken."""
    most = said[-1][0]
    marks = [next(s for s in said if s[0] >= most * part / 6) for part in range(1, 7)]
    rates = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(marks) if b[0] > a[0]]
    return statistics.median(rates or [(said[-1][0] - said[0][0]) / (said[-1][1] - said[0][1])])
