"""The page `docs/events.md`, made from the topic catalogue and the packaged schemas: `python -m schemas.docs [--check]`.

Called by people after a change to either, and by a test that the page is current. It never describes anything by itself.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

from schemas.codec import PACKAGED
from schemas.pages import keep
from schemas.records import LEDGER_TYPES, ROW_TYPES, Row
from schemas.topics import TOPICS, TopicSpec

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "events.md"
_DAY_MS: Final = 24 * 3600 * 1000
_INTRO: Final = """# Events

Made by `python -m schemas.docs` from `schemas/topics.py` and `schemas/avro`; do not edit.

## How a message looks
A value is in Confluent's wire format: one byte 0, four bytes of schema id (big-endian), then the record in Avro's binary form. Ids are
those below (from the packaged catalogue, `schemas/avro/ids.json`), or the registry's where one is configured. Integers named `*_milli`
count thousandths, `*_bytes` bytes, `*_gbps` 10^9 bits a second, `*_ms` milliseconds; `at` and `*_at` are milliseconds since 1970-01-01 UTC.
'' is "none" or "unknown" for text, as each field says. Names have no prefix here; a deployment's prefix (`lockstep.` by default) is
added to topics.

## How records change
A released version never changes (`schemas/avro/released.json` has its fingerprint). A new version adds or drops fields that have
defaults, nothing else, so that readers and writers of any two versions understand each other. To make one: add
`schemas/avro/<record>/<n>.avsc` and its id in `ids.json` (an id is never used twice), change the row in `schemas/records.py`, then run
`python -m schemas.compat --release`, `python -m tests.schemas.make_fixtures` and `python -m schemas.docs`.
"""


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _anchor(record: type[Row]) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


def _kept(topic: TopicSpec) -> str:
    if topic.cleanup == "compact":
        return "newest of each key"
    return "for ever" if topic.retention_ms < 0 else f"{topic.retention_ms // _DAY_MS} days".replace("1 days", "1 day")


def _type(kind: object) -> str:
    if isinstance(kind, list):
        return " or ".join(_type(k) for k in reversed(kind))
    if isinstance(kind, Mapping):
        if kind["type"] == "array":
            return f"array of {_type(kind['items'])}"
        return "time (long)" if kind.get("logicalType") == "timestamp-millis" else _type(kind["type"])
    return cast(str, kind)


def _topics() -> Iterator[str]:
    yield "## Topics"
    for t in TOPICS:
        yield ""
        yield f"### `{t.name}`"
        yield f"{t.purpose}."
        yield ""
        yield f"- Records: {', '.join(_anchor(r) for r in t.records)}"
        yield f"- Key: {t.key}"
        yield f"- Written by {', '.join(t.writers)}; read by {', '.join(t.readers)}"
        yield f"- {t.partitions} {'partition' if t.partitions == 1 else 'partitions'}; kept: {_kept(t)}; messages up to {t.max_message_bytes >> 20} MiB"


def _record(record: type[Row]) -> Iterator[str]:
    schema_id = PACKAGED.newest(record)
    writer = PACKAGED.writer(schema_id)
    schema = json.loads(writer.avsc)
    where = ", ".join(f"`{t.name}`" for t in TOPICS if record in t.records)
    older = [
        f"version {w.version} is id {i}" for i, w in PACKAGED.all().items() if w.record is record and i != schema_id
    ]
    yield f"### {record.__name__}"
    yield f"{schema['doc']} Topic: {where}. Version {writer.version}, id {schema_id}{''.join('; ' + o for o in older)}."
    yield ""
    yield from _table(
        ("field", "type", "meaning"),
        (
            (
                f"`{f['name']}`",
                _type(f["type"]) + (f", default `{json.dumps(f['default'])}`" if "default" in f else ""),
                f["doc"],
            )
            for f in schema["fields"]
        ),
    )
    yield ""


def page() -> str:
    """The whole page."""
    lines = [_INTRO, *_topics(), "", "## Records: inputs, changes, commands, dead letters"]
    lines += [line for r in ROW_TYPES if r not in LEDGER_TYPES for line in _record(r)]
    lines += ["## Records: ledger entries", "Flat records that all begin `domain`, `seq`, `at`, `source`.", ""]
    lines += [line for r in LEDGER_TYPES for line in _record(r)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is current."""
    return keep(PAGE, page(), "schemas.docs", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
