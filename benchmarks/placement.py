"""Share of a cluster's cards that get allocated: the openb experiment, the engine beside BestFit and FGD.

Run by `python -m benchmarks placement`. Ten seeds of the default trace and its four variants (`benchmarks._openb` says what is
played, and checks every placement); a figure is the mean over the seeds, percent of all cards when 100 or 130 % have been asked
for. `engine_us` is what the engine takes from a submission to its entries, microseconds, on the default trace. Several seeds run
side by side on a machine's cores. Asserts nothing.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks import _openb
from benchmarks._openb import DEFAULT, VARIANTS, Cluster, Pod, Policy
from benchmarks.peers.packing import BestFit, Fgd
from schemas.records import JobCancelled, JobPlaced, JobSubmitted, NodeChanged
from streams.engine import State, accept, decide

DOMAIN: Final = "default"
BEGIN_MS: Final = 1_800_000_000_000
SEEDS: Final = range(1001, 1011)
QUICK_NODES: Final = 40


class Engine:
    """The scheduling engine, entry by entry as in operation: a job that finds no place at once is cancelled."""

    def __init__(self, there: Cluster) -> None:
        self.state = State.empty(DOMAIN)
        self._rows: dict[str, int] = {}
        self._jobs = 0
        for row in range(len(there.cards)):
            name = f"node-{row:05d}"
            self._rows[name] = row
            cards = int(there.cards[row])
            node = NodeChanged(
                name, BEGIN_MS, DOMAIN, "site-1", "", "", "", "", "", cards, str(there.models[row]), 0,
                int(there.cpu_free[row]), int(there.memory_free[row]), 0, "", (), "", "up", cards, "registered", 0,
            )  # fmt: skip
            accept(self.state, node, f"changes/0@{row}", BEGIN_MS)

    def place(self, pod: Pod) -> tuple[int, int] | None:
        self._jobs += 1
        now = BEGIN_MS + self._jobs
        name = f"job-{self._jobs:06d}"
        job = JobSubmitted(
            name, now, DOMAIN, "openb", "default", 0, 1, pod.demand, pod.models, 0,
            pod.cpu_milli, pod.memory_bytes, "", 0, 0, (), (), (),
        )  # fmt: skip
        accept(self.state, job, f"jobs/0@{self._jobs}", now)
        for entry in decide(self.state, now):
            if isinstance(entry, JobPlaced):
                return self._rows[entry.nodes[0]], entry.card_masks[0]
        accept(self.state, JobCancelled(name, now, DOMAIN, "openb", ""), f"jobs/1@{self._jobs}", now)
        decide(self.state, now)
        return None


class _Task(NamedTuple):
    policy: str
    variant: str
    seed: int
    nodes: int | None


class _Done(NamedTuple):
    at_100: float
    at_130: float
    us: float


def _play(task: _Task) -> _Done:
    trace = _openb.pods(task.variant)
    there = _openb.cluster(task.nodes)
    make: dict[str, Callable[[], Policy]] = {
        "engine": lambda: Engine(there),
        "bestfit": lambda: BestFit(there),
        "fgd": lambda: Fgd(there, trace),
    }
    order = _openb.arrivals(trace, there.capacity, task.seed)
    policy = make[task.policy]()
    begun = time.perf_counter()
    found = _openb.run(there, policy, order)
    return _Done(found.at_100, found.at_130, 1e6 * (time.perf_counter() - begun) / (found.placed + found.refused))


def run(quick: bool) -> dict[str, float]:
    """Figures by name: `default_130` is the engine's, `fgd_130` a peer's; of variants `cpu250_130`, `fgd_cpu250_130`."""
    seeds = SEEDS[:1] if quick else SEEDS
    plan = [(policy, variant) for variant in (DEFAULT, *VARIANTS) for policy in ("engine", "bestfit", "fgd")]
    tasks = [_Task(p, v, seed, QUICK_NODES if quick else None) for p, v in plan for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        done = dict(zip(tasks, pool.map(_play, tasks, chunksize=1), strict=True))
    figures: dict[str, float] = {}
    for policy, variant in plan:
        found = [d for task, d in done.items() if (task.policy, task.variant) == (policy, variant)]
        name = variant if policy == "engine" else policy if variant == DEFAULT else f"{policy}_{variant}"
        figures[f"{name}_100"] = statistics.mean(d.at_100 for d in found)
        figures[f"{name}_130"] = statistics.mean(d.at_130 for d in found)
        if (policy, variant) == ("engine", DEFAULT):
            figures["engine_us"] = statistics.median(d.us for d in found)
    return figures
