"""The first real run: a cluster's trace of 149 days through the whole house on one machine, in simulated time.

`lockstep demo` calls `run`. Everything is real but the clock and the nodes: the events, the embedded log, observe, decide, the
ledger, landing and ClickHouse's engine. What it leaves in its folder is what `lockstep up` would have left, so every other
command works on it.
"""

import json
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from connectors.log.embedded import EmbeddedLog
from connectors.snapshots import FolderSnapshots
from connectors.sources import openb
from connectors.sources.found import Setting
from infra.demo_pipeline import Landing, Pipeline, Progress
from infra.sim import SOME, Faults, Pace, SimulatedInfrastructure
from schemas.codec import PACKAGED, schema_id_of
from schemas.errors import Refused
from schemas.log import Log
from schemas.messages import TopicPartition
from schemas.records import JobSubmitted, NodeRegistered
from schemas.topics import TOPICS
from streams.clock import ManualClock
from streams.decide import Decide
from streams.metrics import Metrics
from streams.observe import Observe
from streams.replay import read_up_to
from streams.runner import ProcessorWorker

MARK: Final = "demo.json"
DOMAIN: Final = "default"
SNAPSHOTS: Final = "snapshots"
PAGE: Final = "report.html"
QUESTION: Final = "SELECT queue, outcome, count() FROM job_ended GROUP BY ALL ORDER BY 1, 2"
# The trace names no date. A Sunday in the year of its publication stands for its first second.
TRACE_START_MS: Final = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp() * 1000)
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
# 1,213 nodes × 2 samples a day × 149 days are 361,000 samples: enough to keep observe honest, in a dozen seconds.
HEARTBEAT_MS: Final = 12 * HOUR_MS
# Two beats may be missed before a node counts as silent.
SILENCE_MS: Final = 2 * HEARTBEAT_MS + HOUR_MS
PACE: Final = Pace(
    heartbeat_ms=HEARTBEAT_MS,
    start_ms=(1_000, 1_000),
    release_ms=(1_000, 1_000),
    run_ms=(600_000, 600_000),
    step_ms=1_000,
)
# The trace's last pod is deleted at 149.3 days; on few nodes or with faults some are not through by then. A limit against
# playing for ever, not a plan.
GRACE_MS: Final = 730 * DAY_MS


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay: the first `jobs` of the trace (0: all) on its first `nodes` nodes (0: all)."""

    jobs: int = 0
    nodes: int = 0
    seed: int = 0
    faults: bool = False


class Warehouse(Protocol):
    """Where the ledger lands, and what is told from there. Landing is a worker's `step`."""

    def step(self, now: int, timeout_ms: int) -> int: ...

    def rows(self) -> Mapping[str, int]:
        """Rows by ledger entry's type."""
        ...

    def report(self, page: Path) -> str:
        """The report for a terminal; the same as a page is written to `page`."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """The three tellings of one history, to be compared: entries in the log by type, rows in ClickHouse by type (None:
    nothing was landed), the engine's last seq, and submissions in the log."""

    logged: Mapping[str, int]
    landed: Mapping[str, int] | None
    seq: int
    submitted: int

    def faults(self) -> list[str]:
        """What does not add up; [] when everything was handled exactly once."""
        found = []
        total = sum(self.logged.values())
        if total != self.seq:
            found.append(f"the log has {total:,} ledger entries, the engine counts {self.seq:,}")
        answered = self.logged.get("JobAccepted", 0) + self.logged.get("JobRefused", 0)
        if answered != self.submitted:
            found.append(f"{self.submitted:,} jobs were submitted, {answered:,} were accepted or refused")
        if self.landed is not None:
            found += [
                f"{name}: {n:,} entries in the log, {self.landed.get(name, 0):,} rows in ClickHouse"
                for name, n in sorted(self.logged.items())
                if self.landed.get(name, 0) != n
            ]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a demo: where it is, how far it got, the report, and the account. `page` None: nothing was landed."""

    folder: Path
    played: Progress
    report: str
    page: Path | None
    account: Account
    next_commands: tuple[str, ...]


def run(
    folder: Path,
    plan: Plan,
    each: Callable[[Progress], None],
    *,
    version: str,
    warehouse: Callable[[Log, Path], Warehouse] | None,
) -> Outcome:
    """The whole demo in `folder`. `each` hears of progress. Raises `Refused` when the folder is not free for it."""
    fresh_folder(folder)
    log = open_log(folder)
    try:
        house = warehouse(log, folder) if warehouse is not None else None
        try:
            pipeline, jobs = make_pipeline(log, folder / SNAPSHOTS, plan, version, house)
            play(pipeline, jobs, each)
            played, seq, example = pipeline.progress(), pipeline.state.seq, _example(pipeline)
            pipeline.close()
            page = folder / PAGE
            report = house.report(page) if house is not None else ""
            found = account(log, seq, house.rows() if house is not None else None)
        finally:
            if house is not None:
                house.close()
    finally:
        log.close()
    at = f" --data {shlex.quote(str(folder))}"
    commands = (
        f"lockstep jobs{at}",
        f"lockstep why {example}{at}",
        f'lockstep sql{at} "{QUESTION}"',
    )
    return Outcome(folder, played, report, page if house is not None else None, found, commands)


def _example(pipeline: Pipeline) -> str:
    """A job worth asking about: one that waits, else the one that waited longest, else the last."""
    jobs = pipeline.state.jobs
    waiting = [name for name, job in jobs.items() if job.phase == "pending"]
    return (
        waiting[0]
        if waiting
        else max(jobs, key=lambda name: jobs[name].started_at - jobs[name].ask.submitted_at, default="")
    )


def fresh_folder(folder: Path) -> None:
    """Make the demo's folder, empty. An earlier demo's is replaced; anything else is left alone.

    Raises `Refused` when the folder holds something else."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).is_file():
            raise Refused(f"{folder} holds something that is not of an earlier demo; name another folder with --data")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(json.dumps({"made_by": "lockstep demo"}) + "\n")


def trace(plan: Plan) -> tuple[list[NodeRegistered], list[JobSubmitted]]:
    """Nodes and jobs of the plan, jobs in order of arrival."""
    found = openb.packaged(Setting(DOMAIN, TRACE_START_MS))
    return found.nodes[: plan.nodes or None], found.jobs[: plan.jobs or None]


def make_pipeline(
    log: Log, snapshots: Path, plan: Plan, version: str, land: Landing | None
) -> tuple[Pipeline, list[JobSubmitted]]:
    """The pipeline at the trace's first second, its nodes registered, and the jobs it will play."""
    log.provision(TOPICS, dry_run=False)
    nodes, jobs = trace(plan)
    faults = SOME if plan.faults else Faults()
    simulated = SimulatedInfrastructure(log, DOMAIN, seed=plan.seed, pace=PACE, faults=faults)
    simulated.register(nodes)
    metrics = Metrics()
    pipeline = Pipeline(
        log,
        ManualClock(TRACE_START_MS),
        jobs,
        simulated,
        ProcessorWorker(log, lambda: Observe(silence_ms=SILENCE_MS, metrics=metrics), metrics),
        ProcessorWorker(
            log, lambda: Decide(DOMAIN, FolderSnapshots(snapshots), version=version, metrics=metrics), metrics
        ),
        land,
    )
    return pipeline, jobs


def play(pipeline: Pipeline, jobs: list[JobSubmitted], each: Callable[[Progress], None]) -> None:
    """Play it to the end of the last job."""
    last = max((_ends_by(j) for j in jobs), default=TRACE_START_MS)
    pipeline.run(last + GRACE_MS, each)


def _ends_by(job: JobSubmitted) -> int:
    run = next((int(label.split("=")[1]) for label in job.labels if label.startswith(f"{openb.RUN_LABEL}=")), 0)
    return job.at + run


def account(log: Log, seq: int, landed: Mapping[str, int] | None) -> Account:
    """Count what the log holds, message by message."""
    logged: Counter[str] = Counter()
    for topic, spans in ((t, log.span(t)) for t in ("ledger", "jobs")):
        for partition, span in spans.items():
            for block in read_up_to(log, TopicPartition(topic, partition), span.begin, span.end):
                for value, n in Counter(schema_id_of(v) for v in block.values).items():
                    name = PACKAGED.writer(value).record.__name__ if value is not None else "unknown"
                    logged[name] += n
    submitted = logged.pop("JobSubmitted", 0)
    logged.pop("JobCancelled", 0)
    return Account(dict(logged), landed, seq, submitted)


def open_log(folder: Path) -> EmbeddedLog:
    """The demo's log. A power cut may cost its last seconds: it can be run again, and it is a third quicker so."""
    return EmbeddedLog(folder, "normal")
