"""The report over what landed: for a terminal here, as one page in `analytics.page`.

`lockstep report` and the demo call it. Every figure comes from a named query; nothing is computed beside SQL but layout.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from analytics.queries import query, run
from connectors.clickhouse.client import Database, Table
from schemas.errors import Refused

HOUR_S: Final = 3_600
# About this many points make a readable line, in a page and in a terminal.
POINTS: Final = 150
SPARK_WIDTH: Final = 75
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BUCKETS_S: Final = (60, 300, 900, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, 24 * HOUR_S, 7 * 24 * HOUR_S)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the report is about. Cards may be fractions."""

    begin: datetime
    end: datetime
    nodes: int
    cards: float
    jobs: int
    jobs_that_waited: int
    cards_peak: float
    entries: int

    def sentence(self) -> str:
        """How full it was, plainly: nobody should read short waits as merit where there was room for everyone."""
        share = 100 * self.cards_peak / self.cards if self.cards else 0.0
        said = f"At its peak {number(self.cards_peak)} of {number(self.cards)} cards were allocated ({share:.1f} %)."
        if self.jobs and not self.jobs_that_waited:
            return f"{said} There was room for every job when it came, so none waited."
        waited = 100 * self.jobs_that_waited / self.jobs if self.jobs else 0.0
        return f"{said} {self.jobs_that_waited:,} of {self.jobs:,} jobs waited ({waited:.1f} %)."


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told; `bucket_s` is the width of a point of the two lines, seconds."""

    overview: Overview
    outcomes: Table
    waits: Table
    allocation: Table
    backlog: Table
    reasons: Table
    rows: Table
    gaps: Table
    bucket_s: int


def collect(db: Database) -> Report:
    """Ask everything. Raises `Refused` when nothing has landed yet."""
    found = run(db, "overview")
    begin, end, nodes, _, jobs, waited, peak, most, entries = found.rows[0]
    if not entries or not isinstance(begin, datetime) or not isinstance(end, datetime):
        raise Refused("nothing has landed in ClickHouse yet; `lockstep topics` shows whether landing is behind")
    span_s = (end - begin).total_seconds()
    bucket_s = next((b for b in _BUCKETS_S if span_s / b <= POINTS), _BUCKETS_S[-1])
    wide = {"bucket_s": str(bucket_s)}
    overview = Overview(
        begin,
        end,
        int(str(nodes)),
        float(str(most or 0)),
        int(str(jobs)),
        int(str(waited)),
        float(str(peak or 0)),
        int(str(entries)),
    )
    return Report(
        overview, run(db, "outcomes"), run(db, "waits_by_size"), run(db, "card_allocation", wide), run(db, "backlog", wide),
        run(db, "waiting_reasons"), run(db, "rows"), run(db, "ledger_gaps"), bucket_s,
    )  # fmt: skip


def number(value: object) -> str:
    """A value for people: thousands apart, no tail of zeros."""
    if isinstance(value, float):
        return f"{value:,.1f}".removesuffix(".0") if abs(value) < 1e15 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return "" if value is None else str(value)


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, to be set to the right."""
    return any(kind in table.types[column] for kind in ("Int", "Float", "Decimal"))


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """A line of blocks, each the largest of the values it stands for."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    cuts = [values[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))] for i in range(min(width, len(values)))]
    tops = [max(c) for c in cuts if c]
    top = max(tops) or 1.0
    return "".join(_BLOCKS[min(7, int(8 * t / top))] for t in tops)


def as_table(table: Table, title: str) -> RichTable:
    """A table for a terminal."""
    shown = RichTable(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for i, column in enumerate(table.columns):
        shown.add_column(column.replace("_", " "), justify="right" if numeric(table, i) else "left")
    for row in table.rows:
        shown.add_row(*(number(v) for v in row))
    return shown


def _line(table: Table, column: str, title: str, unit: str) -> Text:
    values = [float(str(row[table.columns.index(column)])) for row in table.rows]
    text = Text(f"\n{title}\n", style="bold")
    text.append(f"{sparkline(values)}\n", style="not bold green")
    text.append(
        f"from {number(min(values))} to {number(max(values))} {unit}\n" if values else "nothing yet\n",
        style="not bold dim",
    )
    return text


def terminal(report: Report, width: int = 100) -> str:
    """The report as text with colours, `width` columns wide."""
    o = report.overview
    head = Text(f"Lockstep report: {o.begin:%d %b %Y} to {o.end:%d %b %Y}\n", style="bold")
    head.append(
        f"{o.nodes:,} nodes, {number(o.cards)} cards, {o.jobs:,} jobs, {o.entries:,} ledger entries.\n",
        style="not bold",
    )
    head.append(o.sentence(), style="not bold")
    reasons = (
        as_table(report.reasons, query("waiting_reasons").title)
        if report.reasons.rows
        else Text(f"{query('waiting_reasons').title}\nNothing did.\n")
    )
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard", legacy_windows=False)
    out.print(
        Group(
            head,
            Text(),
            as_table(report.outcomes, query("outcomes").title),
            as_table(report.waits, query("waits_by_size").title),
            _line(
                report.allocation,
                "cards_allocated",
                f"Cards allocated, averages over {duration(report.bucket_s)}",
                "cards",
            ),
            _line(report.backlog, "most_waiting", f"Jobs waiting, most in {duration(report.bucket_s)}", "jobs"),
            reasons,
            as_table(report.rows, query("rows").title),
        )
    )
    written = out.file
    assert isinstance(written, io.StringIO)
    return written.getvalue()


def duration(seconds: int) -> str:
    """`3600` to `1 hour`."""
    for unit, width in (("week", 7 * 86_400), ("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= width and seconds % width == 0:
            n = seconds // width
            return f"{n} {unit}" + ("s" if n > 1 else "")
    return f"{seconds} s"
