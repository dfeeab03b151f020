"""The runner: its policy for each branch of the error tree, health, metrics, and one deadline for a shutdown."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from connectors.log.memory import MemoryLog
from schemas.committing import TRIES
from schemas.errors import Corrupted, Fenced, Refused, StorageFull, TransactionAborted, Transient
from schemas.health import Health
from schemas.log import Log
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.topics import TOPICS
from streams.clock import Deadline, ManualClock
from streams.metrics import METRICS, TABLE, Metrics
from streams.runner import Loop, ProcessorWorker
from tests.streams.facts import NOW, drive, job
from tests.streams.faulty import FaultyLog, scripted


class Copy:
    """Writes each message it reads to `receipts` with a running number that only a restore may set back."""

    name, group, topics, owner, assign_all, max_records = "copy", "copy", ("jobs",), "copy.0", False, 100

    def __init__(self) -> None:
        self.count = 0
        self.closed = 0
        self.fail_restore: Exception | None = None

    def assigned(self, log: Log, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        if self.fail_restore is not None:
            raise self.fail_restore
        self.count = sum(s.end for s in log.span("receipts").values())
        return {}

    def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...

    def started(self, now: int) -> list[Record]:
        return []

    def process(self, blocks: Sequence[Block], now: int, *, drained: bool) -> list[Record]:
        out = []
        for block in blocks:
            for value in block.values:
                self.count += 1
                out.append(Record("receipts", b"k", f"{self.count} ".encode() + (value or b""), 0))
        return out

    def tick(self, now: int) -> list[Record]:
        return []

    def committed(self) -> None: ...

    def closing(self) -> None:
        self.closed += 1

    def next_wake(self) -> int | None:
        return None


class Other(Copy):
    """The same group, another slot."""

    owner = "copy.1"


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    return log


def send(log: Log, *values: bytes) -> None:
    appender = log.appender("tests")
    for v in values:
        appender.send(Record("jobs", b"k", v, 0))
    appender.flush(1_000)


def copies(log: Log) -> list[bytes]:
    reader = log.reader({TopicPartition("receipts", 0): 0})
    found = [v for b in reader.poll(1_000, 0) for v in b.values if v is not None]
    reader.close()
    return found


def worker_on(log: Log, *faults: str) -> ProcessorWorker:
    return ProcessorWorker(FaultyLog(log, scripted(*faults)), Copy)


def test_a_transient_commit_is_tried_again_without_processing_again(log: MemoryLog) -> None:
    worker = worker_on(log, "away", "away")
    send(log, b"a")
    drive(worker, NOW)
    assert copies(log) == [b"1 a"]
    assert not any(n == "lockstep_restarts_total" for n, _ in worker.metrics.values)


def test_a_batch_that_the_log_does_not_take_is_held(log: MemoryLog) -> None:
    """Backpressure: nothing more is read while it waits, the member stays in its group, and nothing is processed twice."""
    worker = worker_on(log, *["away"] * (2 * TRIES))
    send(log, b"a")
    with pytest.raises(Transient):
        drive(worker, NOW)
    first, member = worker.processor, worker._member
    send(log, b"b")
    assert worker.health() == Health(True, False, "a batch waits for the log")
    with pytest.raises(Transient):
        worker.step(NOW, 0)
    assert worker.lag_records() == 1  # b
    assert worker.step(NOW, 0) == 2  # a, read and written
    assert worker.health().ready
    drive(worker, NOW)
    assert copies(log) == [b"1 a", b"2 b"]
    assert worker.processor is first
    assert worker._member is member
    assert not any(n == "lockstep_restarts_total" for n, _ in worker.metrics.values)


def test_a_held_batch_goes_with_its_partitions(log: MemoryLog) -> None:
    """Whoever has them now reads the messages again; the one that held them starts from what is committed."""
    away = True
    worker = ProcessorWorker(FaultyLog(log, lambda: "away" if away else ""), Copy)
    send(log, b"a")
    with pytest.raises(Transient):
        drive(worker, NOW)
    other = ProcessorWorker(log, Other)
    other.step(NOW, 0)  # joins, and asks for its share

    def held() -> None:
        while True:
            try:
                worker.step(NOW, 0)
            except TransactionAborted:
                raise
            except Transient:
                time.sleep(0.01)

    with pytest.raises(TransactionAborted, match="came or went"):
        held()
    away = False
    for _ in range(20):
        worker.step(NOW, 50)
        other.step(NOW, 50)
    assert copies(log) == [b"1 a"]


class Stumbles(Copy):
    """The log is away just after a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.stumbles = 1

    def committed(self) -> None:
        if self.stumbles:
            self.stumbles -= 1
            raise Transient("away after the commit", retry_after_ms=0)


def test_what_fails_after_a_commit_does_not_commit_it_again(log: MemoryLog) -> None:
    worker = ProcessorWorker(log, Stumbles)
    send(log, b"a")
    with pytest.raises(Transient):
        drive(worker, NOW)
    drive(worker, NOW)
    assert copies(log) == [b"1 a"]


def test_positions_of_quiet_partitions_are_committed_again(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka would forget them a week after their last commit."""
    worker = worker_on(log)
    send(log, b"a")
    drive(worker, NOW)
    quiet = TopicPartition("jobs", 0)
    told: list[Mapping[TopicPartition, Committed]] = []
    assert worker._member is not None
    inner = worker._member.commit

    def commit(positions: Mapping[TopicPartition, Committed], records: Sequence[Record] = ()) -> None:
        told.append(positions)
        inner(positions, records)

    monkeypatch.setattr(worker._member, "commit", commit)
    worker.step(NOW, 0)
    assert told == []
    worker._renew_at = 0.0  # hours later
    worker.step(NOW, 0)
    worker.step(NOW, 0)
    assert told == [{quiet: Committed(1)}]


def test_an_aborted_transaction_throws_the_state_away(log: MemoryLog) -> None:
    worker = worker_on(log, "", "aborted")
    send(log, b"a")
    drive(worker, NOW)
    first = worker.processor
    send(log, b"b")
    with pytest.raises(TransactionAborted):
        drive(worker, NOW)
    drive(worker, NOW)
    assert worker.processor is not first
    assert copies(log) == [b"1 a", b"2 b"]  # with the old state it would be 3
    assert worker.metrics.values["lockstep_restarts_total", ("copy", "uncommitted")] == 1


def test_a_restore_that_fails_starts_over(log: MemoryLog) -> None:
    made: list[Copy] = []

    def make() -> Copy:
        copy = Copy()
        copy.fail_restore = Transient("not yet", retry_after_ms=0) if not made else None
        made.append(copy)
        return copy

    worker = ProcessorWorker(log, make)
    send(log, b"a")
    with pytest.raises(Transient):
        drive(worker, NOW)
    assert not worker.health().ready
    drive(worker, NOW)
    assert copies(log) == [b"1 a"]


class Scripted:
    """A worker that does what its script says, one line each step, then stops the loop."""

    name = "scripted"

    def __init__(self, stop: threading.Event, *script: Exception | None) -> None:
        self._stop = stop
        self._script = list(script)
        self.steps: list[int] = []
        self.closed_with = -1

    def step(self, now: int, timeout_ms: int) -> int:
        self.steps.append(now)
        line = self._script.pop(0)
        if not self._script:
            self._stop.set()
        if line is not None:
            raise line
        return 1

    def reset(self) -> None: ...

    def health(self) -> Health:
        return Health(True, True, "fine")

    def close(self, timeout_ms: int) -> None:
        self.closed_with = timeout_ms


def loop_of(*script: Exception | None) -> tuple[Loop, Scripted]:
    stop = threading.Event()
    worker = Scripted(stop, *script)
    return Loop(worker, ManualClock(NOW), stop), worker


def test_the_loop_goes_on_after_what_may_pass() -> None:
    loop, worker = loop_of(None, Transient("away", 0), TransactionAborted("aborted", 0), None, None)
    loop.run()
    assert worker.steps == [NOW] * 5
    assert loop.error is None


@pytest.mark.parametrize("error", [Fenced("a newer one"), Corrupted("damaged"), StorageFull("full"), Refused("not so")])
def test_the_loop_stops_at_what_will_not(error: Exception) -> None:
    loop, worker = loop_of(error, None, None)
    loop.run()
    assert len(worker.steps) == 1
    assert loop.error is error
    assert (loop.health().live, loop.health().detail) == (False, str(error))


def test_a_loop_that_ended_by_a_bug_is_not_live() -> None:
    loop, _ = loop_of(ZeroDivisionError(), None)
    assert loop.health().live
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert not loop.health().live


def test_waiting_is_live_but_not_ready() -> None:
    stop = threading.Event()
    worker = Scripted(stop, Transient("the broker is away", 0), None)
    loop = Loop(worker, ManualClock(NOW), stop)
    seen: list[Health] = []
    inner: Callable[[int, int], int] = worker.step

    def spy(now: int, timeout_ms: int) -> int:
        seen.append(loop.health())
        return inner(now, timeout_ms)

    worker.step = spy  # type: ignore[method-assign]
    loop.run()
    assert seen == [Health(True, True, "fine"), Health(True, False, "the broker is away")]


def test_one_deadline_for_a_shutdown() -> None:
    loop, worker = loop_of(None)
    loop.close(Deadline(5_000))
    assert 0 < worker.closed_with <= 5_000
    assert Deadline(-1).left_ms() == 0


def test_closing_is_for_committed_state_only(log: MemoryLog) -> None:
    worker = worker_on(log, "", "dies before")
    send(log, b"a")
    drive(worker, NOW)
    worker.close(1_000)
    assert worker.processor.closed == 1  # type: ignore[attr-defined]
    broken = worker_on(log, "dies before")
    send(log, b"b")
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it dies of
        drive(broken, NOW)
    broken.close(1_000)
    assert broken.processor.closed == 0  # type: ignore[attr-defined]


def test_one_step_never_holds_more_than_its_bound(log: MemoryLog) -> None:
    """Backpressure: what is in flight is one batch; the rest stays in the log and is counted as lag."""
    worker = worker_on(log)
    send(log, *[b"x"] * 250)
    drive_once = [worker.step(NOW, 300)]
    while not any(drive_once):
        drive_once.append(worker.step(NOW, 300))
    assert drive_once[-1] == 200  # 100 read, 100 written
    assert worker.lag_records() == 150
    assert worker.metrics.values["lockstep_lag_records", ("copy", "jobs")] == 150
    drive(worker, NOW)
    assert worker.lag_records() == 0
    assert worker.metrics.values["lockstep_records_total", ("copy", "jobs")] == 250
    assert worker.metrics.values["lockstep_written_total", ("copy", "receipts")] == 250
    assert worker.metrics.histograms["lockstep_batch_records", ("copy",)].count == 3
    assert worker.metrics.histograms["lockstep_commit_seconds", ("copy",)].count == 3


def test_metrics_are_declared() -> None:
    assert len(TABLE) == len(METRICS)
    assert all(m.help.endswith(".") for m in METRICS)
    assert all(bool(m.buckets) == (m.kind == "histogram") for m in METRICS)
    with pytest.raises(KeyError):
        Metrics().add("lockstep_invented_total")


def test_a_histogram_counts_at_and_below_its_bounds() -> None:
    metrics = Metrics()
    for v in (1.0, 5.0, 100.0, 1e9):
        metrics.observe("lockstep_batch_records", v, "observe")
    h = metrics.histograms["lockstep_batch_records", ("observe",)]
    assert (h.buckets, h.count, h.total) == ([1, 2, 3, 3, 3, 3], 4, 1e9 + 106)


def test_the_same_step_in_simulated_time(log: MemoryLog) -> None:
    from schemas.codec import encode

    worker = worker_on(log)
    send(log, encode(job()))
    for now in range(NOW, NOW + 10_000, 1_000):
        worker.step(now, 0)
    assert len(copies(log)) == 1


def test_lag_of_partitions_that_went_away_is_not_kept(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_on(log)
    worker.step(NOW, 0)
    send(log, *[b"x"] * 7)
    assert worker.lag_records() == 7
    assert worker._member is not None
    monkeypatch.setattr(worker._member, "lag", dict)  # another process has all partitions now
    assert worker.lag_records() == 0
    assert worker.metrics.values["lockstep_lag_records", ("copy", "jobs")] == 0
