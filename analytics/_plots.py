"""Plots as SVG, for a page that must open without a network: a line over time, and bars. Called by `analytics.page` only.

Two kinds of plot do not need a plotting library, and the page stays a few kilobytes that any browser shows.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from math import floor, log10
from typing import Final

WIDTH: Final = 860
HEIGHT: Final = 220
LEFT: Final = 58
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 24
BAR: Final = 22


def nice_step(largest: float, lines: int = 4) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides an axis into about so many parts."""
    if largest <= 0:
        return 1.0
    raw = largest / lines
    power = 10.0 ** floor(log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def _number(value: float) -> str:
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"


def line(
    times: Sequence[datetime], values: Sequence[float], unit: str, label: str, span: tuple[datetime, datetime] | None = None
) -> str:  # fmt: skip
    """Values over time, as steps with the area below filled. `label` tells people who cannot see it what it shows.

    `span` is the least the time axis covers, so that plots of one page can be read against each other."""
    if not times:
        return "<p class='none'>Nothing yet.</p>"
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    first, last = span or (times[0], times[-1])
    begin = min(first, times[0])
    end = max(last, times[-1], begin + timedelta(seconds=1))
    step = nice_step(max(values))
    top = step * max(1, -(-max(values) // step))

    def x(t: datetime) -> float:
        return LEFT + width * ((t - begin) / (end - begin))

    def y(v: float) -> float:
        return TOP + height * (1 - v / top)

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(label, quote=True)}'>"]
    tick = 0.0
    while tick <= top + step / 1000:
        parts.append(
            f"<line class='grid' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y(tick):.1f}' y2='{y(tick):.1f}'/>"
            f"<text class='axis' x='{LEFT - 6}' y='{y(tick) + 4:.1f}' text-anchor='end'>{_number(tick)}</text>"
        )
        tick += step
    for i in range(6):
        t = begin + (end - begin) * i / 5
        anchor = "start" if i == 0 else "end" if i == 5 else "middle"
        text = f"{t:%d %b %Y}" if (end - begin).days >= 2 else f"{t:%d %b %H:%M}"
        parts.append(f"<text class='axis' x='{x(t):.1f}' y='{HEIGHT - 6}' text-anchor='{anchor}'>{text}</text>")
    path = f"M{x(times[0]):.1f},{y(values[0]):.1f}"
    for t, v in zip(times[1:], values[1:], strict=True):
        path += f"H{x(t):.1f}V{y(v):.1f}"
    path += f"H{x(end):.1f}"
    parts.append(f"<path class='area' d='{path}V{y(0):.1f}H{x(begin):.1f}Z'/><path class='line' d='{path}'/>")
    parts.append(f"<text class='axis' x='{LEFT + 4}' y='{TOP + 10}'>{escape(unit)}</text></svg>")
    return "".join(parts)


def bars(names: Sequence[str], values: Sequence[float], unit: str, label: str) -> str:
    """One horizontal bar for each name."""
    if not names:
        return "<p class='none'>Nothing.</p>"
    left, height = 190, BAR * len(names) + 4
    top = max(values) or 1.0
    parts = [f"<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='{escape(label, quote=True)}'>"]
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        wide = (WIDTH - left - 150) * value / top
        middle = BAR * i + 15
        parts.append(
            f"<text class='axis' x='{left - 8}' y='{middle}' text-anchor='end'>{escape(name)}</text>"
            f"<rect class='bar' x='{left}' y='{BAR * i + 3}' width='{max(1.0, wide):.1f}' height='{BAR - 6}'/>"
            f"<text class='axis' x='{left + max(1.0, wide) + 6:.1f}' y='{middle}'>{_number(value)} {escape(unit)}</text>"
        )
    return "".join([*parts, "</svg>"])
