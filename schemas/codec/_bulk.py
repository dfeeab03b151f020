"""Blocks at once: messages that share a writer schema become one Avro block for a native reader.

Each message goes in whole, its five header bytes as a first field and its own number appended as a last one. If bytes were missing
or left over anywhere, some number would not match: so no bad message can shift its neighbours unnoticed. When a block does not
read it is halved until the bad messages are alone; they are set aside and the rest keeps its order.
"""

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Final, cast

import fastavro
import numpy as np
import numpy.typing as npt
import polars as pl

from schemas.codec._frame import extended, frame_bodies, plain, zigzag
from schemas.codec._ids import PACKAGED, SchemaIds, Writer
from schemas.codec._resolve import resolution
from schemas.codec._single import HEADER_BYTES, check_header, decode_body, parsed, read_body, reader_avsc
from schemas.errors import Poison, Where
from schemas.messages import Block
from schemas.records import Row

_HEAD: Final = "_head"
_NUMBER: Final = "_number"
_NUMBERS: Final = [zigzag(i) for i in range(1 << 14)]
# Below this many messages one-by-one decoding is faster than setting up a block (measured: 30 samples of telemetry).
_FEW: Final = 32
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
    """Messages that share a header: `places` in the block, in order."""

    writer: Writer
    reader: str
    places: Sequence[int]
    values: Sequence[bytes]


def _where(block: Block, place: int) -> Where:
    return Where(block.topic, block.partition, block.offsets[place] if block.offsets else -1)


def _numbers(n: int) -> list[bytes]:
    while len(_NUMBERS) < n:
        _NUMBERS.append(zigzag(len(_NUMBERS)))
    return _NUMBERS[:n]


@lru_cache(maxsize=256)
def _numbered(avsc: str) -> str:
    """The schema of a whole message between its header and its number."""
    return extended(plain(avsc), ((_NUMBER, "long"),), first=((_HEAD, HEADER_BYTES),))


def _read(values: Sequence[bytes], writer: Writer) -> pl.DataFrame | None:
    """All messages as the writer's columns, or None when any of them is bad or has another header than the first."""
    n = len(values)
    try:
        parts = chain.from_iterable(zip(values, _numbers(n), strict=True))
        frame = pl.read_avro(io.BytesIO(frame_bodies(parts, _numbered(writer.avsc), count=n)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OverflowError, ValueError, TypeError):
        return None
    if len(frame) != n or not np.array_equal(frame[_NUMBER].to_numpy(), np.arange(n)):
        return None
    if not frame.select((pl.col(_HEAD) == values[0][:HEADER_BYTES]).all()).item():
        return None
    return frame.drop(_HEAD, _NUMBER)


def _rewritten(value: bytes, writer: Writer) -> bytes:
    """A good message in the plainest bytes: Avro allows several forms of the same value, native readers fewer."""
    out = io.BytesIO(value[:HEADER_BYTES])
    out.seek(HEADER_BYTES)
    fastavro.schemaless_writer(out, parsed(writer.avsc), read_body(value[HEADER_BYTES:], writer))
    return out.getvalue()


def _salvage(block: Block, group: _Group, poison: Poisons) -> list[tuple[Sequence[int], pl.DataFrame]]:
    """What can be read of a group that does not read as a whole, in order; the rest goes to `poison`."""
    found: list[tuple[Sequence[int], pl.DataFrame]] = []
    waiting = [(0, len(group.values))]
    while waiting:
        low, high = waiting.pop()
        values, places = group.values[low:high], group.places[low:high]
        # A whole group was tried before it came here.
        frame = None if (low, high) == (0, len(group.values)) else _read(values, group.writer)
        if frame is None and high - low > _FEW:
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]
            continue
        if frame is None:
            places, rows = _one_by_one(block, _Group(group.writer, group.reader, places, values), poison)
            if not rows:
                continue
            good = [cast(bytes, block.values[i]) for i in places]
            frame = _read(good, group.writer)
            if frame is None:
                frame = _read([_rewritten(v, group.writer) for v in good], group.writer)
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


def _group(block: Block, places: Sequence[int], writer: Writer, ids: SchemaIds) -> _Group:
    values = block.values if len(places) == len(block) else [block.values[i] for i in places]
    return _Group(writer, reader_avsc(writer, ids), places, cast(Sequence[bytes], values))


def _groups(block: Block, ids: SchemaIds, poison: Poisons) -> list[_Group]:
    """Messages by header, in order inside each; headers that are wrong go to `poison`."""
    by_head: defaultdict[bytes, list[int]] = defaultdict(list)
    for i, value in enumerate(block.values):
        by_head[value[:HEADER_BYTES] if value is not None else b""].append(i)
    groups = []
    for places in by_head.values():
        try:
            writer = _writer(block, places[0], ids)
            groups.append(_group(block, places, writer, ids))
        except Poison:
            for i in places:  # each with its own reason and position
                try:
                    _writer(block, i, ids)
                except Poison as e:
                    poison.append((i, e))
    return groups


def _whole(block: Block, ids: SchemaIds) -> tuple[_Group, pl.DataFrame] | None:
    """A block of good messages of one header, the usual case, without looking at each; None when it is something else."""
    try:
        writer = _writer(block, 0, ids)
        group = _group(block, range(len(block)), writer, ids)
    except Poison:
        return None
    frame = _read(group.values, writer)
    return None if frame is None else (group, frame)


def _one_record(block: Block) -> bool:
    """Whether it is worth trying the block as a whole: a cheap look at a few of its messages."""
    values = block.values
    last = len(values) - 1
    heads = {(values[i] or b"")[:HEADER_BYTES] for i in (0, last // 3, last // 2, last)}
    return len(heads) == 1


def decode_columns(block: Block, ids: SchemaIds = PACKAGED) -> tuple[list[Columns], Poisons]:
    """A block as columns, one `Columns` per writer schema, and the messages that could not be read.

    Never raises for bad bytes; `Transient` when `ids` cannot answer.
    """
    poison: Poisons = []
    if not len(block):
        return [], poison
    whole = _whole(block, ids) if _one_record(block) else None
    if whole is not None:
        return [_columns(whole[0], whole[0].places, whole[1])], poison
    found = []
    for group in _groups(block, ids, poison):
        frame = _read(group.values, group.writer)
        parts = [(group.places, frame)] if frame is not None else _salvage(block, group, poison)
        if parts:
            places = list(chain.from_iterable(p for p, _ in parts))
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


def decode_rows(block: Block, ids: SchemaIds = PACKAGED) -> Decoded:
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
