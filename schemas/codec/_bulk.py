"""Blocks at once: messages that share a writer schema become one Avro block for a native reader.

Each body gets its own number appended (a field added at the end of the schema). If any bytes were missing or left over,
some number would not match: so no bad message can shift its neighbours unnoticed. When a block does not read, its
messages are tried one by one, the bad ones set aside, and the rest read again.
"""

import io
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas.codec._frame import extended, frame_bodies, plain, zigzag
from schemas.codec._ids import PACKAGED, SchemaIds, Writer
from schemas.codec._single import HEADER_BYTES, check_header, decode_body
from schemas.errors import Poison, Where
from schemas.messages import Block
from schemas.records import Row

_CHECK: Final = "_number"
_NUMBERS: Final = [zigzag(i) for i in range(1 << 14)]
# Below this many messages one-by-one decoding is faster than setting up a block (measured: about 40).
_FEW: Final = 32
Index = npt.NDArray[np.int64]


@dataclass(slots=True)
class Columns:
    """Messages of one row type: `index` is each one's place in the block, `frame` its fields as columns.

    Columns are those of the writer's version; times are Int64 milliseconds.
    """

    record: type[Row]
    index: Index
    frame: pl.DataFrame


@dataclass(slots=True)
class Decoded:
    """Rows of a block in order, each with its place, and what could not be read."""

    rows: list[tuple[int, Row]] = field(default_factory=list)
    poison: list[tuple[int, Poison]] = field(default_factory=list)


def _numbers(n: int) -> list[bytes]:
    while len(_NUMBERS) < n:
        _NUMBERS.append(zigzag(len(_NUMBERS)))
    return _NUMBERS[:n]


def _read(bodies: list[bytes], writer: Writer) -> pl.DataFrame | None:
    """All bodies as columns, or None when any of them is bad."""
    n = len(bodies)
    parts: list[bytes] = [b""] * (2 * n)
    parts[0::2] = bodies
    parts[1::2] = _numbers(n)
    schema = extended(plain(writer.avsc), ((_CHECK, "long"),))
    framed = frame_bodies(parts, schema, count=n)
    try:
        frame = pl.read_avro(io.BytesIO(framed))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OverflowError, ValueError):
        return None
    if len(frame) != n or not np.array_equal(frame[_CHECK].to_numpy(), np.arange(n)):
        return None
    return frame.drop(_CHECK)


def _groups(block: Block, ids: SchemaIds, poison: list[tuple[int, Poison]]) -> list[tuple[Writer, Index, list[bytes]]]:
    """Messages by writer schema, in order inside each; headers that are wrong go to `poison`."""
    values = block.values
    groups: list[tuple[Writer, Index, list[bytes]]] = []
    by_head: dict[bytes, list[int]] = {}
    first = values[0][:HEADER_BYTES] if values and values[0] is not None else b""
    if len(first) == HEADER_BYTES and all(v is not None and v.startswith(first) for v in values):
        by_head[first] = list(range(len(values)))
    else:
        for i, v in enumerate(values):
            by_head.setdefault(b"" if v is None or len(v) < HEADER_BYTES else v[:HEADER_BYTES], []).append(i)
    for places in by_head.values():
        one = values[places[0]]
        try:
            writer = ids.writer(check_header(one))
        except Poison as e:
            for i in places:
                at = Where(block.topic, block.partition, block.offsets[i])
                try:
                    ids.writer(check_header(values[i]))
                except Poison as own:
                    poison.append((i, Poison(own.code, own.reason, at)))
                else:  # cannot be: same header bytes
                    poison.append((i, Poison(e.code, e.reason, at)))
            continue
        bodies = [cast(bytes, values[i])[HEADER_BYTES:] for i in places]
        groups.append((writer, np.asarray(places, dtype=np.int64), bodies))
    return groups


def _one_by_one(
    block: Block, writer: Writer, index: Index, bodies: list[bytes], poison: list[tuple[int, Poison]]
) -> tuple[list[int], list[Row]]:
    places: list[int] = []
    rows: list[Row] = []
    for i, body in zip(index.tolist(), bodies, strict=True):
        try:
            rows.append(decode_body(body, writer))
        except Poison as e:
            poison.append((i, Poison(e.code, e.reason, Where(block.topic, block.partition, block.offsets[i]))))
        else:
            places.append(i)
    return places, rows


def decode_columns(block: Block, ids: SchemaIds = PACKAGED) -> tuple[list[Columns], list[tuple[int, Poison]]]:
    """A block as columns, one `Columns` per writer schema, and the messages that could not be read."""
    poison: list[tuple[int, Poison]] = []
    found: list[Columns] = []
    for writer, index, bodies in _groups(block, ids, poison):
        frame = _read(bodies, writer)
        if frame is None:
            good, _ = _one_by_one(block, writer, index, bodies, poison)
            if not good:
                continue
            index = np.asarray(good, dtype=np.int64)  # noqa: PLW2901 - the same messages less the bad ones
            frame = _read([cast(bytes, block.values[i])[HEADER_BYTES:] for i in good], writer)
            assert frame is not None, "messages that read one by one must read as a block"
        found.append(Columns(writer.record, index, frame))
    poison.sort(key=lambda p: p[0])
    return found, poison


def rows_of(columns: Columns) -> list[Row]:
    """Columns as rows of the newest type, in order."""
    record = columns.record
    names = [n for n in record._fields if n in columns.frame.columns]
    lists: list[list[object]] = []
    for name in names:
        series = columns.frame[name]
        values = series.to_list()
        lists.append([tuple(v) for v in values] if isinstance(series.dtype, pl.List) else values)
    if len(names) == len(record._fields):
        return cast(list[Row], list(map(record._make, zip(*lists, strict=True))))
    return [record(**dict(zip(names, v, strict=True))) for v in zip(*lists, strict=True)]


def decode_rows(block: Block, ids: SchemaIds = PACKAGED) -> Decoded:
    """A block as rows in order. Never raises for bad bytes: they are in `poison`, neighbours in `rows`."""
    out = Decoded()
    groups = _groups(block, ids, out.poison)
    for writer, index, bodies in groups:
        frame = _read(bodies, writer) if len(bodies) >= _FEW else None
        if frame is None:
            places, rows = _one_by_one(block, writer, index, bodies, out.poison)
        else:
            places, rows = index.tolist(), rows_of(Columns(writer.record, index, frame))
        out.rows.extend(zip(places, rows, strict=True))
    if len(groups) > 1:
        out.rows.sort(key=lambda r: r[0])
    out.poison.sort(key=lambda p: p[0])
    return out
