"""From the schema a message was written with to the row type of today.

Releases are fully compatible (`schemas.compat`, tested), so the only differences are whole fields: one that the writer did not know
takes the default that today's schema gives it, one that is gone is dropped. Used by `_single` and `_bulk`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, cast

import polars as pl

from schemas.errors import Poison

_INT_MIN: Final = -(1 << 31)
_INT_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a row of today is made. `fields` are today's; `known` those of them the writer had; `defaults` the others'."""

    same: bool
    fields: tuple[str, ...]
    defaults: Mapping[str, object]
    dtypes: Mapping[str, pl.DataType]
    special: tuple[tuple[int, Callable[[object, str], object]], ...]

    def row_values(self, decoded: Mapping[str, object]) -> Sequence[object]:
        """Values of the wide form in today's order, as rows hold them. Raises `ValueError` for what a type does not have."""
        if self.same and not self.special:
            return tuple(decoded.values())
        values = list(decoded.values()) if self.same else [decoded.get(f, self.defaults.get(f)) for f in self.fields]
        for i, fix in self.special:
            values[i] = fix(values[i], self.fields[i])
        return values

    def frame(self, written: pl.DataFrame) -> pl.DataFrame:
        """Columns of today in today's order."""
        if self.same:
            return written
        have = set(written.columns)
        return written.select(
            pl.col(f) if f in have else pl.lit(self._column_default(f), dtype=self.dtypes[f]).alias(f)
            for f in self.fields
        )

    def _column_default(self, field: str) -> object:
        value = self.defaults[field]
        return pl.Series([list(value)], dtype=self.dtypes[field]) if isinstance(value, tuple) else value


def _bare(kind: object) -> object:
    """A type without its logical type."""
    return kind["type"] if isinstance(kind, Mapping) and "logicalType" in kind else kind


def _boolean(value: object, field: str) -> object:
    """0 and 1 are 0 and -1 in the wide form; a default is a bool already."""
    if value is not True and value not in (0, -1):
        raise ValueError(f"{field} is neither true nor false")
    return bool(value)


def _int(value: object, field: str) -> object:
    if value is not None and not _INT_MIN <= value <= _INT_MAX:  # type: ignore[operator]
        raise ValueError(f"{field} is beyond 32 bits")
    return value


def _ints(value: object, field: str) -> object:
    return tuple([_int(v, field) for v in value])  # type: ignore[attr-defined]


def _array(value: object, _: str) -> object:
    return tuple(value)  # type: ignore[arg-type]


def _special(kind: object) -> Callable[[object, str], object] | None:
    """What must be looked at or changed on the way from the wide form to a row; None: nothing."""
    match _bare(kind):
        case "boolean":
            return _boolean
        case "int" | ["null", "int"]:
            return _int
        case {"type": "array", "items": "int"}:
            return _ints
        case {"type": "array"}:
            return _array
    return None


def _is_array(kind: object) -> bool:
    return isinstance(kind, Mapping) and kind["type"] == "array"


def _dtype(kind: object) -> pl.DataType:
    plain: dict[str, pl.DataType] = {
        "string": pl.String(), "bytes": pl.Binary(), "int": pl.Int32(), "long": pl.Int64(), "float": pl.Float32(),
        "double": pl.Float64(), "boolean": pl.Boolean(),
    }  # fmt: skip
    kind = _bare(kind)
    if isinstance(kind, list):
        return _dtype(next(k for k in kind if k != "null"))
    if isinstance(kind, Mapping):
        return pl.List(_dtype(kind["items"]))
    return plain[cast(str, kind)]


def default_of(field: Mapping[str, object]) -> object:
    """A field's default as a row holds it: bytes are written as ISO 8859-1 text in a schema, arrays are tuples in rows."""
    value, kind = field["default"], _bare(field["type"])
    if isinstance(kind, list):
        kind = kind[0]  # Avro: a union's default is of its first type
    if kind == "bytes":
        return cast(str, value).encode("latin-1")
    return tuple(cast(list[object], value)) if _is_array(kind) else value


@lru_cache(maxsize=256)
def resolution(writer: str, reader: str) -> Resolution:
    """From one schema's text to another's. Raises `Poison` when a field would have no value."""
    written = {f["name"] for f in json.loads(writer)["fields"]}
    order = [f["name"] for f in json.loads(writer)["fields"]]
    fields = json.loads(reader)["fields"]
    missing = [f for f in fields if f["name"] not in written]
    lost = [f["name"] for f in missing if "default" not in f]
    if lost:
        raise Poison(
            "incompatible_schema", f"the writer's schema has no {', '.join(lost)}, and today's gives no default"
        )
    names = tuple(f["name"] for f in fields)
    return Resolution(
        same=list(names) == order,
        fields=names,
        defaults={f["name"]: default_of(f) for f in missing},
        dtypes={f["name"]: _dtype(f["type"]) for f in missing},
        special=tuple((i, fix) for i, f in enumerate(fields) if (fix := _special(f["type"])) is not None),
    )
