"""ClickHouse tables from Avro schemas: one per ledger entry type, and one for dead letters.

`python -m analytics.ddl` prints the statements; a migration holds them once they are released, and a test holds tables and
newest schemas together. A new field of a record is a new
migration (`ALTER TABLE … ADD COLUMN`), never a change of an old one.
"""

import json
import sys
from typing import Final

from schemas.codec import PACKAGED, snake
from schemas.records import LEDGER_TYPES, DeadLetter, Row

LANDED: Final[tuple[type[Row], ...]] = (*LEDGER_TYPES, DeadLetter)
# Names of few values: stored as numbers, grouped and filtered as such.
_FEW: Final = frozenset(
    {
        "domain", "user", "queue", "site", "region", "city", "data_centre", "row", "rack", "card_model", "interconnect",
        "owner", "state", "kind", "code", "outcome", "level", "adjacency", "src_site", "dst_site", "stage", "topic",
        "version",
    }
)  # fmt: skip
_PLAIN: Final = {
    "string": "String", "bytes": "String", "int": "Int32", "long": "Int64", "float": "Float32", "double": "Float64",
    "boolean": "Bool",
}  # fmt: skip
# Where a message was, and the schema it was written with.
POSITION: Final = (
    ("_topic", "LowCardinality(String)", "Topic the row came from, without the prefix"),
    ("_partition", "Int32", "Partition it came from"),
    ("_offset", "Int64", "Offset it came from"),
    ("_schema_id", "Int32", "Schema id in the message header"),
)
# Tokens kept for each table: landing repeats only its newest ranges, many times fewer.
WINDOW: Final = 1_000


def column_type(name: str, kind: object) -> str:
    """ClickHouse's type of an Avro field."""
    if isinstance(kind, list):
        (inner,) = [k for k in kind if k != "null"]
        return f"Nullable({column_type('', inner)})"
    if isinstance(kind, dict):
        if kind.get("logicalType") == "timestamp-millis":
            return "DateTime64(3, 'UTC')"
        return f"Array({column_type('', kind['items'])})"
    if kind == "string" and name in _FEW:
        return "LowCardinality(String)"
    return _PLAIN[str(kind)]


def columns(record: type[Row]) -> list[tuple[str, str, str]]:
    """Name, type and meaning of each column of a record's table."""
    schema = json.loads(PACKAGED.writer(PACKAGED.newest(record)).avsc)
    return [(f["name"], column_type(f["name"], f["type"]), f["doc"]) for f in schema["fields"]] + list(POSITION)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def create(record: type[Row]) -> str:
    """The table of a record."""
    schema = json.loads(PACKAGED.writer(PACKAGED.newest(record)).avsc)
    found = columns(record)
    lines = [f"  `{name}` {kind} COMMENT {_quoted(doc)}" for name, kind, doc in found]
    names = {name for name, _, _ in found}
    # Landing counts ranges of offsets after an insert of unknown end; people ask for one job, one node, one link.
    lines.append("  INDEX by_offset _offset TYPE minmax GRANULARITY 1")
    lines += [f"  INDEX by_{n} {n} TYPE bloom_filter GRANULARITY 2" for n in ("job", "node", "link") if n in names]
    # A row without a position of the log was not landed by us.
    topic = "dead-letter" if record is DeadLetter else "ledger"
    lines.append(f"  CONSTRAINT whole CHECK _topic = '{topic}' AND _partition >= 0 AND _offset >= 0 AND _schema_id > 0")
    order = "(domain, at, seq)" if "seq" in names else "(topic, at, partition, offset)"
    return (
        f"CREATE TABLE IF NOT EXISTS {snake(record.__name__)} (\n"
        + ",\n".join(lines)
        + f"\n) ENGINE = MergeTree PARTITION BY toYYYYMM(at) ORDER BY {order}\n"
        + f"SETTINGS non_replicated_deduplication_window = {WINDOW}\n"
        + f"COMMENT {_quoted(schema['doc'])};\n"
    )


def main() -> None:
    """Print all tables."""
    sys.stdout.write("\n".join(create(record) for record in LANDED))


if __name__ == "__main__":
    main()
