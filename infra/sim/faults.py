"""Seeded faults on the way from the simulated nodes to the log: messages lost, late, doubled and out of order; nodes dying.

Every draw is a function of the seed and of what is drawn for, never of the order of calls: two runs with one seed do
the same, however the steps fell. Used by `infra.sim.infrastructure` only.
"""

import heapq
import random
from dataclasses import dataclass

from schemas.log import Appender
from schemas.messages import Record


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances for each message, 0 to 1, and for each node. None of them by default."""

    lost: float = 0.0
    late: float = 0.0
    late_ms: int = 30_000
    doubled: float = 0.0
    reordered: float = 0.0
    reordered_ms: int = 2_000
    # Chance that a member does not start.
    start_failed: float = 0.0
    # Deaths of one node in one day; a dead node says nothing and forgets what ran, and is back after `down_ms`.
    deaths_per_day: float = 0.0
    down_ms: int = 600_000
    # Nodes say the end of a member and the release of its cards again until it is acted on, or this often.
    repeat_ms: int = 60_000
    repeats: int = 3

    @property
    def any_message(self) -> bool:
        return max(self.lost, self.late, self.doubled, self.reordered) > 0


# What `--faults` means: each kind happens often enough to be seen in a short run.
SOME: Faults = Faults(
    lost=0.01, late=0.02, doubled=0.02, reordered=0.05, start_failed=0.01, deaths_per_day=0.002, down_ms=4 * 3600 * 1000
)


def draw(seed: int, *what: object) -> random.Random:
    """The random numbers for one purpose: the same for the same seed and words."""
    return random.Random("/".join(map(str, (seed, *what))))  # noqa: S311 - a simulation, no secret


class Post:
    """Delivers messages into the log, the faults applied. `due` messages wait here, never in the log."""

    def __init__(self, appender: Appender, seed: int, faults: Faults) -> None:
        self._appender = appender
        self._seed = seed
        self._faults = faults
        self._waiting: list[tuple[int, int, Record]] = []
        self._count = 0
        self._unflushed = 0
        self.lost = 0

    def send(self, record: Record, now: int, *what: object) -> None:
        """Send at `now` (milliseconds); `what` names the message for the draw."""
        f = self._faults
        if not f.any_message:
            self._append(record)
            return
        chance = draw(self._seed, "post", *what, now)
        if chance.random() < f.lost:
            self.lost += 1
            return
        delay = chance.randrange(1, f.late_ms) if chance.random() < f.late else 0
        if chance.random() < f.reordered:
            delay += chance.randrange(1, f.reordered_ms)
        if delay:
            self._later(record, now + delay)
        else:
            self._append(record)
        if chance.random() < f.doubled:
            self._later(record, now + delay + chance.randrange(1, f.reordered_ms))

    def _later(self, record: Record, due: int) -> None:
        self._count += 1
        heapq.heappush(self._waiting, (due, self._count, record))

    def _append(self, record: Record) -> None:
        self._appender.send(record)
        self._unflushed += 1

    def deliver(self, now: int, timeout_ms: int) -> int:
        """Append what is due and make everything durable. Returns how many messages that was."""
        while self._waiting and self._waiting[0][0] <= now:
            self._append(heapq.heappop(self._waiting)[2])
        sent, self._unflushed = self._unflushed, 0
        if sent:
            self._appender.flush(timeout_ms)
        return sent

    def next_due(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None
