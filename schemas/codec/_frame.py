"""Avro's container framing: many bodies of one writer schema as one block that native readers take whole.

A record's Avro encoding is the concatenation of its fields, so fields can be added at the end of a schema by appending
their bytes to each body: that is how check values travel with bodies.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

# Any 16 bytes do: the sync marker only has to be the same after each block.
SYNC: Final = b"lockstep-block-1"


def zigzag(value: int) -> bytes:
    """Avro's int/long encoding."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def avro_bytes(value: bytes) -> bytes:
    """Avro's string/bytes encoding."""
    return zigzag(len(value)) + value


@lru_cache(maxsize=256)
def container_header(avsc: str) -> bytes:
    """`Obj` header of a container file with this writer schema, no compression."""
    return b"Obj\x01" + zigzag(1) + avro_bytes(b"avro.schema") + avro_bytes(avsc.encode()) + b"\x00" + SYNC


def frame_bodies(bodies: Iterable[bytes], avsc: str, count: int | None = None) -> bytes:
    """One container file with one block of these bodies; `count` records when a body comes in several parts.

    Source: Avro specification 1.11, object container files.
    """
    if count is None:
        bodies = list(bodies)
        count = len(bodies)
    block = b"".join(bodies)
    number = zigzag(count)
    return b"".join((container_header(avsc), number, zigzag(len(block)), block, SYNC))


@lru_cache(maxsize=256)
def extended(avsc: str, last: tuple[tuple[str, str], ...], first: tuple[tuple[str, str], ...] = ()) -> str:
    """The schema with fields `(name, primitive type)` added at its end and at its start."""
    schema = json.loads(avsc)
    before, after = ([{"name": n, "type": t} for n, t in extra] for extra in (first, last))
    schema["fields"] = [*before, *schema["fields"], *after]
    return json.dumps(schema)


def bare(schema: object) -> object:
    """The schema of the same bytes for readers: without `doc`, without defaults (which readers of containers ignore, and polars trips
    over), and with plain integers for times."""
    if isinstance(schema, Mapping):
        if "logicalType" in schema:
            return schema["type"]
        return {k: bare(v) for k, v in schema.items() if k not in {"doc", "default"}}
    if isinstance(schema, list):
        return [bare(s) for s in schema]
    return schema


@lru_cache(maxsize=256)
def plain(avsc: str) -> str:
    """`bare` on text."""
    return json.dumps(bare(json.loads(avsc)))


def _widened(kind: object) -> object:
    if isinstance(kind, list):
        return [_widened(k) for k in kind]
    if isinstance(kind, Mapping):
        return {**kind, "items": _widened(kind["items"])}
    return "long" if kind in ("int", "boolean") else kind


@lru_cache(maxsize=256)
def wide(avsc: str) -> str:
    """`plain`, with ints and booleans as longs: readers cut numbers that do not fit silently, so they are read wide and checked.

    An int has the same bytes as a long; a boolean's 0 and 1 are the longs 0 and -1, and no other byte is.
    """
    schema = json.loads(plain(avsc))
    schema["fields"] = [{**f, "type": _widened(f["type"])} for f in schema["fields"]]
    return json.dumps(schema)
