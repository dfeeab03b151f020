"""Metrics, declared once: every name, kind, label and meaning. `docs/metrics.md` is generated from this table.

Processors count here in plain dictionaries; the edge (`infra.probes`) turns them into Prometheus' format. Nothing here
imports a metrics library.
"""

import threading
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `buckets` only for histograms, in the metric's unit."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RECORDS: Final = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)

METRICS: Final[tuple[Metric, ...]] = (
    Metric("lockstep_lag_records", "gauge", ("role", "topic"), "Messages that are there and not yet processed."),
    Metric("lockstep_lag_seconds", "gauge", ("role",), "Age of the oldest message of the newest batch when it was processed, seconds."),
    Metric("lockstep_records_total", "counter", ("role", "topic"), "Messages processed."),
    Metric("lockstep_batch_records", "histogram", ("role",), "Messages in one processed batch.", _RECORDS),
    Metric("lockstep_written_total", "counter", ("role", "topic"), "Messages written."),
    Metric("lockstep_commit_seconds", "histogram", ("role",), "Time to commit a batch with its results, seconds.", _SECONDS),
    Metric("lockstep_step_seconds", "histogram", ("role",), "Time to process a batch, commit included, seconds.", _SECONDS),
    Metric("lockstep_decisions_total", "counter", ("entry",), "Ledger entries written, by type."),
    Metric("lockstep_pending_jobs", "gauge", (), "Jobs that wait."),
    Metric("lockstep_running_jobs", "gauge", (), "Jobs that are placed or run."),
    Metric("lockstep_cards_milli", "gauge", ("state",), "Cards of nodes that are up, milli-cards: total, free."),
    Metric("lockstep_dead_letters_total", "counter", ("role", "code"), "Messages that could not be used."),
    Metric("lockstep_unregistered_samples_total", "counter", ("role",), "Telemetry samples of nodes or links nobody registered."),
    Metric(
        "lockstep_stale_descriptions_total", "counter", ("role",),
        "Registrations and removals that were doubled or older than one seen, and not taken.",
    ),
    Metric("lockstep_stale_samples_total", "counter", ("role",), "Telemetry samples that were doubled or older than one seen."),
    Metric("lockstep_restarts_total", "counter", ("role", "cause"), "Times a role threw its state away and restored it."),
    Metric("lockstep_snapshot_seq", "gauge", (), "Ledger seq of the newest snapshot."),
    Metric("lockstep_landed_rows_total", "counter", ("table",), "Rows inserted into ClickHouse."),
    Metric("lockstep_landing_delay_seconds", "gauge", (), "Time from a message's append to its row being confirmed, seconds, newest batch."),
    Metric("lockstep_insert_retries_total", "counter", (), "Inserts into ClickHouse that were repeated because their result was uncertain."),
    Metric("lockstep_gaps_filled_total", "counter", (), "Rows found missing by counting after an uncertain insert, and inserted."),
)  # fmt: skip

TABLE: Final[dict[str, Metric]] = {m.name: m for m in METRICS}
Labels = tuple[str, ...]


@dataclass(slots=True)
class Histogram:
    """Cumulative counts per bucket, sum and count."""

    buckets: list[int]
    total: float = 0.0
    count: int = 0


class Metrics:
    """Values by metric and labels. Thread-safe; undeclared names are a programming error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: dict[tuple[str, Labels], float] = {}
        self.histograms: dict[tuple[str, Labels], Histogram] = {}

    def add(self, name: str, amount: float = 1.0, *labels: str) -> None:
        key = (TABLE[name].name, labels)
        with self._lock:
            self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, *labels: str) -> None:
        with self._lock:
            self.values[(TABLE[name].name, labels)] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        metric = TABLE[name]
        with self._lock:
            found = self.histograms.setdefault((name, labels), Histogram([0] * len(metric.buckets)))
            for i, bound in enumerate(metric.buckets):
                if value <= bound:
                    found.buckets[i] += 1
            found.total += value
            found.count += 1

    def copy(self) -> tuple[dict[tuple[str, Labels], float], dict[tuple[str, Labels], Histogram]]:
        """All values at one moment, for whoever shows them."""
        with self._lock:
            kept = {k: Histogram(list(h.buckets), h.total, h.count) for k, h in self.histograms.items()}
            return dict(self.values), kept
