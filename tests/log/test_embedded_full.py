"""The disk is full under the embedded log: nothing of the failed commit happened, and with room again all goes on."""

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.log.embedded import FILE_NAME, EmbeddedLog
from schemas.errors import StorageFull
from schemas.log import Member
from schemas.messages import Committed, Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec
from tests.log.forked import forked, limit_file_size
from tests.log.home import Ears, values

LEDGER = TopicSpec("ledger", (JobSubmitted,), "job", 1, "delete", -1, (), (), "A test")
TP = TopicPartition("ledger", 0)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC_PRIVATE = 0x4000 | 0x40000


def _member(log: EmbeddedLog) -> Member:
    return log.member("g", ["ledger"], Ears(), owner="slot", assign_all=True)


def _commit(member: Member, i: int) -> None:
    member.commit(
        {TP: Committed(i, f"note {i}")},
        [Record("ledger", b"k", b"%d" % i, 0), Record("ledger", b"k", bytes(50_000), 0)],
    )


def _commits_until_full(member: Member, start: int = 0) -> int:
    """The number of the commit that raised; those before it from `start` on succeeded."""
    for i in range(start, start + 10_000):
        try:
            _commit(member, i)
        except StorageFull as e:
            if "no room left" in str(e) and "nothing of this commit was written" in str(e):
                return i
            raise
    raise AssertionError("it never became full")


def _check(log: EmbeddedLog, count: int) -> None:
    """Exactly `count` commits are there, positions and records alike."""
    reader = log.reader({TP: 0})
    found: list[bytes | None] = []
    while blocks := reader.poll(1_000, 0):
        found += values(blocks)
    assert found[::2] == [b"%d" % i for i in range(count)]
    assert len(found) == 2 * count
    assert log.committed("g", [TP]) == {TP: Committed(count - 1, f"note {count - 1}")}


def _new(folder: Path) -> EmbeddedLog:
    log = EmbeddedLog(folder, upkeep_every_ms=0)
    log.provision([LEDGER], dry_run=False)
    return log


def test_the_file_has_reached_its_bound(tmp_path: Path) -> None:
    _new(tmp_path).close()
    log = EmbeddedLog(tmp_path, max_pages=300, upkeep_every_ms=0)
    member = _member(log)
    count = _commits_until_full(member)
    assert count > 5
    _check(log, count)
    with pytest.raises(StorageFull):  # it stays full, and says so each time
        _commit(member, count)
    appender = log.appender("a")
    appender.send(Record("ledger", b"k", bytes(100_000), 0))
    with pytest.raises(StorageFull):
        appender.flush(1_000)
    _check(log, count)
    log.close()
    roomier = EmbeddedLog(tmp_path, upkeep_every_ms=0)
    _commit(_member(roomier), count)
    _check(roomier, count + 1)
    roomier.close()


def test_writes_fail_in_the_middle(tmp_path: Path) -> None:
    _new(tmp_path).close()

    def work(say: Callable[[str], None]) -> None:
        log = EmbeddedLog(tmp_path, upkeep_every_ms=0)
        member = _member(log)
        _commit(member, 0)
        limit_file_size((tmp_path / f"{FILE_NAME}-wal").stat().st_size + 300_001, deadly=False)
        # No check in this process: it may not write, and the next one must find all in order.
        say(str(_commits_until_full(member, 1)))

    child = forked(work)
    assert child.code == 0, child.said
    count = int(child.said)
    assert count > 3
    log = EmbeddedLog(tmp_path, upkeep_every_ms=0)
    _check(log, count)
    _commit(_member(log), count)
    _check(log, count + 1)
    log.close()


def _own_mounts() -> str | None:
    """Give this (forked) process mounts of its own; the reason if it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER):
        return f"no mounts of one's own here: {os.strerror(ctypes.get_errno())}"
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
        return f"mounts cannot be made private: {os.strerror(ctypes.get_errno())}"
    return None


def _small_disk(at: Path, size: int) -> str | None:
    at.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(at).encode(), b"tmpfs", 0, f"size={size}".encode()):
        return f"no small disk here: {os.strerror(ctypes.get_errno())}"
    return None


def small_disk_fills_up(disk: Path) -> None:
    """Run in a process of its own, started afresh: it reads too, and a forked child of a test process that has Kafka's client, polars
    and chDB in it crashed there."""
    reason = _own_mounts() or _small_disk(disk, 4 << 20)
    if reason:
        print(f"SKIP {reason}")
        return
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    log = _new(disk)
    member = _member(log)
    count = _commits_until_full(member)
    assert count > 5
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize < 200_000
    _check(log, count)
    ballast.unlink()
    _commit(member, count)  # the same member, the same log: there is room again
    _check(log, count + 1)
    log.close()
    again = EmbeddedLog(disk, upkeep_every_ms=0)
    _check(again, count + 1)
    again.close()
    print("done")


def test_a_real_disk_without_room(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.log.test_embedded_full import small_disk_fills_up; "
        "small_disk_fills_up(Path(sys.argv[1]))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "disk")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = done.stdout.strip()
    if said.startswith("SKIP"):
        # Nothing that could be installed gives an unprivileged container mounts of its own.
        if os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1" and os.strerror(errno.EPERM) not in said:
            pytest.fail(said)
        pytest.skip(said[5:])
    assert (done.returncode, said) == (0, "done"), done.stderr
