"""A planned range of one partition, and its bytes as ClickHouse takes them: Arrow blocks, decoded in bulk.

Arrow, because ClickHouse reads it column by column: Avro, body by body, costs it twice as much as decoding and Arrow together.

Landing builds these. A range is inserted table by table, each with the range's token, so that any of it can be repeated.
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar, cast

import numpy as np
import polars as pl

from schemas.codec import PACKAGED, SchemaIds, decode_columns
from schemas.errors import Poison, Where
from schemas.messages import Block, TopicPartition
from schemas.records import Row

T = TypeVar("T")
HEADER_BYTES: Final = 5
_PLAN: Final = "v1"
_KNOWN: Final = "known="


@dataclass(frozen=True, slots=True)
class Plan:
    """The range that an offset's metadata promises: up to `last`, under tokens with `epoch`."""

    last: int
    epoch: str


@dataclass(frozen=True, slots=True)
class Note:
    """What is kept with a committed position: the plan for the range that begins there, and up to which offset rows may be there
    that were landed before the group lost its position. Both outlive whoever made them."""

    plan: Plan | None = None
    known: int = -1

    def metadata(self) -> str:
        plan = [str(self.plan.last), self.plan.epoch] if self.plan is not None else []
        known = [f"{_KNOWN}{self.known}"] if self.known >= 0 else []
        return " ".join([_PLAN, *plan, *known]) if plan or known else ""


def read_note(metadata: str) -> Note:
    """The other way round. Raises `ValueError` for a note of another version."""
    if not metadata:
        return Note()
    version, *rest = metadata.split(" ")
    known = rest.pop().removeprefix(_KNOWN) if rest and rest[-1].startswith(_KNOWN) else "-1"
    good = version == _PLAN and (not rest or (len(rest) == 2 and rest[0].isdigit()))
    if not good or not known.removeprefix("-").isdigit():
        raise ValueError(f"the landing plan {metadata[:80]!r} is of another version")
    return Note(Plan(int(rest[0]), rest[1]) if rest else None, int(known))


@dataclass(slots=True)
class Part:
    """Messages of a range with one writer schema, which go to one table."""

    table: str
    schema_id: int
    ids: SchemaIds
    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    done: bool = False

    def frame(self, tp: TopicPartition, only: frozenset[int] | None = None) -> "Framed":
        """Rows with their positions; `only` these offsets."""
        offsets: Sequence[int] = self.offsets
        values: Sequence[bytes] = self.values
        if only is not None:
            kept = [i for i, o in enumerate(offsets) if o in only]
            offsets, values = [offsets[i] for i in kept], [values[i] for i in kept]
        if not values:
            return Framed(b"", [])
        columns, poison = decode_columns(Block(*tp, values, offsets[-1] + 1, offsets=offsets), self.ids)
        bad = [(offsets[i], p) for i, p in poison]
        if not columns:
            return Framed(b"", bad)
        (found,) = columns  # one header, one writer
        rows = found.frame.with_columns(
            *(
                pl.col(name).cast(pl.Datetime("ms", "UTC"))
                for name in _times(PACKAGED.writer(PACKAGED.newest(found.record)).avsc)
            ),
            _topic=pl.lit(tp.topic),
            _partition=pl.lit(tp.partition, pl.Int32),
            _offset=pl.Series(np.asarray(offsets, np.int64)[found.index]),
            _schema_id=pl.lit(self.schema_id, pl.Int32),
        )
        out = io.BytesIO()
        # The oldest form: ClickHouse does not know views of strings in every version.
        rows.write_ipc(out, compat_level=pl.CompatLevel.oldest())
        return Framed(out.getvalue(), bad)


class Framed(NamedTuple):
    """Rows of a part as one Arrow file, and what cannot be read of it: offset and why."""

    data: bytes
    bad: list[tuple[int, Poison]]


@lru_cache(maxsize=256)
def _times(avsc: str) -> tuple[str, ...]:
    fields = json.loads(avsc)["fields"]
    return tuple(f["name"] for f in fields if isinstance(f["type"], dict) and "logicalType" in f["type"])


@dataclass(slots=True)
class Batch:
    """One range. `uncertain`: some insert of it may or may not have happened, so it is counted. `present`: its rows may be
    there already under tokens nobody knows, so only what is missing is inserted."""

    tp: TopicPartition
    first: int
    plan: Plan
    next_offset: int
    appended_ms: int
    parts: list[Part]
    poison: list[tuple[Block, int, Poison]]
    blocks: list[Block]
    uncertain: bool = False
    present: bool = False
    filled: int = 0

    @property
    def rows(self) -> int:
        return sum(len(p.offsets) for p in self.parts)

    def token(self, cluster: str, part: Part) -> str:
        """Names this range of this table: what ClickHouse knows a repeated insert by."""
        return f"{_PLAN}|{cluster}|{self.tp.topic}|{self.tp.partition}|{self.first}-{self.plan.last}|{self.plan.epoch}|{part.schema_id}"


def sort_out(
    blocks: Iterable[Block], tables: Mapping[str, Mapping[type[Row], str]], ids: SchemaIds
) -> tuple[list[Part], list[tuple[Block, int, Poison]]]:
    """Messages by writer schema, and those whose header alone shows that they are no row of their topic."""
    parts: dict[bytes, Part | Poison] = {}
    poison: list[tuple[Block, int, Poison]] = []
    for block in blocks:
        known = tables[block.topic]
        for header, places in _by_header(block.values):
            found = parts.get(header)
            if found is None:
                found = parts[header] = _part(header, known, ids)
            if isinstance(found, Poison):
                for i in places:
                    where = Where(block.topic, block.partition, block.offsets[i])
                    poison.append((block, i, Poison(found.code, found.reason, where)))
            else:
                found.offsets += _chosen(block.offsets, places)
                found.values += _chosen(cast(Sequence[bytes], block.values), places)
    poison.sort(key=lambda p: (p[0].tp, p[0].offsets[p[1]]))
    return [p for p in parts.values() if isinstance(p, Part)], poison


def _by_header(values: Sequence[bytes | None]) -> list[tuple[bytes, Sequence[int]]]:
    """Each header, and the places of its messages in order; by whole columns where every message has a header."""
    heads = [v[:HEADER_BYTES] for v in values if v is not None]
    joined = b"".join(heads)
    if len(joined) == HEADER_BYTES * len(values):
        # Five bytes as one number each: a sort of numbers finds the groups.
        columns = np.zeros((len(values), 8), dtype=np.uint8)
        columns[:, 8 - HEADER_BYTES :] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, HEADER_BYTES)
        numbers = columns.view(">u8").ravel()
        found = np.unique(numbers)
        if len(found) == 1:
            return [(heads[0], range(len(values)))]
        return [
            (int(n).to_bytes(HEADER_BYTES, "big"), cast(Sequence[int], np.flatnonzero(numbers == n).tolist()))
            for n in found
        ]
    places: dict[bytes, list[int]] = {}
    for i, value in enumerate(values):
        places.setdefault(b"" if value is None else value[:HEADER_BYTES], []).append(i)
    return list(places.items())


def _chosen(values: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    if isinstance(places, range):
        return values
    return itemgetter(*places)(values) if len(places) > 1 else [values[places[0]]]


def _part(header: bytes, known: Mapping[type[Row], str], ids: SchemaIds) -> Part | Poison:
    if len(header) < HEADER_BYTES or header[0] != 0:
        return Poison("no_header", "no Confluent header: a row begins with a zero byte and a 4-byte schema id")
    schema_id = int.from_bytes(header[1:], "big")
    try:
        writer = ids.writer(schema_id)
    except Poison as e:
        return Poison(e.code, e.reason)
    table = known.get(writer.record)
    if table is None:
        return Poison("wrong_topic", f"a {writer.record.__name__} does not belong into this topic")
    return Part(table, schema_id, ids)


def cut(block: Block, last: int) -> tuple[Block | None, Block | None]:
    """The messages up to offset `last`, and those after."""
    n = int(np.searchsorted(np.asarray(block.offsets), last, side="right"))
    if n == len(block):
        return block, None
    if n == 0:
        return None, block
    return block.part(0, n, block.offsets[n - 1] + 1), block.part(n, len(block), block.next_offset)
