"""Decide: inputs in, ledger and commands out, restored from snapshot and ledger, one writer for each domain."""

import logging
from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from connectors.snapshots import FolderSnapshots
from schemas.errors import Corrupted, Fenced, Refused
from schemas.log import Log
from schemas.messages import Record
from schemas.records import Command, EngineStarted, JobAccepted, JobCancelled, JobEnded, JobPlaced, LedgerEntry, Row
from schemas.snapshots import Stored
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.engine import snapshot
from streams.replay import check_domain, restore_state
from streams.runner import ProcessorWorker
from tests.streams.conftest import Home
from tests.streams.facts import DAY_MS, NOW, YEAR_2087_MS, changed, drive, job, read, receipt, write


def engine(log: Log, folder: Path, every: int = 1_000_000) -> ProcessorWorker:
    return ProcessorWorker(
        log, lambda: Decide("default", FolderSnapshots(folder), version="test", snapshot_every=every)
    )


def ledger(log: Log) -> list[LedgerEntry]:
    return [e for e in read(log, "ledger") if isinstance(e, LedgerEntry)]


def names(rows: list[LedgerEntry]) -> list[str]:
    return [type(e).__name__ for e in rows]


def dense(log: Log) -> bool:
    return [e.seq for e in ledger(log)] == list(range(1, len(ledger(log)) + 1))


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    return log


def state_bytes(worker: ProcessorWorker) -> bytes:
    assert isinstance(worker.processor, Decide)
    return snapshot(worker.processor.state)


def test_a_job_from_submission_to_its_end(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    # In one poll, the job written first: changes go before jobs all the same.
    write(log, [job("j1", members=2), changed("n1")])
    drive(worker)
    assert names(ledger(log)) == ["EngineStarted", "NodeRecorded", "JobAccepted", "JobPlaced"]
    (start,) = [c for c in read(log, "commands") if isinstance(c, Command)]
    assert (start.kind, start.job, start.node, start.members, start.card_mask.bit_count()) == (
        "start",
        "j1",
        "n1",
        2,
        2,
    )
    write(log, [receipt("j1", "n1", "started"), receipt("j1", "n1", "finished")])
    drive(worker, NOW + 5_000)
    assert names(ledger(log))[-1] == "JobEnded"
    assert [c.kind for c in read(log, "commands") if isinstance(c, Command)].count("release") == 1
    assert dense(log)


def test_the_source_of_an_entry_is_the_position_of_its_input(log: MemoryLog, tmp_path: Path) -> None:
    write(log, [job("j1")])
    drive(engine(log, tmp_path))
    (entry,) = [e for e in ledger(log) if isinstance(e, JobAccepted)]
    (partition,) = [p for p, s in log.span("jobs").items() if s.end]
    assert entry.source == f"jobs/{partition}@0"


def test_time_passes_without_messages(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    write(log, [changed("n1"), job("j1")])
    drive(worker)
    wake = worker.next_wake()
    assert wake is not None  # the start receipt is due
    assert worker.step(wake - 1, 0) == 0
    assert worker.step(wake, 0) > 0
    assert "JobInterrupted" in names(ledger(log))


def test_a_restart_goes_on_where_it_was(log: MemoryLog, tmp_path: Path) -> None:
    first = engine(log, tmp_path)
    write(log, [changed("n1"), job("j1"), job("j2")])
    drive(first)
    first.close(1_000)
    seq = len(ledger(log))
    second = engine(log, tmp_path)
    write(log, [job("j3")])
    drive(second)
    started = ledger(log)[seq]
    assert isinstance(started, EngineStarted)
    assert started.snapshot_seq == seq  # closing in good order stored a snapshot of everything
    assert names(ledger(log)[seq + 1 :]) == ["JobAccepted", "JobPlaced"]
    assert dense(log)


def test_the_ledger_alone_gives_the_same_bytes(log: MemoryLog, tmp_path: Path) -> None:
    """Bad day 6: the live engine, its ledger replayed from nothing, and snapshot + rest are one state, byte for byte."""
    worker = engine(log, tmp_path / "a", every=7)
    write(log, [changed(f"n{i}") for i in range(6)])
    for k in range(12):
        write(log, [job(f"j{k}", members=1 + k % 3, cards_milli=500 if k % 2 else 2000)])
        drive(worker, NOW + k * 1_000)
        if k > 3:
            done = f"j{k - 3}"
            nodes = [c.node for c in read(log, "commands") if isinstance(c, Command) and c.job == done]
            write(log, [receipt(done, n, kind) for n in nodes for kind in ("started", "finished")])
    drive(worker, NOW + 20_000)
    live = state_bytes(worker)
    from_nothing = restore_state(log.open_again(), "default", 0, FolderSnapshots(tmp_path / "none"))
    from_snapshot = restore_state(log.open_again(), "default", 0, FolderSnapshots(tmp_path / "a"))
    assert from_nothing.snapshot_seq == 0
    assert from_snapshot.snapshot_seq > 0
    assert snapshot(from_nothing.state) == live
    assert snapshot(from_snapshot.state) == live
    assert from_nothing.position == from_snapshot.position == log.span("ledger")[0].end


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    log: MemoryLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    worker = engine(log, tmp_path, every=1)
    for k in range(5):
        write(log, [job(f"j{k}")])
        drive(worker)
    files = sorted(tmp_path.glob("snapshot-*.bin"))
    assert len(files) == 3  # the newest three stay
    good = files[-1].read_bytes()
    files[-1].write_bytes(
        {"flip": good[:-9] + bytes([good[-9] ^ 1]) + good[-8:], "cut": good[:-20], "empty": b"", "foreign": b"x" * 200}[damage]
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        restored = restore_state(log, "default", 0, FolderSnapshots(tmp_path))
    assert restored.snapshot_seq == int(files[-2].stem.split("-")[1])
    assert snapshot(restored.state) == state_bytes(worker)
    assert caplog.records


def test_a_snapshot_ahead_of_the_ledger_is_passed_over(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    write(log, [job("j1")])
    drive(worker)
    store = FolderSnapshots(tmp_path)
    store.save(Stored(99, log.span("ledger")[0].end + 5, state_bytes(worker)))
    assert restore_state(log, "default", 0, store).snapshot_seq == 0


def test_a_snapshot_of_a_ledger_that_went_on_longer_is_passed_over(log: MemoryLog, tmp_path: Path) -> None:
    """An older copy of the log was put beside newer snapshots: the future they know never happened there."""
    worker = engine(log, tmp_path)
    write(log, [job("j1")])
    drive(worker)
    state = restore_state(log, "default", 0, FolderSnapshots(tmp_path / "none")).state
    store = FolderSnapshots(tmp_path)
    state.seq += 10
    store.save(Stored(state.seq, 0, snapshot(state)))
    restored = restore_state(log, "default", 0, store)
    assert (restored.snapshot_seq, restored.state.seq) == (0, state.seq - 10)


def test_no_room_for_snapshots_stops_nothing(log: MemoryLog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    worker = engine(log, in_the_way, every=1)
    write(log, [job("j1")])
    drive(worker)
    worker.close(1_000)
    assert "JobAccepted" in names(ledger(log))
    assert "no snapshot of seq" in caplog.text


def test_the_rhythm_of_snapshots(log: MemoryLog, tmp_path: Path) -> None:
    """By count of entries; by age only when there is more than a few to replay."""
    worker = engine(log, tmp_path, every=5)
    write(log, [job("j1")])
    drive(worker, NOW)  # EngineStarted, JobAccepted, JobPending: 3 entries
    assert not list(tmp_path.glob("*"))
    write(log, [job("j2"), job("j3")])
    drive(worker, NOW + DAY_MS)
    assert len(list(tmp_path.glob("snapshot-*.bin"))) == 1
    assert not list(tmp_path.glob("*.tmp"))


def test_a_snapshot_of_another_domain_is_passed_over(log: MemoryLog, tmp_path: Path) -> None:
    store = FolderSnapshots(tmp_path)
    worker = engine(log, tmp_path)
    write(log, [job("j1")])
    drive(worker)
    store.save(Stored(2, 0, state_bytes(worker)))
    other = MemoryLog()
    other.provision(TOPICS, dry_run=False)
    assert restore_state(other, "elsewhere", 0, store).state.seq == 0


def test_a_ledger_that_is_damaged_is_refused(log: MemoryLog, tmp_path: Path) -> None:
    write(log, [changed("n1")])
    drive(engine(log, tmp_path))
    appender = log.appender("vandal")
    appender.send(Record("ledger", b"default", b"not an entry", 0))
    appender.flush(1_000)
    with pytest.raises(Corrupted):
        restore_state(log, "default", 0, FolderSnapshots(tmp_path / "none"))


def test_the_ledger_of_another_domain_is_refused(home: Home, tmp_path: Path) -> None:
    """Not damage: a setting is wrong, and the sentence says which. Nothing is written, whatever lies in the snapshots' folder."""
    log = home.open()
    write(log, [changed("n1"), job("j1")])
    first = engine(log, tmp_path)
    drive(first, wait_ms=home.wait_ms)
    first.close(1_000)
    assert list(tmp_path.glob("snapshot-*.bin"))
    end = log.span("ledger")[0].end
    other = ProcessorWorker(log, lambda: Decide("elsewhere", FolderSnapshots(tmp_path), version="test"))
    told = r"^ledger/0@0: this ledger belongs to domain 'default', .* LOCKSTEP_DOMAIN=default, .* domain 'elsewhere' .* LOCKSTEP_TOPIC_PREFIX$"
    with pytest.raises(Refused, match=told):
        drive(other, wait_ms=home.wait_ms)
    assert log.span("ledger")[0].end == end
    check_domain(log, "default", 0)


def test_two_engines_on_one_domain(home: Home, tmp_path: Path) -> None:
    """Bad day 2: the older one is fenced before it can write; its uncommitted work never happened."""
    older_log, newer_log = home.open(), home.open()
    older = engine(older_log, tmp_path / "older")
    write(older_log, [changed("n1"), job("j1")])
    drive(older, wait_ms=home.wait_ms)
    newer = engine(newer_log, tmp_path / "newer")
    drive(newer, wait_ms=home.wait_ms)  # it has joined: from here on the older one must not write
    write(newer_log, [job("j2")])
    with pytest.raises(Fenced):
        drive(older, wait_ms=home.wait_ms)
    drive(newer, wait_ms=home.wait_ms)
    entries = ledger(newer_log)
    assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
    accepted = [e.job for e in entries if isinstance(e, JobAccepted)]
    assert sorted(accepted) == ["j1", "j2"]
    assert sum(isinstance(e, JobPlaced) for e in entries) == 2


# --- bad day 5: doubles, disorder, the year 2087, a clock that goes back -----------------------------------------------


def test_doubled_inputs_enter_the_ledger_once(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    inputs: list[Row] = [changed("n1"), job("j1")]
    write(log, inputs + inputs)
    drive(worker)
    write(log, [receipt("j1", "n1", k) for k in ("started", "started", "finished", "finished", "started")])
    drive(worker)
    write(log, [receipt("j1", "n1", "released")] * 2 + inputs)
    drive(worker)
    found = names(ledger(log))
    for kind in ("NodeRecorded", "JobAccepted", "JobPlaced", "JobStarted", "JobEnded"):
        assert found.count(kind) == 1, kind
    assert found.count("ReceiptRecorded") == 3


def test_news_in_any_order_ends_well(log: MemoryLog, tmp_path: Path) -> None:
    """A finish before its start, a cancellation before its job: nothing breaks, the job ends once."""
    worker = engine(log, tmp_path)
    write(log, [JobCancelled("j2", NOW, "default", "ada", ""), changed("n1"), job("j1"), job("j2")])
    drive(worker)
    write(log, [receipt("j1", "n1", "finished"), receipt("j1", "n1", "started")])
    drive(worker)
    assert [e.job for e in ledger(log) if isinstance(e, JobEnded)].count("j1") == 1
    assert dense(log)


def test_an_event_from_the_year_2087(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    write(log, [job("late", at=YEAR_2087_MS), job("ok"), job("tomorrow", at=NOW + DAY_MS)])
    drive(worker)
    assert sorted(e.job for e in ledger(log) if isinstance(e, JobAccepted)) == ["ok", "tomorrow"]
    (letter,) = read(log, "dead-letter")
    assert (letter.code, letter.stage, letter.key) == ("from_the_future", "decide", b"late")  # type: ignore[union-attr]


def test_a_clock_that_goes_back_never_takes_the_ledger_with_it(log: MemoryLog, tmp_path: Path) -> None:
    worker = engine(log, tmp_path)
    write(log, [changed("n1"), job("j1")])
    drive(worker, NOW)
    write(log, [job("j2")])
    drive(worker, NOW - 3_600_000)
    worker.close(1_000)
    write(log, [job("j3")])
    drive(engine(log, tmp_path), NOW - 7_200_000)
    times = [e.at for e in ledger(log)]
    assert times == sorted(times)
    assert sorted(e.job for e in ledger(log) if isinstance(e, JobAccepted)) == ["j1", "j2", "j3"]
