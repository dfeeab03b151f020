"""Metrics as operators meet them: those that processors count, those that only the process's edge knows, and their page.

`python -m infra.metrics [--check]` makes `docs/metrics.md` (or says whether it is current); `infra.probes` serves what is declared
here. It counts nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from schemas.pages import keep
from streams.metrics import METRICS, Metric

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
# What no processor can count: whether its loop turns, and what runs.
EDGE: Final[tuple[Metric, ...]] = (
    Metric("lockstep_ready", "gauge", ("role",), "1: the role can do its work; 0: it waits or hangs, `/readyz` says for what."),
    Metric("lockstep_info", "gauge", ("version",), "Always 1; its label is the version that runs."),
)  # fmt: skip
DECLARED: Final[tuple[Metric, ...]] = METRICS + EDGE
# Made by prometheus_client of every process; listed so that alerts and the dashboard use these and no others.
PROCESS: Final[tuple[tuple[str, str], ...]] = (
    ("process_start_time_seconds", "When the process started, seconds since 1970-01-01 UTC."),
    ("process_resident_memory_bytes", "Memory in use, bytes."),
    ("process_cpu_seconds_total", "Processor time used, seconds."),
    ("process_open_fds", "Open files and connections."),
)
_INTRO: Final = """# Metrics

Made by `python -m infra.metrics` from `streams/metrics.py` and `infra/metrics.py`; do not edit.

Every role serves them at `/metrics` in Prometheus' text format, beside `/livez` (its loop turns) and `/readyz` (it can do its work; the
answer says what it waits for). `lockstep run ROLE` listens on `LOCKSTEP_HTTP_HOST:LOCKSTEP_HTTP_PORT`, `lockstep up` serves all roles at the
address of its local API. A metric without a value yet is left out; counters without labels begin at 0. Alerts over them are in
`infra/compose/alerts.yml`, what each means is in [operations.md](operations.md#alerts), the dashboard is in
`infra/compose/grafana/dashboards`.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels) or "—"


def _buckets(metric: Metric) -> str:
    return f" Buckets: {', '.join(f'{b:g}' for b in metric.buckets)}." if metric.buckets else ""


def _lines() -> Iterator[str]:
    yield _INTRO
    yield "| metric | kind | labels | meaning |"
    yield "| --- | --- | --- | --- |"
    for metric in DECLARED:
        yield f"| `{metric.name}` | {metric.kind} | {_labels(metric)} | {_cell(metric.help)}{_buckets(metric)} |"
    yield ""
    yield "Labels: `role` is observe, decide, land or simulate; `topic` has no prefix; `entry` is a ledger entry's record; `table` is a"
    yield "ClickHouse table; `code` says why a message is a dead letter."
    yield ""
    yield "## Of the process itself"
    yield ""
    yield "| metric | meaning |"
    yield "| --- | --- |"
    for name, meaning in PROCESS:
        yield f"| `{name}` | {meaning} |"


def page() -> str:
    """The page as it must be."""
    return "\n".join(_lines()) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; with `--check` only say whether it is current. Exit codes: 0 current or written, 1 stale."""
    return keep(PAGE, page(), "infra.metrics", sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
