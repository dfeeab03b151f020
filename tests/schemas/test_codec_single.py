"""One message at a time: our bytes against two independent writers and one independent reader, and everything that is no message."""

import io
import json
import struct

import avro.io
import avro.schema
import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import PACKAGED, decode, encode, encoder, schema_id_of
from schemas.codec._frame import plain
from schemas.errors import Poison, Where
from schemas.records import ROW_TYPES, JobInterrupted, JobPlaced, NodeTelemetry, Row
from tests.schemas.values import newest, plain_values, rows_of_type, some

TELEMETRY = NodeTelemetry("n1", 1_764_576_000_000, 7, 8, 93.5, 75 << 30, 64_000, 1 << 38, 5200.0)
every_record = pytest.mark.parametrize("record", ROW_TYPES, ids=lambda r: r.__name__)


def by_fastavro(row: Row) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(plain(newest(type(row)).avsc))), row._asdict())
    return out.getvalue()


def reference_schema(record: type[Row]) -> avro.schema.Schema:
    # avro-python3 knows no logical types: it must read and write times as the longs they are.
    return avro.schema.parse(newest(record).avsc)


def by_reference(row: Row) -> bytes:
    out = io.BytesIO()
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in row._asdict().items()}
    avro.io.DatumWriter(reference_schema(type(row))).write(lists, avro.io.BinaryEncoder(out))
    return out.getvalue()


def read_by_reference(record: type[Row], body: bytes) -> dict[str, object]:
    schema = reference_schema(record)
    found: dict[str, object] = avro.io.DatumReader(schema, schema).read(avro.io.BinaryDecoder(io.BytesIO(body)))
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}


@every_record
@some
@given(data=st.data())
def test_bytes_are_those_of_fastavro_and_decode_to_the_same_row(record: type[Row], data: st.DataObject) -> None:
    row = data.draw(rows_of_type(record))
    value = encode(row)
    assert value[0] == 0
    assert struct.unpack(">I", value[1:5])[0] == PACKAGED.newest(record) == schema_id_of(value)
    assert value[5:] == by_fastavro(row)
    again = decode(value)
    assert again == row
    assert type(again) is record


@every_record
def test_the_reference_writes_the_same_bytes_and_reads_the_same_values(record: type[Row]) -> None:
    row = record._make(plain_values(newest(record).avsc).values())
    assert encode(row)[5:] == by_reference(row)
    assert read_by_reference(record, encode(row)[5:]) == row._asdict()


def test_bytes_worked_out_by_hand() -> None:
    # Avro specification: zigzag 7 is 14 (0x0e), -1 is 1; a string is its length and UTF-8; false is 0.
    row = JobInterrupted("d", 7, -1, "", "é", 1, "c", "r", 64, False)
    assert encode(row)[5:] == bytes.fromhex("0264 0e 01 00 04c3a9 02 0263 0272 8001 00")


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("cards_healthy", 1 << 31, OverflowError),
        ("cards_healthy", -(1 << 31) - 1, OverflowError),
        ("counter", 1 << 63, OverflowError),
        ("counter", -(1 << 63) - 1, OverflowError),
        ("counter", 1 << 70, OverflowError),
        ("counter", 1.0, TypeError),
        ("cards_healthy", 1.0, TypeError),
        ("counter", None, TypeError),
        ("node", None, AttributeError),
        ("node", "\ud800", UnicodeEncodeError),
        ("power_watts", "5", struct.error),
    ],
)
def test_values_that_a_field_cannot_hold_are_refused_not_bent(
    field: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode(TELEMETRY._replace(**{field: value}))


def test_arrays_and_text_beyond_the_length_tables() -> None:
    row = JobPlaced._make(plain_values(newest(JobPlaced).avsc).values())
    row = row._replace(reason="ü" * 70_000, nodes=tuple(f"n{i}" for i in range(9_000)), card_masks=tuple(range(9_000)))
    assert encode(row)[5:] == by_fastavro(row)
    assert decode(encode(row)) == row


def test_an_encoder_is_for_one_type() -> None:
    assert encoder(NodeTelemetry)(TELEMETRY) == encode(TELEMETRY)


GOOD = encode(TELEMETRY)


@pytest.mark.parametrize(
    ("value", "code", "says"),
    [
        (None, "tombstone", "no value"),
        (b"", "too_short", "0 bytes"),
        (b"\x00", "too_short", "1 bytes"),
        (b"{}text in place of Avro", "wrong_magic", "0x7b, not 0x00 (text?)"),
        (b"\x01" + GOOD[1:], "wrong_magic", "0x01"),
        (b"\x00\x00\x00\x00\x07" + GOOD[5:], "unknown_schema", "schema id 7 is not in the packaged catalogue"),
        (b"\x00\xff\xff\xff\xff" + GOOD[5:], "unknown_schema", "4294967295"),
        (GOOD[:5], "bad_body", "not a NodeTelemetry version 1"),
        (GOOD[:-1], "bad_body", "version 1: it ends too early"),
        (GOOD + b"\x00", "bad_body", "1 bytes are left over"),
        (GOOD[:5] + b"\x04\xff\xff" + GOOD[8:], "bad_body", "not UTF-8"),
        (GOOD[:5] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "bad_body", "not a NodeTelemetry"),
        (b"\x00" * 2_000_000, "unknown_schema", "schema id 0"),
    ],
)
def test_what_is_no_message_is_poison_with_its_place(value: bytes | None, code: str, says: str) -> None:
    where = Where("resource-telemetry", 3, 17)
    with pytest.raises(Poison) as caught:
        decode(value, where)
    assert caught.value.code == code
    assert says in caught.value.reason
    assert caught.value.where == where


def test_numbers_beyond_their_type_and_odd_booleans_are_poison() -> None:
    # A long where an int belongs has the same form of bytes; only its size tells.
    good = JobInterrupted("d", 7, 5, "s", "j", 1, "c", "r", 64, True)
    value = bytearray(encode(good))
    assert value[-1] == 1
    value[-1] = 2
    with pytest.raises(Poison, match="requeued is neither true nor false"):
        decode(bytes(value))
    at = encode(good).index(b"\x02j") + 2
    wide = encode(good)[:at] + b"\x80\x80\x80\x80\x20" + encode(good)[at + 1 :]
    with pytest.raises(Poison, match="attempt is beyond 32 bits"):
        decode(wide)


def test_other_clients_bytes_are_no_header() -> None:
    assert schema_id_of(None) is None
    assert schema_id_of(b"\x00\x00") is None
    assert schema_id_of(b"hello") is None
