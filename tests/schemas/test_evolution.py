"""The rule of evolution: releases are frozen, versions read each other, and bytes of every release decode for ever."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import avro.io
import avro.schema
import fastavro
import pytest

import schemas.codec._ids
from schemas.codec import PACKAGED, Writer, decode, decode_columns, decode_rows, encode
from schemas.codec._resolve import resolution
from schemas.compat import check, fingerprint, problems, released
from schemas.errors import Poison
from schemas.messages import Block
from schemas.records import ROW_TYPES, NodeTelemetry, Row
from tests.schemas.make_fixtures import FOLDER, name_of
from tests.schemas.values import newest, plain_values

NEWEST = newest(NodeTelemetry).avsc


def test_the_catalogue_keeps_the_rule() -> None:
    assert check() == []


def test_the_command_says_so_too() -> None:
    done = subprocess.run([sys.executable, "-m", "schemas.compat"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_changed_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    all_ = PACKAGED.all()
    schema = json.loads(NEWEST)
    schema["fields"][3]["type"] = "long"
    all_[1003] = Writer(NodeTelemetry, 1, json.dumps(schema))
    monkeypatch.setattr(PACKAGED, "_writers", all_)
    assert check() == ["NodeTelemetry/1 is released and was changed: put it back, and make a new version"]
    del all_[1003]
    assert "NodeTelemetry/1 is released and is gone from the catalogue" in check()


def test_ids_are_given_once_and_kept() -> None:
    """The numbers are in messages that are kept for ever; this is their first copy."""
    ids = {i: f"{w.record.__name__}/{w.version}" for i, w in PACKAGED.all().items()}
    first = [t.__name__ for t in ROW_TYPES]
    for place, record in enumerate(first[:28]):
        assert ids[1001 + place] == f"{record}/1"
    assert len(set(ids.values())) == len(ids)
    table = json.loads(Path(schemas.codec._ids.__file__).parents[1].joinpath("avro", "ids.json").read_text("utf-8"))
    assert len({i for versions in table.values() for _, i in versions}) == sum(len(v) for v in table.values())


@pytest.mark.parametrize("record", ROW_TYPES, ids=lambda r: r.__name__)
def test_rows_agree_with_their_newest_schema(record: type[Row]) -> None:
    schema = json.loads(newest(record).avsc)
    assert (schema["namespace"], schema["name"]) == ("lockstep", record.__name__)
    assert [f["name"] for f in schema["fields"]] == list(record._fields)
    python = {
        "string": "str",
        "bytes": "bytes",
        "int": "int",
        "long": "int",
        "double": "float",
        "boolean": "bool",
        "null": "None",
    }

    def hint(kind: object) -> str:
        if isinstance(kind, list):
            return " | ".join(hint(k) for k in reversed(kind))
        if isinstance(kind, dict):
            return f"tuple[{hint(kind['items'])}, ...]" if kind["type"] == "array" else hint(kind["type"])
        return python[str(kind)]

    hints = {
        k: v.__name__ if isinstance(v, type) and "[" not in str(v) else str(v)
        for k, v in record.__annotations__.items()
    }
    assert hints == {f["name"]: hint(f["type"]) for f in schema["fields"]}


@pytest.mark.parametrize("record", ROW_TYPES, ids=lambda r: r.__name__)
def test_every_field_says_what_it_is(record: type[Row]) -> None:
    schema = json.loads(newest(record).avsc)
    assert schema["doc"] == record.__doc__
    assert all(f.get("doc") for f in schema["fields"])
    times = [f for f in schema["fields"] if f["name"] == "at" or f["name"].endswith("_at")]
    assert all(f["type"] == {"type": "long", "logicalType": "timestamp-millis"} for f in times)


def bytes_of(value: object) -> object:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.bin")), ids=lambda p: p.stem)
def test_old_bytes_decode_for_ever(path: Path) -> None:
    value = path.read_bytes()
    wanted = {k: bytes_of(v) for k, v in json.loads(path.with_suffix(".json").read_text("utf-8")).items()}
    row = decode(value)
    writer = PACKAGED.writer(int.from_bytes(value[1:5], "big"))
    assert name_of(type(row).__name__, writer.version) == path.stem
    assert {k: v for k, v in row._asdict().items() if k in wanted} == {
        k: v for k, v in wanted.items() if k in row._fields
    }
    assert decode_rows(Block("t", 0, [value] * 40, 40)).rows == [(i, row) for i in range(40)]
    # The reference, which shares nothing with us, agrees.
    schema = avro.schema.parse(writer.avsc)
    read = avro.io.DatumReader(schema, schema).read(avro.io.BinaryDecoder(io.BytesIO(value[5:])))
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()} == wanted


def test_every_release_has_its_old_bytes() -> None:
    assert {p.stem for p in FOLDER.glob("*.bin")} == {name.replace("/", "-") for name in released()}


def change(edit: Callable[[dict[str, object]], object]) -> str:
    schema = json.loads(NEWEST)
    edit(schema)
    return json.dumps(schema)


def parsed(avsc: str) -> object:
    """fastavro's form, times as plain numbers, defaults kept."""
    schema = json.loads(avsc)
    for f in schema["fields"]:
        if isinstance(f["type"], dict) and "logicalType" in f["type"]:
            f["type"] = f["type"]["type"]
    return fastavro.parse_schema(schema)


def field(name: str, kind: object, **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, "doc": "x", **more}


def added(*fields: dict[str, object]) -> str:
    return change(lambda s: s["fields"].extend(fields))  # type: ignore[attr-defined]


def retyped(name: str, kind: object) -> str:
    schema = json.loads(NEWEST)
    next(f for f in schema["fields"] if f["name"] == name)["type"] = kind
    return json.dumps(schema)


WITH_DEFAULT = added(field("fan_rpm", "int", default=0))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (NEWEST, NEWEST, ""),
        (NEWEST, WITH_DEFAULT, ""),
        (WITH_DEFAULT, NEWEST, ""),
        (NEWEST, change(lambda s: s.update(doc="other words")), ""),
        (NEWEST, change(lambda s: s["fields"].reverse()), ""),  # type: ignore[attr-defined]
        (NEWEST, added(field("tags", {"type": "array", "items": "string"}, default=[])), ""),
        (NEWEST, added(field("raw", ["null", "bytes"], default=None)), ""),
        (NEWEST, added(field("fan_rpm", "int")), "fan_rpm is new and has no default"),
        (NEWEST, change(lambda s: s["fields"].pop()), "power_watts is gone"),  # type: ignore[attr-defined]
        (NEWEST, retyped("cards_healthy", "long"), "cards_healthy changed its type"),
        (NEWEST, retyped("counter", "int"), "counter changed its type"),
        (NEWEST, retyped("at", "long"), "at changed its type"),
        (NEWEST, retyped("node", ["null", "string"]), "node changed its type"),
        (NEWEST, change(lambda s: s.update(name="Other")), "name changed"),
        (NEWEST, change(lambda s: s.update(namespace="other")), "namespace changed"),
        (NEWEST, added(field("fan_rpm", "int", default="0")), "the default of fan_rpm"),
        (NEWEST, added(field("fan_rpm", "int", default=1 << 31)), "the default of fan_rpm"),
        (NEWEST, added(field("on", "boolean", default=0)), "the default of on"),
        (NEWEST, added(field("raw", ["null", "bytes"], default="x")), "the default of raw"),
        (WITH_DEFAULT, added(field("fan_rpm", "int")), "fan_rpm lost its default"),
    ],
)  # fmt: skip
def test_what_may_follow_a_release(old: str, new: str, says: str) -> None:
    found = problems(old, new)
    assert (not found) if not says else (len(found) == 1 and says in found[0])
    if not says:  # fastavro, asked to read each with the other's schema, agrees
        for writer, reader in ((old, new), (new, old)):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed(writer), plain_values(writer) | {"tags": []})
            out.seek(0)
            fastavro.schemaless_reader(out, parsed(writer), parsed(reader))


def test_layout_and_words_are_not_part_of_a_fingerprint() -> None:
    assert fingerprint(json.dumps(json.loads(NEWEST))) == fingerprint(NEWEST)
    assert fingerprint(change(lambda s: s.update(doc="x"))) == fingerprint(NEWEST)
    assert fingerprint(WITH_DEFAULT) != fingerprint(added(field("fan_rpm", "int", default=1)))


class TwoVersions:
    """A catalogue in which telemetry's newest version is the packaged one, and its old one lacked some fields and had another."""

    def __init__(self) -> None:
        old = json.loads(NEWEST)
        old["fields"] = [field("gone", "string", default="")] + [
            f for f in old["fields"] if f["name"] not in {"power_watts", "labels"}
        ]
        new = json.loads(NEWEST)
        next(f for f in new["fields"] if f["name"] == "power_watts")["default"] = -1.0
        self.old, self.new = json.dumps(old), json.dumps(new)

    def writer(self, schema_id: int) -> Writer:
        if schema_id not in (1, 2):
            raise Poison("unknown_schema", "no")
        return Writer(NodeTelemetry, schema_id, self.old if schema_id == 1 else self.new)

    def newest(self, record: type[Row]) -> int:
        assert record is NodeTelemetry
        return 2


def written_long_ago(ids: TwoVersions, values: dict[str, object]) -> bytes:
    out = io.BytesIO()
    out.write(b"\x00\x00\x00\x00\x01")
    fastavro.schemaless_writer(out, parsed(ids.old), {"gone": "old text", **values})
    return out.getvalue()


def test_old_versions_become_rows_of_today_with_defaults() -> None:
    ids = TwoVersions()
    assert problems(ids.old, ids.new) == []
    today = NodeTelemetry("n", 1, 2, 8, 3.0, 4, 5, 6, 7.0)
    values: list[bytes | None] = []
    wanted: list[tuple[int, Row]] = []
    for i in range(100):
        row = today._replace(counter=i)
        if i % 3:
            values.append(encode(row, ids))
            wanted.append((i, row))
        else:
            values.append(written_long_ago(ids, row._asdict()))
            wanted.append((i, row._replace(power_watts=-1.0)))
    assert [decode(v, ids=ids) for v in values] == [r for _, r in wanted]
    assert decode_rows(Block("t", 0, values, 100), ids).rows == wanted
    assert decode_rows(Block("t", 0, values[:9], 100), ids).rows == wanted[:9]
    columns, poison = decode_columns(Block("t", 0, values, 100), ids)
    assert not poison
    assert [c.frame.columns for c in columns] == [list(NodeTelemetry._fields)] * 2
    assert {str(c.frame.schema) for c in columns} == {str(columns[0].frame.schema)}
    assert sorted(c.frame["power_watts"].unique().to_list() for c in columns) == [[-1.0], [7.0]]


def test_defaults_of_every_kind_reach_rows_and_columns() -> None:
    import polars as pl

    extra = [
        field("s", "string", default="é"), field("b", "bytes", default="\xff"), field("i", "int", default=-1),
        field("yes", "boolean", default=True), field("no", "boolean", default=False),
        field("a", {"type": "array", "items": "int"}, default=[]), field("n", ["null", "int"], default=None),
        field("t", {"type": "long", "logicalType": "timestamp-millis"}, default=0),
    ]  # fmt: skip
    plan = resolution(NEWEST, added(*extra))
    old = plain_values(NEWEST)
    assert plan.row_values(old)[len(old) :] == ["é", b"\xff", -1, True, False, (), None, 0]
    frame = plan.frame(pl.DataFrame([old]))
    assert frame.row(0)[len(old) :] == ("é", b"\xff", -1, True, False, [], None, 0)
    assert [str(t) for t in frame.dtypes[len(old) :]] == [
        "String",
        "Binary",
        "Int32",
        "Boolean",
        "Boolean",
        "List(Int32)",
        "Int32",
        "Int64",
    ]


def test_a_field_without_a_default_is_no_guess() -> None:
    with pytest.raises(Poison, match="has no fan_rpm"):
        resolution(NEWEST, added(field("fan_rpm", "int")))
