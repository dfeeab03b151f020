"""What all benchmarks share: repeated timing, the machine's description, the table for people and the JSON for programs.

A benchmark is a module `benchmarks/NAME.py` with a docstring and `run(quick: bool) -> dict[str, float]`, names of figures
to figures. `python -m benchmarks` finds and runs it. Nothing here asserts a speed: numbers are for people to judge.
"""

import ast
import gc
import importlib
import inspect
import json
import os
import pkgutil
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, cast

from rich.console import Console
from rich.table import Table

import benchmarks
from streams.collecting import keep_pauses_short

# Enough for a median that one stray stall cannot move.
RUNS: Final = 5
QUICK_RUNS: Final = 2


class Benchmark(Protocol):
    """A module of this folder."""

    __name__: str
    __doc__: str | None

    def run(self, quick: bool) -> dict[str, float]: ...


def names() -> list[str]:
    """Benchmarks there are."""
    return sorted(
        m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_") and not m.ispkg
    )


def load(name: str) -> Benchmark:
    """The benchmark of this name."""
    return cast(Benchmark, importlib.import_module(f"benchmarks.{name}"))


def about(name: str) -> str:
    """First sentence of a benchmark's docstring, read without running it."""
    tree = ast.parse(Path(benchmarks.__path__[0], f"{name}.py").read_text("utf-8"))
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def seconds(work: Callable[[], object], runs: int) -> float:
    """Median time of `work`, after one run that warms caches. The garbage collector is on, as in a program."""
    work()
    times = []
    for _ in range(runs):
        gc.collect()
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


@contextmanager
def collector_as_in_the_engine() -> Iterator[None]:
    """The cycle collector set as the engine's process sets it."""
    before = gc.get_threshold()
    keep_pauses_short()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def per_second(work: Callable[[], object], count: int, *, quick: bool) -> float:
    """How many of `count` things `work` does in a second: the median of several runs."""
    return count / seconds(work, QUICK_RUNS if quick else RUNS)


def side_by_side(
    works: Mapping[str, tuple[Callable[[], object], int]], *, quick: bool, runs: int = RUNS
) -> dict[str, float]:
    """Things a second by name, `(work, count)` each: medians of runs taken in turn, so that a machine's moods meet all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(1 + (QUICK_RUNS if quick else runs)):
        for name, (work, _) in works.items():
            gc.collect()
            begun = time.perf_counter()
            work()
            if round_:  # the first warms caches
                times[name].append(time.perf_counter() - begun)
    return {name: count / statistics.median(times[name]) for name, (_, count) in works.items()}


def machine() -> dict[str, str | int | float]:
    """What the figures were measured on; names no host."""
    cpuinfo = Path("/proc/cpuinfo")
    models = {
        line.partition(":")[2].strip()
        for line in (cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(memory / (1 << 30), 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def human(value: float) -> str:
    """A figure with the digits that mean something."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def show(console: Console, name: str, figures: dict[str, float]) -> None:
    """The table for people."""
    table = Table(title=f"{name}: {about(name)}", title_justify="left", title_style="bold")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for figure, value in figures.items():
        table.add_row(figure, human(value))
    console.print(table)


def measure(name: str, *, quick: bool) -> dict[str, object]:
    """Run one benchmark: `{"benchmark", "figures", "machine"}`."""
    module = load(name)
    if "quick" not in inspect.signature(module.run).parameters:
        raise TypeError(f"benchmarks/{name}.py: run() must take `quick`")
    where = machine()
    return {"benchmark": name, "figures": module.run(quick=quick), "machine": where}


def write(path: Path, result: dict[str, object]) -> None:
    """The JSON for programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
