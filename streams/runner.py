"""Drives a processor on a log, step by step: poll, process, commit. Real and simulated time run the same `step`.

`ProcessorWorker` owns the member. A batch that the log does not take yet is held, its partitions paused, and committed again:
nothing more is read until it is through. Processor and member are thrown away together when a commit was aborted. `Loop` is
the real-time loop with the error tree's policy. Called by `infra.roles`, the demo, and tests.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from schemas.committing import commit_patiently
from schemas.errors import Fenced, LockstepError, TransactionAborted, Transient
from schemas.health import Health
from schemas.log import Log, Member
from schemas.messages import Block, Committed, Record, TopicPartition
from streams.clock import Clock, Deadline
from streams.metrics import Metrics
from streams.processor import Processor

_log = logging.getLogger("lockstep.runner")
# A step that waits this long for messages keeps shutdown and time-outs prompt without spinning.
STEP_WAIT_MS: Final = 100
# Kafka forgets a position a week after it was committed, in use or not, where no member of the group has subscribed to the topic: an
# engine takes its partitions without being a member. So positions of quiet partitions are committed again and again.
RENEW_EVERY_S: Final = 6 * 3600.0
# Lag asks the log; people and alerts look every few seconds.
LAG_EVERY_S: Final = 1.0


class Worker(Protocol):
    """Something that is stepped: a processor on a log, landing, the simulated infrastructure."""

    name: str

    def step(self, now: int, timeout_ms: int) -> int:
        """Do what there is to do at `now`, waiting up to `timeout_ms` for the first message. Returns what was handled."""
        ...

    def reset(self) -> None:
        """Throw uncommitted state away; the next step restores."""
        ...

    def health(self) -> Health: ...

    def close(self, timeout_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one step read and made of it, until the log has taken it."""

    blocks: list[Block]
    records: list[Record]
    handled: int
    begun: float


class ProcessorWorker:
    """`Worker` for a processor. `make` builds it anew after a failure."""

    def __init__(self, log: Log, make: Callable[[], Processor], metrics: Metrics | None = None) -> None:
        self._log = log
        self._make = make
        self.metrics = metrics or Metrics()
        self.processor = make()
        self.name = self.processor.name
        self._member: Member | None = None
        self._assigned = False
        self._started = False
        # The processor's state is ahead of the log's, and nothing in hand makes up for it.
        self._broken = False
        self._held: _Batch | None = None
        # Partitions came or went since the held batch was read: it is of a membership that is over.
        self._moved = False
        self._paused = False
        self._lag_at = 0.0
        self._known: dict[TopicPartition, Committed] = {}
        # Where partitions without a committed position were begun.
        self._begun: dict[TopicPartition, Committed] = {}
        self._renew_at = 0.0

    def assigned(self, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        self._broken = True  # a restore that fails half-way leaves nothing to go on with
        start = self.processor.assigned(self._log, committed)
        self._broken = False
        self._moved = self._held is not None
        for tp, at in committed.items():
            if at is not None:
                self._known[tp] = at
            else:
                self._begun[tp] = Committed(start.get(tp, 0))
        self._assigned = True
        return start

    def revoked(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        # Between steps there is work to save only while the log is away, and then it cannot be saved now.
        self._moved = self._held is not None
        for tp in partitions:
            self._known.pop(tp, None)
            self._begun.pop(tp, None)
        self.processor.revoked(partitions)

    def _join(self) -> Member:
        if self._member is None:
            p = self.processor
            self._member = self._log.member(p.group, p.topics, self, owner=p.owner, assign_all=p.assign_all)
        return self._member

    def step(self, now: int, timeout_ms: int) -> int:
        if self._broken:
            self.reset()
        member = self._join()
        if self._held is None:
            if self._paused:  # resuming failed after the last commit
                member.resume(sorted(member.assignment()))
                self._paused = False
            self._held = self._work(member, now, timeout_ms)
        else:
            self._stay(member)
        batch = self._held
        if batch.blocks or batch.records or self._renewal():
            self._commit(member, batch)
            # At once: whatever fails from here on, this batch must not be committed again.
            self._held = None
            self.processor.committed()
        self._held = None
        self._count(batch, now)
        if self._paused:
            member.resume(sorted(member.assignment()))
            self._paused = False
        return batch.handled + len(batch.records)

    def _work(self, member: Member, now: int, timeout_ms: int) -> _Batch:
        blocks = member.poll(self.processor.max_records, 0 if self._assigned and not self._started else timeout_ms)
        p, begun = self.processor, time.perf_counter()
        handled = sum(len(b) for b in blocks)
        records: list[Record] = []
        self._broken = True
        if self._assigned and not self._started:
            records += p.started(now)
            self._started = True
        records += p.process(blocks, now, drained=handled < p.max_records) if blocks else p.tick(now)
        self._broken = False
        return _Batch(blocks, records, handled, begun)

    def _commit(self, member: Member, batch: _Batch) -> None:
        """Raises `Transient` with the batch held, and anything else with the state to be thrown away."""
        due = time.monotonic() >= self._renew_at
        positions = {**self._renewal(), **{b.tp: Committed(b.next_offset) for b in batch.blocks}}
        if batch.records and not positions and not self.processor.assign_all:
            # What a clock made, not a message. Positions are what the group's coordinator fences by: records without any would be
            # taken from a member that was thrown out, and contradict the one that has its partitions now.
            positions = {**self._begun, **self._known}
        self._broken = True
        try:
            took_s = commit_patiently(member, positions, batch.records, lambda: self._stay(member))
        except TransactionAborted:
            raise
        except Transient:
            self._broken = False
            raise
        self._broken = False
        self._known.update(positions)
        if due:
            self._renew_at = time.monotonic() + RENEW_EVERY_S
        self.metrics.observe("lockstep_commit_seconds", took_s, self.name)
        self.metrics.observe("lockstep_step_seconds", time.perf_counter() - batch.begun, self.name)

    def _renewal(self) -> dict[TopicPartition, Committed]:
        """Positions to commit again, now and then."""
        return dict(self._known) if self._assigned and time.monotonic() >= self._renew_at else {}

    def _stay(self, member: Member) -> None:
        """Stay in the group while the log does not take a batch: poll, with everything paused."""
        member.pause(sorted(member.assignment()))
        self._paused = True
        came = member.poll(1, 0)
        if came or self._moved:
            self._broken = True
            raise TransactionAborted(f"{self.name}: partitions came or went while the log was away", retry_after_ms=0)

    def _count(self, batch: _Batch, now: int) -> None:
        if batch.blocks:
            oldest = min(b.oldest_ms for b in batch.blocks)
            self.metrics.set("lockstep_lag_seconds", max(0.0, (now - oldest) / 1000), self.name)
            self.metrics.observe("lockstep_batch_records", batch.handled, self.name)
            for b in batch.blocks:
                self.metrics.add("lockstep_records_total", len(b), self.name, b.topic)
        for topic, n in Counter(r.topic for r in batch.records).items():
            self.metrics.add("lockstep_written_total", n, self.name, topic)
        if time.monotonic() >= self._lag_at:
            self._lag_at = time.monotonic() + LAG_EVERY_S
            self.lag_records()

    def reset(self) -> None:
        self.metrics.add("lockstep_restarts_total", 1, self.name, "uncommitted")
        member, self._member = self._member, None
        self.processor = self._make()
        self._assigned = self._started = self._broken = self._moved = self._paused = False
        self._held = None
        self._known.clear()
        self._begun.clear()
        self._renew_at = 0.0
        if member is not None:
            try:
                member.close(1_000)
            except LockstepError as e:
                _log.debug("%s: closing a failed member: %s", self.name, e)

    def lag_records(self) -> int:
        """Messages waiting, all partitions; also sets the gauge."""
        if self._member is None:
            return 0
        # Topics without a partition here have no lag here: their gauge must not keep what was once so.
        by_topic = dict.fromkeys(self.processor.topics, 0)
        for tp, n in self._member.lag().items():
            by_topic[tp.topic] += n
        for topic, n in by_topic.items():
            self.metrics.set("lockstep_lag_records", n, self.name, topic)
        return sum(by_topic.values())

    def next_wake(self) -> int | None:
        return self.processor.next_wake()

    def health(self) -> Health:
        if self._member is None:
            return Health(True, False, "not joined yet")
        if self._held is not None and self._paused:
            return Health(True, False, "a batch waits for the log")
        return Health(True, self._assigned, "has its partitions" if self._assigned else "waits for partitions")

    def close(self, timeout_ms: int) -> None:
        """Leave the group. What is held is done again after the next start; else there is nothing to save but what saves time
        later."""
        if self._member is None:
            return
        deadline = Deadline(timeout_ms)
        if self._assigned and not self._broken and self._held is None:
            self.processor.closing()
        self._member.close(deadline.left_ms())
        self._member = None


class Loop:
    """The real-time loop of one worker, with the policy of the error tree. Ends when `stop` is set, or by `Fatal`."""

    def __init__(self, worker: Worker, clock: Clock, stop: threading.Event) -> None:
        self.worker = worker
        self._clock = clock
        self._stop = stop
        self.error: LockstepError | None = None
        self.turned_at = time.monotonic()
        # When a step last had something to do.
        self.busy_at = 0.0
        self.waiting: str = ""
        self._ended = False

    def run(self) -> None:
        try:
            self._turn()
        finally:
            self._ended = True  # also by an error that nobody foresaw: health must not go on saying "live"

    def _turn(self) -> None:
        while not self._stop.is_set():
            self.turned_at = time.monotonic()
            try:
                if self.worker.step(self._clock.now_ms(), STEP_WAIT_MS):
                    self.busy_at = time.monotonic()
                if self.waiting:
                    _log.info("%s: goes on", self.worker.name)
                    self.waiting = ""
            except Transient as e:
                if str(e) != self.waiting:
                    _log.warning("%s: %s; trying again", self.worker.name, e)
                    self.waiting = str(e)
                self._stop.wait(e.retry_after_ms / 1000)
            except Fenced as e:
                _log.error("%s: fenced: %s", self.worker.name, e)
                self.error = e
                return
            except LockstepError as e:  # Fatal, and what no worker should raise: neither goes away by itself
                _log.error("%s: stops: %s", self.worker.name, e)
                self.error = e
                return

    def health(self) -> Health:
        if self.error is not None:
            return Health(False, False, str(self.error))
        if self._ended:
            return Health(False, False, "stopped" if self._stop.is_set() else "its loop ended by an unforeseen error")
        if self.waiting:
            return Health(True, False, self.waiting)
        return self.worker.health()

    def close(self, deadline: Deadline) -> None:
        """Leave the group; call it when `run` has returned."""
        try:
            self.worker.close(deadline.left_ms())
        except LockstepError as e:
            _log.warning("%s: closing: %s", self.worker.name, e)
