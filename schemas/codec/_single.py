"""One message at a time: header, body, and the refusal of anything else as `Poison`."""

import io
import json
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast

import fastavro

from schemas.codec._compiled import compile_encoder
from schemas.codec._frame import wide
from schemas.codec._ids import IN_USE, SchemaIds, Writer
from schemas.codec._resolve import resolution
from schemas.errors import Poison, Where
from schemas.records import Row

HEADER_BYTES: Final = 5
_HEADER: Final = struct.Struct(">bI")
# What fastavro raises on bad bytes: it has no one error type for them.
_BAD_BYTES: Final = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, StopIteration, struct.error,
)  # fmt: skip


@lru_cache(maxsize=256)
def parsed(avsc: str) -> dict[str, object]:
    """fastavro's form of the wide schema."""
    return cast(dict[str, object], fastavro.parse_schema(json.loads(wide(avsc))))


def header(schema_id: int) -> bytes:
    """Magic byte and schema id."""
    return _HEADER.pack(0, schema_id)


def encoder(record: type[Row], ids: SchemaIds = IN_USE) -> Callable[[Row], bytes]:
    """A function that encodes rows of one type with its newest schema; the fastest way to encode many.

    It raises `TypeError`, `AttributeError`, `OverflowError` or `struct.error` for values that do not fit their fields.
    """
    schema_id = ids.newest(record)
    return cast(Callable[[Row], bytes], compile_encoder(ids.writer(schema_id).avsc, header(schema_id)))


_encoders: dict[type[Row], Callable[[Row], bytes]] = {}


def use(ids: SchemaIds) -> None:
    """From here on this process reads and writes with these ids where no others are given. Called once, at its start."""
    IN_USE.ids = ids
    _encoders.clear()


def encode(row: Row, ids: SchemaIds = IN_USE) -> bytes:
    """A row as a message body, Confluent framing. Raises as `encoder` says."""
    if ids is not IN_USE:
        return encoder(type(row), ids)(row)
    found = _encoders.get(type(row))
    if found is None:
        found = _encoders[type(row)] = encoder(type(row))
    return found(row)


def schema_id_of(value: bytes | None) -> int | None:
    """Schema id in the header; None when there is no such header."""
    if value is None or len(value) < HEADER_BYTES or value[0] != 0:
        return None
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def check_header(value: bytes | None, where: Where | None = None) -> int:
    """The schema id, or `Poison` that says what the bytes look like instead."""
    if value is None:
        raise Poison("tombstone", "the message has no value (a tombstone); a record was expected", where)
    if len(value) < HEADER_BYTES:
        raise Poison("too_short", f"{len(value)} bytes are too few for a header of 5 (0x00, schema id)", where)
    if value[0] != 0:
        looks = " (text?)" if value[:64].isascii() else ""
        raise Poison("wrong_magic", f"the first byte is 0x{value[0]:02x}, not 0x00{looks}", where)
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def read_body(body: bytes, writer: Writer, where: Where | None = None) -> Mapping[str, object]:
    """A body's fields in the wide form of the writer's schema. Raises `Poison` when bytes are missing, left over or of a wrong form."""
    stream = io.BytesIO(body)
    try:
        decoded = fastavro.schemaless_reader(stream, parsed(writer.avsc), None)
    except _BAD_BYTES as e:
        raise _bad_body(writer, e, where) from None
    left = len(body) - stream.tell()
    if left:
        raise Poison("bad_body", f"{left} bytes are left over behind a {writer.record.__name__}", where)
    return cast(Mapping[str, object], decoded)


def _bad_body(writer: Writer, e: BaseException, where: Where | None) -> Poison:
    # The reader's own words name objects in memory; the same bytes must give the same reason every time.
    match e:
        case EOFError() | StopIteration() | struct.error():
            what = "it ends too early"
        case UnicodeDecodeError():
            what = "text in it is not UTF-8"
        case IndexError():
            what = "it names a branch of a union that does not exist"
        case MemoryError() | OverflowError():
            what = "a length in it is impossible"
        case ValueError() if "<" not in str(e):
            what = str(e)
        case _:
            what = type(e).__name__
    return Poison("bad_body", f"the body is not a {writer.record.__name__} version {writer.version}: {what}", where)


def decode_body(body: bytes, writer: Writer, reader: str, where: Where | None = None) -> Row:
    """A body as a row of the newest type, whose schema is `reader`. Raises `Poison` as `read_body`."""
    decoded = read_body(body, writer, where)
    try:
        return writer.record._make(resolution(writer.avsc, reader).row_values(decoded))
    except ValueError as e:
        raise _bad_body(writer, e, where) from None


def reader_avsc(writer: Writer, ids: SchemaIds) -> str:
    """The newest schema of the writer's record: what rows look like today."""
    return ids.writer(ids.newest(writer.record)).avsc


def decode(value: bytes | None, where: Where | None = None, ids: SchemaIds = IN_USE) -> Row:
    """A message body as a row. Raises `Poison` with the position for anything that is not one."""
    schema_id = check_header(value, where)
    assert value is not None
    try:
        writer = ids.writer(schema_id)
        return decode_body(value[HEADER_BYTES:], writer, reader_avsc(writer, ids), where)
    except Poison as e:
        raise Poison(e.code, e.reason, where) from None
