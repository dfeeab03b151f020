"""Blocks at once: messages that share a writer schema become one Avro block for a native reader.

Each message goes in whole, its header as two more fields at the start, and with its own number as one more at the end. If bytes were
missing or left over anywhere, some number would not match: so no bad message can shift its neighbours unnoticed. When a block does
not read it is cut in pieces, and the pieces with bad messages are read one by one; the bad ones are set aside, the rest keeps its order.
"""

import io
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Final, cast

import fastavro
import numpy as np
import numpy.typing as npt
import polars as pl

from schemas.codec._frame import extended, frame_bodies, plain, wide, zigzag
from schemas.codec._ids import IN_USE, SchemaIds, Writer
from schemas.codec._resolve import resolution
from schemas.codec._single import HEADER_BYTES, check_header, decode_body, parsed, read_body, reader_avsc
from schemas.errors import Poison, Where
from schemas.messages import Block
from schemas.records import Row

# The header as Avro fields: its first byte 0 is a long (any other is another long), the id's four bytes are a float, which is never
# computed with: only its bits are looked at. Cutting the header off each message would cost a third of the reading.
_MAGIC: Final = ("_magic", "long")
_ID: Final = ("_id", "float")
_NUMBER: Final = ("_number", "long")
# Messages looked at before a block is tried as a whole.
_LOOKS: Final = 16
# Below this many messages one-by-one decoding is faster than setting up a block (measured: 30 samples of telemetry).
_FEW: Final = 32
# Size of the pieces of a block that holds bad messages. Not halves of halves: the native reader panics on some bad bytes, which is
# caught but leaves lines on stderr each time, and two attempts for each bad message are enough.
_PIECE: Final = 512
# Messages that are worth a thread of their own (measured with telemetry: 2,000 in two shares are no faster than in one, 4,000 are).
_SHARE: Final = 1_500
_MAX_THREADS: Final = 4
Index = npt.NDArray[np.int64]
Poisons = list[tuple[int, Poison]]


@dataclass(slots=True)
class Columns:
    """Messages of one writer schema: `index` is each one's place in the block, `frame` the newest row type's fields as columns;
    times are Int64 milliseconds."""

    record: type[Row]
    index: Index
    frame: pl.DataFrame


@dataclass(slots=True)
class Decoded:
    """Rows of a block in order, each with its place, and what could not be read."""

    rows: list[tuple[int, Row]] = field(default_factory=list)
    poison: Poisons = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Group:
    """Messages that share a header, and their places in the block, in order."""

    writer: Writer
    reader: str
    places: Sequence[int]
    values: Sequence[bytes]


def _where(block: Block, place: int) -> Where:
    return Where(block.topic, block.partition, block.offsets[place] if block.offsets else -1)


@lru_cache(maxsize=8)
def _numbers_to(n: int) -> list[bytes]:
    """Shared by threads: nobody changes it."""
    return [zigzag(i) for i in range(n)]


def _numbers(n: int) -> list[bytes]:
    return _numbers_to(max(1 << 14, 1 << (n - 1).bit_length()))[:n]


@lru_cache(maxsize=256)
def _numbered(avsc: str) -> str:
    """The schema of a whole message with its number."""
    return extended(wide(avsc), (_NUMBER,), first=(_MAGIC, _ID))


@lru_cache(maxsize=256)
def _narrow_columns(avsc: str) -> tuple[tuple[int, pl.DataType], ...]:
    """Places and types of the columns that the wide form has wider than the schema."""
    done: list[tuple[int, pl.DataType]] = []
    for i, f in enumerate(json.loads(plain(avsc))["fields"]):
        if f["type"] == "boolean":
            done.append((i, pl.Boolean()))
        elif _holds(f["type"], "int"):
            done.append((i, pl.List(pl.Int32()) if isinstance(f["type"], dict) else pl.Int32()))
    return tuple(done)


def _narrow(frame: pl.DataFrame, avsc: str) -> pl.DataFrame:
    """From columns of the wide form back to those of the schema. Raises a `PolarsError` for numbers that its types do not have."""
    for i, dtype in _narrow_columns(avsc):
        column = frame.to_series(i)
        if dtype == pl.Boolean:
            # 0 and 1 are the longs 0 and -1 in Avro's zigzag; nothing else is in the list.
            frame.replace_column(i, column.replace_strict([0, -1], [False, True], return_dtype=pl.Boolean))
        else:
            frame.replace_column(i, column.cast(dtype, strict=True))
    return frame


def _holds(kind: object, what: str) -> bool:
    return (
        kind == what or (isinstance(kind, dict) and kind["items"] == what) or (isinstance(kind, list) and what in kind)
    )


@lru_cache(maxsize=256)
def _has_union(avsc: str) -> bool:
    return any(isinstance(f["type"], list) for f in json.loads(plain(avsc))["fields"])


@lru_cache(maxsize=1)
def _helpers() -> tuple[ThreadPoolExecutor | None, int]:
    """Threads that read beside the caller's, and how many read in all. The native reader works without Python's lock."""
    cores = min(_MAX_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return (ThreadPoolExecutor(cores - 1, "lockstep-decode") if cores > 1 else None), cores


def _read(values: Sequence[bytes], writer: Writer) -> pl.DataFrame | None:
    """All messages as the writer's columns, or None when any of them is bad or has another header than the first. Many are
    shared out to the cores."""
    n = len(values)
    if n < 2 * _SHARE:
        return _read_share(values, writer)
    helpers, threads = _helpers()
    if helpers is None:
        return _read_share(values, writer)
    size = -(-n // min(threads, n // _SHARE))
    # Each share compares its own only. A tombstone may be anywhere, whatever the type says: it has no header.
    if len({(values[i] or b"")[:HEADER_BYTES] for i in range(0, n, size)}) > 1:
        return None
    others = [helpers.submit(_read_share, values[i : i + size], writer) for i in range(size, n, size)]
    frames = [_read_share(values[:size], writer), *(o.result() for o in others)]
    whole = [f for f in frames if f is not None]
    return pl.concat(whole) if len(whole) == len(frames) else None


def _read_share(values: Sequence[bytes], writer: Writer) -> pl.DataFrame | None:
    n = len(values)
    parts = [b""] * (2 * n)
    parts[0::2] = values
    parts[1::2] = _numbers(n)
    try:
        frame = pl.read_avro(io.BytesIO(frame_bodies(parts, _numbered(writer.avsc), count=n)))
        if len(frame) != n or not np.array_equal(frame.drop_in_place(_NUMBER[0]).to_numpy(), np.arange(n)):
            return None
        bits = frame.drop_in_place(_ID[0]).to_numpy().view(np.uint32)
        if frame.drop_in_place(_MAGIC[0]).to_numpy().any() or (bits != bits[0]).any():
            return None
        if _has_union(writer.avsc):  # the native reader takes any branch it does not know for the second
            for value in values:
                read_body(value[HEADER_BYTES:], writer)
        return _narrow(frame, writer.avsc)
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        OSError,
        OverflowError,
        ValueError,
        TypeError,
        Poison,
    ):
        return None


def _rewritten(value: bytes, writer: Writer) -> bytes:
    """A good message in the plainest bytes: Avro allows several forms of the same value, native readers fewer."""
    out = io.BytesIO()
    out.write(value[:HEADER_BYTES])
    fastavro.schemaless_writer(out, parsed(writer.avsc), read_body(value[HEADER_BYTES:], writer))
    return out.getvalue()


def _salvage(block: Block, group: _Group, poison: Poisons) -> list[tuple[Sequence[int], pl.DataFrame]]:
    """What can be read of a group that does not read as a whole, in order; the rest goes to `poison`."""
    found: list[tuple[Sequence[int], pl.DataFrame]] = []
    for low in range(0, len(group.values), _PIECE):
        piece = replace(group, places=group.places[low : low + _PIECE], values=group.values[low : low + _PIECE])
        # A small group was tried before it came here.
        frame = _read(piece.values, piece.writer) if len(group.values) > _PIECE else None
        if frame is not None:
            found.append((piece.places, frame))
            continue
        places, rows = _one_by_one(block, piece, poison)
        if not rows:
            continue
        good = [cast(bytes, block.values[i]) for i in places]
        frame = _read(good, piece.writer)
        if frame is None:
            frame = _read([_rewritten(v, piece.writer) for v in good], piece.writer)
        assert frame is not None, "what fastavro writes, polars reads"
        found.append((places, frame))
    return found


def _one_by_one(block: Block, group: _Group, poison: Poisons) -> tuple[list[int], list[Row]]:
    places: list[int] = []
    rows: list[Row] = []
    for i, value in zip(group.places, group.values, strict=True):
        try:
            rows.append(decode_body(value[HEADER_BYTES:], group.writer, group.reader))
        except Poison as e:
            poison.append((i, Poison(e.code, e.reason, _where(block, i))))
        else:
            places.append(i)
    return places, rows


def _writer(block: Block, place: int, ids: SchemaIds) -> Writer:
    """Who wrote a message, by its header. Raises `Poison` with its position."""
    try:
        return ids.writer(check_header(block.values[place]))
    except Poison as e:
        raise Poison(e.code, e.reason, _where(block, place)) from None


def _groups(block: Block, ids: SchemaIds, poison: Poisons) -> list[_Group]:
    """Messages by header, in order inside each; headers that are wrong go to `poison`."""
    by_head: defaultdict[bytes, list[int]] = defaultdict(list)
    for i, value in enumerate(block.values):
        by_head[value[:HEADER_BYTES] if value is not None else b""].append(i)
    groups = []
    for places in by_head.values():
        try:
            writer = _writer(block, places[0], ids)
            reader = reader_avsc(writer, ids)
        except Poison:
            for i in places:  # each with its own reason and position
                try:
                    _writer(block, i, ids)
                except Poison as e:
                    poison.append((i, e))
            continue
        values = [block.values[i] for i in places]
        groups.append(_Group(writer, reader, places, cast(list[bytes], values)))
    return groups


def _whole(block: Block, ids: SchemaIds) -> tuple[_Group, pl.DataFrame] | None:
    """A block of good messages with one header, the usual case, without looking at each; None when it is something else."""
    values = block.values
    heads = {(v or b"")[:HEADER_BYTES] for v in (*values[:: len(values) // _LOOKS + 1], values[-1])}
    if len(heads) > 1:
        return None
    try:
        writer = _writer(block, 0, ids)
        group = _Group(writer, reader_avsc(writer, ids), range(len(block)), cast(Sequence[bytes], values))
    except Poison:
        return None
    frame = _read(group.values, writer)
    return None if frame is None else (group, frame)


def decode_columns(block: Block, ids: SchemaIds = IN_USE) -> tuple[list[Columns], Poisons]:
    """A block as columns, one `Columns` per writer schema, and the messages that could not be read.

    Never raises for bad bytes; `Transient` when `ids` cannot answer.
    """
    poison: Poisons = []
    if not len(block):
        return [], poison
    whole = _whole(block, ids)
    if whole is not None:
        return [_columns(whole[0], whole[0].places, whole[1])], poison
    found = []
    for group in _groups(block, ids, poison):
        frame = _read(group.values, group.writer)
        parts = [(group.places, frame)] if frame is not None else _salvage(block, group, poison)
        if parts:
            places = parts[0][0] if len(parts) == 1 else list(chain.from_iterable(p for p, _ in parts))
            found.append(_columns(group, places, pl.concat([f for _, f in parts]) if len(parts) > 1 else parts[0][1]))
    poison.sort(key=itemgetter(0))
    return found, poison


def _columns(group: _Group, places: Sequence[int], frame: pl.DataFrame) -> Columns:
    index = np.arange(len(places)) if isinstance(places, range) else np.asarray(places, dtype=np.int64)
    return Columns(group.writer.record, index, resolution(group.writer.avsc, group.reader).frame(frame))


def rows_of(columns: Columns) -> list[Row]:
    """Columns as rows, in order."""
    lists: list[list[object]] = []
    for series in columns.frame:
        values = series.to_list()
        lists.append([tuple(v) for v in values] if isinstance(series.dtype, pl.List) else values)
    return cast(list[Row], list(map(columns.record._make, zip(*lists, strict=True))))


def decode_rows(block: Block, ids: SchemaIds = IN_USE) -> Decoded:
    """A block as rows in order. Never raises for bad bytes: they are in `poison`, neighbours in `rows`.

    Raises `Transient` when `ids` cannot answer.
    """
    out = Decoded()
    if not len(block):
        return out
    if len(block) >= _FEW:
        found, out.poison = decode_columns(block, ids)
        for columns in found:
            out.rows.extend(zip(columns.index.tolist(), rows_of(columns), strict=True))
        several = len(found) > 1
    else:
        groups = _groups(block, ids, out.poison)
        for group in groups:
            places, rows = _one_by_one(block, group, out.poison)
            out.rows.extend(zip(places, rows, strict=True))
        out.poison.sort(key=itemgetter(0))
        several = len(groups) > 1
    if several:
        out.rows.sort(key=itemgetter(0))
    return out
