"""`kill -9` at every step of a commit on the embedded log: all of it or nothing, and the next owner goes on.

A forked process commits and is killed at its k-th SQL statement, or when its k-th byte reaches the disk (a file size limit
whose signal is deadly: torn pages included), until a k is reached at which it survives.
"""

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.log.embedded import FILE_NAME, EmbeddedLog
from schemas.messages import Committed, Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec
from tests.log.forked import Child, forked, limit_file_size
from tests.log.home import Ears

SOURCE, LEDGER, COMMANDS = (
    TopicSpec(name, (JobSubmitted,), "job", partitions, "delete", -1, (), (), "A test")
    for name, partitions in (("source", 2), ("ledger", 1), ("commands", 3))
)
POSITIONS = {TopicPartition("source", p): Committed(100 + p, f"note {p}") for p in range(2)}
# Enough for several pages in each of four partitions.
RECORDS = [Record("ledger", b"d", b"%d" % i + bytes(90), 0) for i in range(150)] + [
    Record("commands", b"n%d" % i, b"%d" % i + bytes(90), i % 3) for i in range(150)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = _open(tmp_path)
    log.provision([SOURCE, LEDGER, COMMANDS], dry_run=False)
    log.close()
    return tmp_path


def _open(folder: Path) -> EmbeddedLog:
    return EmbeddedLog(folder, upkeep_every_ms=0)


def _counts(log: EmbeddedLog) -> tuple[int, int, dict[TopicPartition, Committed | None]]:
    found = []
    for spec in (LEDGER, COMMANDS):
        reader = log.reader({TopicPartition(spec.name, p): 0 for p in range(spec.partitions)})
        found.append(sum(len(b) for b in reader.poll(10_000, 0)))
    return found[0], found[1], log.committed("g", list(POSITIONS))


def _check(folder: Path, child: Child) -> bool:
    """Open after the death; True when the commit happened, False when it did not. Anything between fails."""
    connection = sqlite3.connect(folder / FILE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    log = _open(folder)
    counts = _counts(log)
    nothing = (1, 0, dict.fromkeys(POSITIONS))
    everything = (1 + 150, 150, POSITIONS)
    assert counts in (nothing, everything)
    happened = counts == everything
    if "committed" in child.said:
        assert happened, "the commit returned, so it must have survived"
    if not happened:
        # The next owner is not in its way, and does it again from the same positions.
        member = log.member("g", ["source"], Ears(), owner="slot", assign_all=True)
        member.commit(POSITIONS, RECORDS)
        assert _counts(log) == everything
    log.close()
    return happened


def _commit(folder: Path, arm: Callable[[EmbeddedLog], None]) -> Callable[[Callable[[str], None]], None]:
    def work(say: Callable[[str], None]) -> None:
        log = _open(folder)
        member = log.member("g", ["source"], Ears(), owner="slot", assign_all=True)
        member.commit({}, [Record("ledger", b"d", bytes(200_000), 0)])  # the files have their size from here on
        arm(log)
        member.commit(POSITIONS, RECORDS)
        say("committed")
        os.kill(os.getpid(), signal.SIGKILL)  # no orderly close, whatever happened

    return work


def test_killed_at_every_statement(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clean = (folder / FILE_NAME).read_bytes()
    outcomes = []
    for k in range(1, 200):
        place = tmp_path_factory.mktemp("killed")
        (place / FILE_NAME).write_bytes(clean)
        left = k

        def on_statement(_: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def arm(log: EmbeddedLog) -> None:
            with log._store.read() as c:
                pass
            c.set_trace_callback(on_statement)

        child = forked(_commit(place, arm))
        assert child.signal == signal.SIGKILL, child.said
        outcomes.append(_check(place, child))
        if "committed" in child.said:
            break
    assert len(outcomes) > 10  # every step was one
    assert outcomes == [False] * (len(outcomes) - 1) + [True]


def test_killed_while_bytes_reach_the_disk(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clean = (folder / FILE_NAME).read_bytes()
    outcomes = []
    for size in range(0, 200_000, 5_003):  # not a multiple of a page: pages are torn as well
        place = tmp_path_factory.mktemp("killed")
        (place / FILE_NAME).write_bytes(clean)

        def arm(log: EmbeddedLog, place: Path = place, size: int = size) -> None:
            wal = (place / f"{FILE_NAME}-wal").stat().st_size
            limit_file_size(wal + size, deadly=True)

        child = forked(_commit(place, arm))
        assert child.signal in (signal.SIGKILL, signal.SIGXFSZ), child.said
        outcomes.append(_check(place, child))
        if "committed" in child.said:
            break
    assert len(outcomes) > 5
    assert outcomes == [False] * (len(outcomes) - 1) + [True]


def test_killed_while_the_write_ahead_file_is_emptied(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clean = (folder / FILE_NAME).read_bytes()
    killed = 0
    for size in range(0, 1_000_000, 30_011):
        place = tmp_path_factory.mktemp("killed")
        (place / FILE_NAME).write_bytes(clean)

        def work(say: Callable[[str], None], place: Path = place, size: int = size) -> None:
            log = _open(place)
            member = log.member("g", ["source"], Ears(), owner="slot", assign_all=True)
            member.commit({}, [Record("ledger", b"d", bytes(200_000), 0)])
            member.commit(POSITIONS, RECORDS)
            say("committed")
            limit_file_size((place / FILE_NAME).stat().st_size + size, deadly=True)
            log._store.checkpoint()
            say(" emptied")

        child = forked(work)
        assert _check(place, child)
        killed += child.signal == signal.SIGXFSZ
        if "emptied" in child.said:
            break
    assert killed > 3


def test_an_append_that_is_killed_is_all_or_nothing_too(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    clean = (folder / FILE_NAME).read_bytes()
    seen = set()
    for size in (0, 3_000, 40_000, 200_000):
        place = tmp_path_factory.mktemp("killed")
        (place / FILE_NAME).write_bytes(clean)

        def work(say: Callable[[str], None], place: Path = place, size: int = size) -> None:
            log = _open(place)
            big = log.appender("a")
            big.send(Record("ledger", b"d", bytes(200_000), 0))
            big.flush(1_000)
            limit_file_size((place / f"{FILE_NAME}-wal").stat().st_size + size, deadly=True)
            for record in RECORDS:
                big.send(record)
            big.flush(1_000)
            say("committed")
            os.kill(os.getpid(), signal.SIGKILL)

        child = forked(work)
        log = _open(place)
        counts = _counts(log)[:2]
        log.close()
        assert counts == ((151, 150) if "committed" in child.said else (1, 0))
        seen.add(counts)
    assert len(seen) == 2
