"""Several processes on one embedded log: they wake each other, share groups, and take over from the dead."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from connectors.log.embedded import EmbeddedLog
from schemas.errors import Fatal
from schemas.log import Log
from schemas.messages import Committed, Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec
from tests.log.home import Ears, values, write

SPEC = TopicSpec("t", (JobSubmitted,), "job", 4, "delete", -1, (), (), "A test")
ALL = {TopicPartition("t", p) for p in range(4)}

_APPEND = """
import sys; from pathlib import Path
from connectors.log.embedded import EmbeddedLog
from schemas.messages import Record
log = EmbeddedLog(Path(sys.argv[1]))
name, count = sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
for i in range(count):
    appender = log.appender("a")
    appender.send(Record("t", b"k", f"{name}-{i}".encode(), 0))
    appender.flush(10_000)
log.close()
"""

_MEMBER = """
import sys; from pathlib import Path
from connectors.log.embedded import EmbeddedLog
from schemas.messages import Record
class Ears:
    def assigned(self, committed): return {}
    def revoked(self, partitions, *, lost): pass
log = EmbeddedLog(Path(sys.argv[1]))
member = log.member("g", ["t"], Ears())
told = frozenset()
while True:
    member.poll(100, 50)
    if member.assignment() != told:
        told = member.assignment()
        print(len(told), flush=True)
"""

_CREATE = """
import sys; from pathlib import Path
from connectors.log.embedded import EmbeddedLog
from tests.log.test_embedded_processes import SPEC
sys.stdin.readline()
log = EmbeddedLog(Path(sys.argv[1]))
print([s.action for s in log.provision([SPEC], dry_run=False)])
log.close()
"""


def _process(script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _finish(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = EmbeddedLog(tmp_path)
    log.provision([SPEC], dry_run=False)
    log.close()
    return tmp_path


def _go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_append_at_once_and_readers_see_all(folder: Path) -> None:
    log = EmbeddedLog(folder)
    writers = [_process(_APPEND, str(folder), name, "50") for name in ("a", "b")]
    for process in writers:
        _go(process)
    reader = log.reader({TopicPartition("t", 0): 0})
    found: list[bytes | None] = []
    offsets: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < 100 and time.monotonic() < deadline:
        for block in reader.poll(1_000, 500):
            found += block.values
            offsets += block.offsets
    for process in writers:
        _finish(process)
    assert offsets == list(range(100))
    for name in ("a", "b"):
        assert [v for v in found if v and v.startswith(name.encode())] == [
            b"%s-%d" % (name.encode(), i) for i in range(50)
        ]
    log.close()


def test_another_process_wakes_a_waiting_poll(folder: Path) -> None:
    log = EmbeddedLog(folder)
    process = _process(_APPEND, str(folder), "x", "1")
    threading.Timer(0.2, lambda: _go(process)).start()
    start = time.monotonic()
    blocks = log.reader({TopicPartition("t", 0): 0}).poll(1_000, 50_000)
    assert values(blocks) == [b"x-0"]
    assert time.monotonic() - start < 30  # far from the 50 s it may wait
    age_ms = time.time_ns() // 1_000_000 - blocks[0].oldest_ms
    assert age_ms < 1_000
    _finish(process)
    log.close()


def test_a_killed_process_gives_its_partitions_to_the_others_at_once(folder: Path) -> None:
    log = EmbeddedLog(folder)  # with the session of five minutes: it must not be waited for
    process = _process(_MEMBER, str(folder))
    try:
        assert process.stdout
        assert process.stdout.readline() == "4\n"
        member = log.member("g", ["t"], Ears())
        deadline = time.monotonic() + 30
        while len(member.assignment()) < 2 and time.monotonic() < deadline:
            member.poll(1, 50)
        assert process.stdout.readline() == "2\n"
        assert len(member.assignment()) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        killed = time.monotonic()
        while member.assignment() != ALL and time.monotonic() < killed + 30:
            member.poll(1, 50)
        assert member.assignment() == ALL
        assert time.monotonic() - killed < 5
        member.commit({tp: Committed(1) for tp in ALL})
        member.close(1_000)
    finally:
        process.kill()
        process.communicate()
    log.close()


def test_processes_may_create_the_log_at_once(tmp_path: Path) -> None:
    makers = [_process(_CREATE, str(tmp_path / "new" / "folder")) for _ in range(3)]
    for process in makers:
        _go(process)
    assert sorted(_finish(p).strip() for p in makers) == ["['create']", "['keep']", "['keep']"]


def test_upkeep_runs_by_itself_while_a_log_is_open(folder: Path) -> None:
    log = EmbeddedLog(folder, upkeep_every_ms=50)
    for i in range(40):
        write(log, [Record("t", b"k", b"%d" % i, 0)])
    deadline = time.monotonic() + 30
    blocks = log.reader({TopicPartition("t", 0): 0}).poll(1_000, 0)
    while len(blocks) > 20 and time.monotonic() < deadline:
        blocks = log.reader({TopicPartition("t", 0): 0}).poll(1_000, 0)
    assert len(blocks) <= 20  # small batches were joined, some 16 at a time
    assert values(blocks) == [b"%d" % i for i in range(40)]
    log.close()


def test_closing_while_others_still_use_it_is_an_error_for_them_not_a_crash(folder: Path) -> None:
    log = EmbeddedLog(folder)
    ended: list[BaseException] = []

    def use(log: Log) -> None:
        reader = log.reader({TopicPartition("t", 0): 0})
        try:
            while True:
                reader.poll(1_000, 1_000)
        except Fatal as e:
            ended.append(e)

    threads = [threading.Thread(target=use, args=(log,)) for _ in range(3)]
    for t in threads:
        t.start()
    write(log, [Record("t", b"k", b"v", 0)])
    log.close()
    for t in threads:
        t.join(10)
    assert [str(e) for e in ended] == [f"the log at {folder / 'log.sqlite'} is closed"] * 3
    log.close()  # once more does nothing
