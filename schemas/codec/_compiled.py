"""An encoder written for each schema, as `namedtuple` writes a class: the engine's process encodes tens of thousands of
entries a second, and a function made for one record is several times faster than one that walks a schema.

Used by `_single`. Its bytes are those of fastavro and avro-python3 (property tests hold it to both), or it raises the same kinds of
errors (`TypeError`, `ValueError`, `OverflowError`, `AttributeError`) for values that do not fit the schema.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, cast

Encode = Callable[[tuple[object, ...]], bytes]

# Avro's long is 7 bits a byte, low first, the top bit saying that more follow. Tables of two bytes at once (14 bits): `_LAST` ends a
# number, `_MORE` goes on. A time in milliseconds is three look-ups.
_CHUNK: Final = 1 << 14
_LAST: Final = tuple(bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(_CHUNK))
_MORE: Final = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(_CHUNK))


def long(value: int) -> bytes:
    """Avro's long. Raises `OverflowError` beyond 64 bits, `TypeError` for what is no integer."""
    n = (value << 1) ^ (value >> 63)
    if n < 0x4000:
        return _LAST[n]
    if n < 0x10000000:
        return _MORE[n & 0x3FFF] + _LAST[n >> 14]
    if n < 0x40000000000:
        return _MORE[n & 0x3FFF] + _MORE[n >> 14 & 0x3FFF] + _LAST[n >> 28]
    if n > 0xFFFFFFFFFFFFFFFF:
        raise OverflowError(f"{value} does not fit a long")
    parts = []
    while n >= 0x4000:
        parts.append(_MORE[n & 0x3FFF])
        n >>= 14
    parts.append(_LAST[n])
    return b"".join(parts)


def int32(value: int) -> bytes:
    """Avro's int. Raises `OverflowError` beyond 32 bits."""
    if not -0x80000000 <= value <= 0x7FFFFFFF:
        raise OverflowError(f"{value} does not fit an int")
    return long(value)


def raw(value: bytes) -> bytes:
    """Avro's bytes."""
    n = len(value) << 1
    return (_LAST[n] if n < _CHUNK else long(len(value))) + value


def text(value: str) -> bytes:
    """Avro's string."""
    return raw(value.encode())


def _boolean(value: object) -> bytes:
    return b"\1" if value else b"\0"


_HELPERS: Final[Mapping[str, object]] = {
    "LAST": _LAST, "LEN": _LAST[::2], "join": b"".join, "long": long, "int32": int32, "raw": raw, "text": text,
    "boolean": _boolean, "double": struct.Struct("<d").pack, "float32": struct.Struct("<f").pack,
}  # fmt: skip
_CALLS: Final = {
    "int": "int32",
    "boolean": "boolean",
    "string": "text",
    "bytes": "raw",
    "long": "long",
    "double": "double",
    "float": "float32",
}


def _one(kind: object, name: str) -> str:
    """Source of one expression that encodes the variable `name`."""
    if isinstance(kind, list):
        null, other = kind
        assert null == "null", "unions are ['null', T] in this catalogue"
        return f"(b'\\0' if {name} is None else b'\\2' + {_one(other, name)})"
    if isinstance(kind, Mapping):
        assert kind["type"] != "array", "arrays are fields, never items or nullable, in this catalogue"
        return _one(kind["type"], name)
    if kind == "int":
        # Most are small: one comparison and one look-up instead of a call.
        return f"(LAST[{name} << 1] if 0 <= {name} < 8192 else int32({name}))"
    if kind == "boolean":
        return f"(b'\\1' if {name} else b'\\0')"
    return f"{_CALLS[cast(str, kind)]}({name})"


def _field(kind: object, name: str) -> tuple[str, list[str]]:
    """A statement to run first ('' for none), and source of the pieces of bytes, for a field."""
    count = f"LEN[len({name})]"
    if kind in ("string", "bytes"):
        # Length and content go into the message as they are, without being joined to each other first.
        return (f"{name} = {name}.encode()" if kind == "string" else ""), [count, name]
    if isinstance(kind, Mapping) and kind["type"] == "array":
        return "", [count, f"*map({_CALLS[kind['items']]}, {name})", f"b'\\0' if {name} else b''"]
    return "", [_one(kind, name)]


_TEMPLATE: Final = """
def encode(row):
    {names}, = row
{first}    try:
        return join((HEAD, {pieces}))
    except IndexError:  # a string or an array longer than the table
        return join((HEAD, {longer}))
"""


def source(avsc: str) -> str:
    """The function's Python source, for those who want to see it."""
    fields = json.loads(avsc)["fields"]
    names = [f"v{i}" for i in range(len(fields))]
    done = [_field(f["type"], name) for f, name in zip(fields, names, strict=True)]
    first = "".join(f"    {statement}\n" for statement, _ in done if statement)
    pieces = ", ".join(piece for _, some in done for piece in some)
    longer = re.sub(r"LEN\[(len\(v\d+\))\]", r"long(\1)", pieces)
    return _TEMPLATE.format(names=", ".join(names), first=first, pieces=pieces, longer=longer)


@lru_cache(maxsize=256)
def compile_encoder(avsc: str, head: bytes) -> Encode:
    """A function from a row (a tuple of the schema's fields in order) to `head` and its Avro bytes. Made once: that takes a
    millisecond."""
    scope: dict[str, object] = {**_HELPERS, "HEAD": head}
    # The source is made of this module's templates and a packaged schema's types; no name or text of a schema gets into it.
    exec(source(avsc), scope)  # noqa: S102
    return cast(Encode, scope["encode"])
