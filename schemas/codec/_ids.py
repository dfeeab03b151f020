"""Which schema an id in a message's header means.

Without a registry the ids come from the packaged catalogue: `schemas/avro/ids.json` gives each released
(record, version) a number for ever. With a registry `connectors.registry` offers the same protocol.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Protocol

from schemas.errors import Poison
from schemas.records import ROW_TYPES, Row

RECORDS: Final[dict[str, type[Row]]] = {t.__name__: t for t in ROW_TYPES}


@dataclass(frozen=True, slots=True)
class Writer:
    """The schema a message was written with: its row type, version, and Avro text."""

    record: type[Row]
    version: int
    avsc: str


class SchemaIds(Protocol):
    """id to writer schema, and row type to the id to write with. Both are cached by the implementation."""

    def writer(self, schema_id: int) -> Writer:
        """Raises `Poison` (code `unknown_schema`) for an id nobody knows, `Transient` when the answer is out of reach."""
        ...

    def newest(self, record: type[Row]) -> int: ...


def snake(name: str) -> str:
    """`NodeTelemetry` to `node_telemetry`: the folder of a record's schemas, the table it lands in."""
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


@cache
def avsc(record: str, version: int) -> str:
    """Text of a packaged schema."""
    return files("schemas").joinpath("avro", snake(record), f"{version}.avsc").read_text("utf-8")


class PackagedIds:
    """Ids of the packaged catalogue."""

    def __init__(self) -> None:
        table: dict[str, list[list[object]]] = json.loads(
            files("schemas").joinpath("avro", "ids.json").read_text("utf-8")
        )
        self._writers: dict[int, Writer] = {}
        self._newest: dict[type[Row], int] = {}
        newest_version: dict[type[Row], int] = {}
        for name, versions in table.items():
            record = RECORDS[name]
            for version, schema_id in versions:
                assert isinstance(version, int)
                assert isinstance(schema_id, int)
                self._writers[schema_id] = Writer(record, version, avsc(name, version))
                if version > newest_version.get(record, 0):
                    newest_version[record] = version
                    self._newest[record] = schema_id

    def writer(self, schema_id: int) -> Writer:
        try:
            return self._writers[schema_id]
        except KeyError:
            known = f"{min(self._writers)} to {max(self._writers)}"
            raise Poison(
                "unknown_schema", f"schema id {schema_id} is not in the packaged catalogue (it knows {known})"
            ) from None

    def newest(self, record: type[Row]) -> int:
        return self._newest[record]

    def all(self) -> dict[int, Writer]:
        """Every released schema by id."""
        return dict(self._writers)


PACKAGED: Final = PackagedIds()


class IdsInUse:
    """The ids this process reads and writes with: the packaged ones, until `use` names others at its start."""

    def __init__(self) -> None:
        self.ids: SchemaIds = PACKAGED

    def writer(self, schema_id: int) -> Writer:
        return self.ids.writer(schema_id)

    def newest(self, record: type[Row]) -> int:
        return self.ids.newest(record)


IN_USE: Final = IdsInUse()
