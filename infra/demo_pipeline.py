"""The real pipeline in simulated time, on one thread: source → log → observe → decide → ledger → land, and simulated nodes.

A discrete-event loop: everything that has work at this moment is stepped until nothing has, then the clock jumps to the
next moment at which something will. Nothing here is special to the demo but the clock; the workers are those of
`lockstep up`. Driven by `infra.demo` and by tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from infra.sim import SimulatedInfrastructure
from schemas.codec import encode
from schemas.log import Log
from schemas.messages import Record
from schemas.records import JobSubmitted
from streams.clock import ManualClock
from streams.decide import Decide
from streams.engine import State
from streams.runner import ProcessorWorker, Worker

FLUSH_MS: Final = 30_000
# Ledger entries between two landings: an insert costs about 10 ms whatever its size, so batches are large.
LAND_EVERY: Final = 10_000
# A moment whose work never ends would be a loop between two parts; no moment of the trace takes a tenth of this.
MAX_ROUNDS: Final = 10_000


@dataclass(slots=True)
class Progress:
    """Where a replay is: simulated time in milliseconds, jobs so far of all `jobs`."""

    now: int
    jobs: int
    submitted: int
    placed: int
    ended: int
    moments: int


class Landing(Protocol):
    """What lands the ledger; `connectors.clickhouse.landing.Lander` is one."""

    def step(self, now: int, timeout_ms: int) -> int: ...


class Pipeline:
    """One domain's pipeline on one log. `jobs` in order of their arrival."""

    def __init__(
        self,
        log: Log,
        clock: ManualClock,
        jobs: Sequence[JobSubmitted],
        simulated: SimulatedInfrastructure,
        observe: ProcessorWorker,
        decide: ProcessorWorker,
        land: Landing | None,
    ) -> None:
        self._clock = clock
        self._jobs = jobs
        self._sim = simulated
        self._observe = observe
        self._decide = decide
        self._land = land
        self._source = log.appender("source")
        self.submitted = 0
        self.moments = 0
        self._landed_seq = 0

    @property
    def state(self) -> State:
        """The engine's state; it is replaced whenever the engine starts anew."""
        processor = self._decide.processor
        assert isinstance(processor, Decide)
        return processor.state

    def run(self, until: int, each: Callable[[Progress], None], every: int = 200) -> None:
        """Play until every job has ended and its cards are released, or simulated time is past `until`; then land the
        rest. `each` is called every so many moments, and at the end."""
        while not self._done() and self._clock.now_ms() <= until:
            self._moment()
            self.moments += 1
            if self.moments % every == 0:
                each(self.progress())
            if self.state.seq - self._landed_seq >= LAND_EVERY:
                self.land()
            following = self._next()
            if following is None:
                break
            self._clock.advance_to(max(following, self._clock.now_ms() + 1))
        self._decide.processor.closing()
        self.land()
        each(self.progress())

    def progress(self) -> Progress:
        values = self._decide.metrics.values
        placed = int(values.get(("lockstep_decisions_total", ("JobPlaced",)), 0))
        return Progress(
            self._clock.now_ms(), len(self._jobs), self.submitted, placed, len(self.state.ended), self.moments
        )

    def land(self) -> None:
        """Land what the ledger has."""
        self._landed_seq = self.state.seq
        if self._land is not None:
            while self._land.step(self._clock.now_ms(), 0):
                pass

    def _done(self) -> bool:
        """All jobs are in, nothing runs and no cards are held. Jobs that still wait then wait for nodes that do not exist,
        unless one is away and may come back."""
        state = self.state
        if self.submitted < len(self._jobs) or state.holdings:
            return False
        waiting = len(state.jobs) > len(state.ended)
        return not waiting or all(d.state == "up" for d in state.descriptions.values())

    def _moment(self) -> None:
        now = self._clock.now_ms()
        before = self.submitted
        while self.submitted < len(self._jobs) and self._jobs[self.submitted].at <= now:
            job = self._jobs[self.submitted]
            self._source.send(Record("jobs", job.job.encode(), encode(job)))
            self.submitted += 1
        if self.submitted != before:
            self._source.flush(FLUSH_MS)
        # The nodes hear of commands and the engine of receipts until nobody has anything more to say.
        workers: tuple[Worker, ...] = (self._observe, self._decide)
        for _ in range(MAX_ROUNDS):
            handled = self._sim.step(now)
            for worker in workers:
                handled += worker.step(now, 0)
            if not handled:
                return
        raise RuntimeError(f"the moment {now} did not end after {MAX_ROUNDS} rounds")

    def _next(self) -> int | None:
        times = [self._jobs[self.submitted].at] if self.submitted < len(self._jobs) else []
        wakes = (self._sim.next_wake(), self._observe.next_wake(), self._decide.next_wake())
        times += [t for t in wakes if t is not None]
        return min(times) if times else None

    def close(self) -> None:
        self._source.close(FLUSH_MS)
        self._sim.close(FLUSH_MS)
        self._observe.close(FLUSH_MS)
        self._decide.close(FLUSH_MS)
