"""The report as one HTML page that holds everything it shows: no script, no font, no address of anything else.

`lockstep report --html` and the demo write it.
"""

from datetime import datetime
from html import escape
from typing import Final

from analytics._plots import bars, line
from analytics.queries import query
from analytics.report import Report, duration, number, numeric
from connectors.clickhouse.client import Table

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--rule:#d9dee3;--paper:#fff;--mark:#0b6e99;--fill:#0b6e9922}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4ae;--rule:#343b43;--paper:#14181c;--mark:#53b6de;--fill:#53b6de26}}
body{margin:0 auto;max-width:900px;padding:32px 20px 60px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:17px;margin:36px 0 8px}p{margin:4px 0;max-width:70ch}.soft,.none{color:var(--soft)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:3px 18px 3px 0;text-align:left;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--soft)}.n{text-align:right}svg{width:100%;height:auto;display:block}
.grid{stroke:var(--rule)}.axis{fill:var(--soft);font-size:12px}.line{fill:none;stroke:var(--mark);stroke-width:1.5}
.area{fill:var(--fill)}.bar{fill:var(--mark)}.wide{overflow-x:auto}.plot svg{min-width:640px}.ok{color:#1a7f37}.bad{color:#cf222e;font-weight:600}
.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:20px 0 8px}
.key b{display:block;font-size:22px;font-weight:600}.key span{color:var(--soft)}
"""


def _table(table: Table) -> str:
    if not table.rows:
        return "<p class='none'>Nothing.</p>"
    right = [" class='n'" if numeric(table, i) else "" for i in range(len(table.columns))]
    head = "".join(f"<th{r}>{escape(c.replace('_', ' '))}</th>" for c, r in zip(table.columns, right, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{r}>{escape(number(v))}</td>" for v, r in zip(row, right, strict=True)) + "</tr>"
        for row in table.rows
    )
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _column(table: Table, name: str) -> list[float]:
    at = table.columns.index(name)
    return [float(str(row[at] or 0)) for row in table.rows]


def _times(table: Table) -> list[datetime]:
    return [row[0] for row in table.rows if isinstance(row[0], datetime)]


def _span(*tables: Table) -> tuple[datetime, datetime] | None:
    """From the first to the last moment that any of them tells of."""
    all_times = [t for table in tables for t in _times(table)]
    return (min(all_times), max(all_times)) if all_times else None


def _plot(svg: str) -> str:
    """On a narrow screen a plot is scrolled rather than made unreadably small."""
    return f"<div class='wide plot'>{svg}</div>"


def _once(gaps: Table) -> str:
    missing, doubled = sum(_column(gaps, "missing")), sum(_column(gaps, "doubled"))
    entries = sum(_column(gaps, "entries"))
    if missing or doubled:
        return f"<p class='bad'>{missing:,.0f} ledger entries are missing and {doubled:,.0f} are doubled.</p>"
    return f"<p class='ok'>Each of {entries:,.0f} ledger entries is in ClickHouse once: none missing, none doubled.</p>"


def page(report: Report) -> str:
    """The whole page."""
    o = report.overview
    figures = (
        (f"{o.nodes:,}", "nodes"), (number(o.cards), "cards"), (f"{o.jobs:,}", "jobs"),
        (number(o.cards_peak), "cards allocated at the peak"), (f"{o.jobs_that_waited:,}", "jobs that waited"),
        (f"{o.entries:,}", "ledger entries"),
    )  # fmt: skip
    key = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in figures)
    wide = duration(report.bucket_s)
    span = _span(report.allocation, report.backlog)
    reasons = report.reasons
    sections = (
        (query("outcomes").title, _table(report.outcomes)),
        (query("waits_by_size").title, _table(report.waits)),
        (
            f"Cards allocated, averages over {wide}",
            _plot(
                line(
                    _times(report.allocation),
                    _column(report.allocation, "cards_allocated"),
                    "cards",
                    "Cards allocated over time",
                    span,
                )
            ),
        ),
        (
            f"Jobs waiting, most in {wide}",
            _plot(
                line(
                    _times(report.backlog),
                    _column(report.backlog, "most_waiting"),
                    "jobs",
                    "Jobs waiting over time",
                    span,
                )
            ),
        ),
        (
            query("waiting_reasons").title,
            _plot(bars([str(r[0]) for r in reasons.rows], _column(reasons, "hours"), "hours", "Hours waited by reason"))
            + _table(reasons)
            if reasons.rows
            else "<p class='none'>Nothing did.</p>",
        ),
        (query("rows").title, _once(report.gaps) + _table(report.rows)),
    )
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>Lockstep report</title><style>{_STYLE}</style></head><body><h1>Lockstep report</h1>"
        f"<p class='soft'>{o.begin:%d %B %Y} to {o.end:%d %B %Y}, UTC</p><div class='key'>{key}</div>"
        f"<p>{escape(o.sentence())}</p>{body}</body></html>\n"
    )
