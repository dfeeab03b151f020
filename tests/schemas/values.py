"""Values for every field of every record, made from the packaged schemas: strategies for property tests, and one plain row of each."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st

from schemas.codec import PACKAGED, Writer
from schemas.records import Row

# A machine that others use as well has no deadlines; forty examples of each of 28 records are over a thousand in all.
some = settings(deadline=None, max_examples=40)
many = settings(deadline=None, max_examples=200)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
# No lone surrogates: they are no text, UTF-8 cannot carry them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "é" * 70, "x" * 8191, "x" * 8192, "\0"]
)
PLAIN: Mapping[str, st.SearchStrategy[object]] = {
    "string": TEXT,
    "bytes": st.binary(max_size=20) | st.just(b"\xff" * 9000),
    "long": LONG | st.sampled_from([0, -1, 63, 64, -64, -65, 8191, 8192, 1 << 27, 1 << 41]),
    "int": INT | st.sampled_from([0, -1, 8191, 8192]),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
}  # fmt: skip


def _values(kind: object) -> st.SearchStrategy[object]:
    if isinstance(kind, list):
        return st.one_of(*(st.none() if k == "null" else _values(k) for k in kind))
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return st.lists(_values(kind["items"]), max_size=5).map(tuple)
        return _values(kind["type"])
    return PLAIN[cast(str, kind)]


@cache
def rows_of_type(record: type[Row]) -> st.SearchStrategy[Row]:
    """Rows with any values that the newest schema allows."""
    fields = json.loads(newest(record).avsc)["fields"]
    return st.tuples(*(_values(f["type"]) for f in fields)).map(lambda values: cast(Row, record._make(values)))


def newest(record: type[Row]) -> Writer:
    return PACKAGED.writer(PACKAGED.newest(record))


def _plain(kind: object, name: str, n: int) -> object:
    if isinstance(kind, list):
        return _plain(kind[-1], name, n)
    if isinstance(kind, dict):
        return (
            tuple(_plain(kind["items"], name, n + i) for i in range(3))
            if kind["type"] == "array"
            else _plain(kind["type"], name, n)
        )
    examples: dict[str, object] = {
        "string": f"{name} ü{n}", "bytes": f"{name}{n}".encode() + b"\x00\xff", "long": 1_764_576_000_000 + n, "int": 70_000 + n,
        "double": n + 0.5, "boolean": n % 2 == 0,
    }  # fmt: skip
    return examples[cast(str, kind)]


def plain_values(avsc: str) -> dict[str, object]:
    """One value for each field of a schema, the same every time, each different from its neighbours."""
    return {f["name"]: _plain(f["type"], f["name"], i) for i, f in enumerate(json.loads(avsc)["fields"])}


def from_clickhouse(value: object) -> object:
    """A value as ClickHouse's client gives it, in the type that a record has."""
    if isinstance(value, datetime):
        return round(value.replace(tzinfo=UTC).timestamp() * 1000)
    return tuple(value) if isinstance(value, list) else value
