"""Links as observe sees them: smoothed use and latency, and what counts as a material change.

Smoothing is an exponentially weighted moving average with an outlier guard: a sample further from the average than six
times the smoothed deviation is clipped to that distance, unless it is the third such sample in a row (then the level has
really moved). Used by `streams.observe` only.
"""

from dataclasses import dataclass
from typing import Final

from schemas.records import LinkChanged, LinkTelemetry
from streams._observed import newer

ALPHA: Final = 0.2
CLIP: Final = 6.0
OUTLIERS_BELIEVED: Final = 3
# Material: five percent of the capacity, or a fifth of the latency and at least a millisecond.
USE_SHARE: Final = 0.05
LATENCY_SHARE: Final = 0.2
LATENCY_MS: Final = 1.0


@dataclass(slots=True)
class Smooth:
    """One smoothed figure."""

    mean: float = 0.0
    deviation: float = 0.0
    samples: int = 0
    outliers: int = 0

    def add(self, value: float) -> None:
        if self.samples == 0:
            self.mean, self.samples = value, 1
            return
        away = value - self.mean
        reach = CLIP * self.deviation
        if self.samples >= 5 and reach > 0 and abs(away) > reach:
            self.outliers += 1
            if self.outliers >= OUTLIERS_BELIEVED:
                self.mean, self.deviation, self.samples, self.outliers = value, 0.0, 1, 0
                return
            away = reach if away > 0 else -reach
        else:
            self.outliers = 0
        self.samples += 1
        self.mean += ALPHA * away
        self.deviation += ALPHA * (abs(away) - self.deviation)


@dataclass(slots=True)
class Link:
    """A link: what was last told, the newest sample, the smoothed figures."""

    told: LinkChanged | None = None
    counter: int = -1
    sampled_ms: int = -1
    heard_ms: int = 0
    described_ms: int = -1
    used: Smooth | None = None
    latency: Smooth | None = None

    def add(self, sample: LinkTelemetry, now: int) -> bool:
        """Take a sample; False when it is doubled or overtaken."""
        if not newer(sample.counter, sample.at, self.counter, self.sampled_ms, now):
            return False
        self.counter, self.sampled_ms = sample.counter, sample.at
        self.heard_ms = now
        self.used = self.used or Smooth()
        self.latency = self.latency or Smooth()
        self.used.add(sample.used_gbps)
        self.latency.add(sample.latency_ms)
        return True

    def material(self) -> bool:
        """The smoothed figures are far enough from what was told."""
        told = self.told
        if told is None or self.used is None or self.latency is None:
            return False
        if told.state == "silent":
            return True
        if abs(self.used.mean - told.used_gbps) > USE_SHARE * max(told.capacity_gbps, 1e-9):
            return True
        away = abs(self.latency.mean - told.latency_ms)
        return away > LATENCY_MS and away > LATENCY_SHARE * told.latency_ms
