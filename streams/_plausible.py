"""What can be: checks of registrations and samples before observe believes them, columns at a time where there are many.

Each returns or raises `Poison` with a reason for people; none changes a state. Used by `streams.observe` only.
"""

from typing import Final

import polars as pl

from schemas.codec import Columns
from schemas.errors import Poison, Where
from schemas.messages import Block
from schemas.records import NodeRegistered, NodeTelemetry
from streams._observed import STATE_OF

DAY_MS: Final = 24 * 3600 * 1000
MAX_CARDS: Final = 63


def check_node(row: NodeRegistered) -> None:
    if not row.node or not row.site:
        raise Poison("impossible_value", f"node {row.node!r} at site {row.site!r}: both need a name")
    if not 0 <= row.cards <= MAX_CARDS:
        raise Poison("impossible_value", f"node {row.node}: {row.cards} cards; 0 to {MAX_CARDS} can be")
    if row.cards and not row.card_model:
        raise Poison("impossible_value", f"node {row.node}: {row.cards} cards without a model")
    if min(row.cpu_milli, row.memory_bytes, row.card_memory_bytes, row.disk_bytes) < 0:
        raise Poison("impossible_value", f"node {row.node}: a capacity is negative")
    if row.admin_state not in STATE_OF:
        raise Poison(
            "impossible_value", f"node {row.node}: admin_state {row.admin_state!r} is not one of {', '.join(STATE_OF)}"
        )


# Each sample's place in its block travels with it as a column.
_PLACE: Final = "_place"
_MOST: Final = {"cards_healthy": MAX_CARDS, "card_utilization_pct": 100, "power_watts": 10**7}
_LEAST_ZERO: Final = (
    "counter", "cards_healthy", "card_utilization_pct", "card_memory_used_bytes", "cpu_used_milli", "memory_used_bytes",
    "power_watts",
)  # fmt: skip


def _each_possible(frame: pl.DataFrame, now: int) -> pl.Series:
    good = (pl.col("node").str.len_bytes() > 0) & (pl.col("at") <= now + DAY_MS)
    for name in _LEAST_ZERO:
        good &= pl.col(name).is_between(0, _MOST[name]) if name in _MOST else pl.col(name) >= 0
    return frame.select(good.alias("good"))["good"]


def _all_possible(frame: pl.DataFrame, now: int) -> bool:
    """The usual case at a third of the cost, by each column's least and greatest. What is not a number fails every comparison."""
    for name in _LEAST_ZERO:
        values = frame[name].to_numpy()
        if not (values.min() >= 0 and (name not in _MOST or values.max() <= _MOST[name])):
            return False
    return bool(frame["at"].to_numpy().max() <= now + DAY_MS) and bool((frame["node"] != "").all())


def newest(frame: pl.DataFrame) -> pl.DataFrame:
    """One row for each node: its newest sample (the latest time, of equal ones the greatest counter) and the most healthy cards any of
    its samples names."""
    most = pl.col("counter").arg_max()
    found = frame.group_by("node").agg(
        pl.col("counter").max(),
        pl.col("cards_healthy").get(most),
        pl.col("cards_healthy").max().alias("most_healthy"),
        pl.col("at").get(most),
        pl.col("at").max().alias("latest"),
        pl.len(),
    )
    # Where the greatest counter is not the latest, an agent started anew or its clock was set: seldom, and dearer to answer.
    odd = found.filter(pl.col("at") != pl.col("latest"))
    if len(odd):
        last = (
            frame.join(odd.select("node", "most_healthy", "len"), on="node")
            .sort("at", "counter")
            .group_by("node")
            .agg(
                pl.col("counter", "cards_healthy", "most_healthy", "at").last(),
                pl.col("at").last().alias("latest"),
                pl.col("len").last(),
            )
        )
        found = pl.concat([found.filter(pl.col("at") == pl.col("latest")), last.select(found.columns)])
    return found


def more_than_registered(
    frame: pl.DataFrame, limits: pl.DataFrame, block: Block
) -> tuple[pl.DataFrame, list[tuple[int, Poison]]]:
    """Samples that fit their node's registration, and those with more healthy cards than it has."""
    joined = frame.join(limits, on="node", how="left", maintain_order="left")
    good = (joined["cards_healthy"] <= joined["registered"]).fill_null(value=True)
    bad = []
    for i, node, healthy, registered in (
        joined.filter(~good).select(_PLACE, "node", "cards_healthy", "registered").iter_rows()
    ):
        reason = f"node {node}: {healthy} healthy cards, but {registered} are registered"
        bad.append((i, Poison("impossible_value", reason, Where(block.topic, block.partition, block.offsets[i]))))
    return frame.filter(good), bad


def possible(columns: Columns, block: Block, now: int) -> tuple[pl.DataFrame, list[tuple[int, Poison]]]:
    """Samples with values that can be; the others as poison, each with its reason."""
    frame = columns.frame.with_columns(pl.Series(_PLACE, columns.index))
    if _all_possible(frame, now):
        return frame, []
    good = _each_possible(frame, now)
    bad = []
    for k in (~good).arg_true().to_list():
        i = int(columns.index[k])
        sample = frame.row(k, named=True)
        future = sample["at"] > now + DAY_MS
        reason = (
            f"the sample's time {sample['at']} is more than a day ahead of the clock ({now})"
            if future
            else "a figure is negative, not a number, or beyond what can be: "
            + ", ".join(f"{n}={sample[n]}" for n in NodeTelemetry._fields[2:])
        )
        where = Where(block.topic, block.partition, block.offsets[i])
        bad.append((i, Poison("from_the_future" if future else "impossible_value", reason, where)))
    return frame.filter(good), bad
