"""Snapshots in a folder, stored by a child process while the caller goes on: whole or not at all, whatever becomes of the child."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors import snapshots as under_test
from connectors.log.memory import MemoryLog
from connectors.snapshots import FolderSnapshots
from schemas.errors import StorageFull
from schemas.snapshots import Stored
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.engine import snapshot
from streams.replay import restore_state
from streams.runner import ProcessorWorker
from tests.streams.facts import changed, drive, job, write


def until_finished(store: FolderSnapshots) -> None:
    deadline = time.monotonic() + 20
    while not store.finished():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gate:
    """Holds a child back until `open`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def then(self, make: Callable[[], Stored]) -> Callable[[], Stored]:
        def wait() -> Stored:
            os.read(self._read, 1)
            return make()

        return wait

    def open(self) -> None:
        os.write(self._write, b"!")

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


def test_it_is_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    store, gate, state = FolderSnapshots(tmp_path, fork=True), Gate(), ["then"]
    begun = time.monotonic()
    store.save_beside(gate.then(lambda: Stored(1, 7, state[0].encode())))
    assert time.monotonic() - begun < 5
    state[0] = "now"
    assert not store.finished()
    assert list(store.newest_first()) == []
    gate.open()
    until_finished(store)
    assert list(store.newest_first()) == [Stored(1, 7, b"then")]


def test_a_child_that_cannot_write_says_why_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = FolderSnapshots(tmp_path / "file" / "snapshots", fork=True)
    store.save_beside(lambda: Stored(1, 0, b"x"))
    with pytest.raises(StorageFull, match="Not a directory"):
        until_finished(store)
    assert store.finished()


def test_a_child_with_a_mistake_in_it_is_told(tmp_path: Path) -> None:
    store = FolderSnapshots(tmp_path, fork=True)
    store.save_beside(lambda: Stored(1, 0, b"x" * (1 // 0)))
    with pytest.raises(StorageFull, match="failed"):
        until_finished(store)


def test_a_killed_child_leaves_what_was_there(tmp_path: Path) -> None:
    store, gate = FolderSnapshots(tmp_path, fork=True), Gate()
    store.save(Stored(1, 0, b"before"))
    store.save_beside(gate.then(lambda: Stored(2, 0, b"never")))
    (tmp_path / "snapshot-00000000000000000002.1.tmp").write_bytes(b"half")
    os.kill(store._child, signal.SIGKILL)
    with pytest.raises(StorageFull, match="signal 9"):
        until_finished(store)
    assert list(store.newest_first()) == [Stored(1, 0, b"before")]
    store.save(Stored(3, 0, b"after"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"snapshot-{n:020}.bin" for n in (1, 3)]


def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "LATE_S", 0.0)
    store, gate = FolderSnapshots(tmp_path, fork=True), Gate()
    store.save_beside(gate.then(lambda: Stored(1, 0, b"x")))
    with pytest.raises(StorageFull, match="signal 9"):
        until_finished(store)


def test_the_engine_goes_on_from_it(tmp_path: Path) -> None:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    store = FolderSnapshots(tmp_path, fork=True)
    worker = ProcessorWorker(log, lambda: Decide("default", store, version="test", snapshot_every=20))
    write(log, [changed(f"n{i}") for i in range(4)])
    for k in range(30):
        write(log, [job(f"j{k}", cards_milli=100)])
        drive(worker)
        time.sleep(0.01)
    until_finished(store)
    assert isinstance(worker.processor, Decide)
    # Not one that was made after the very last entry: there would be nothing to go on with.
    while next(store.newest_first()).seq >= worker.processor.state.seq:
        write(log, [job(f"more-{worker.processor.state.seq}", cards_milli=100)])
        drive(worker)
        until_finished(store)
    found = [s.seq for s in store.newest_first()]
    assert len(found) >= 2
    restored = restore_state(log, "default", 0, store)
    assert restored.snapshot_seq == found[0] < worker.processor.state.seq
    assert snapshot(restored.state) == snapshot(worker.processor.state)
