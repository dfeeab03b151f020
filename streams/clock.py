"""Time as an input: whoever drives a processor gives it `now` from one of these."""

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since 1970-01-01 UTC."""

    def now_ms(self) -> int: ...


class SystemClock:
    """The machine's clock. It may step back; the engine's time does not."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """Simulated time: stands still until it is told."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance_to(self, now_ms: int) -> None:
        self._now_ms = now_ms


class Deadline:
    """One budget of real time for a whole shutdown, passed down to everything that may block."""

    def __init__(self, timeout_ms: int) -> None:
        self._end = time.monotonic() + timeout_ms / 1000

    def left_ms(self) -> int:
        return max(0, int((self._end - time.monotonic()) * 1000))
