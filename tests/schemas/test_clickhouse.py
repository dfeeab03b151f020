"""Every record is read by ClickHouse's own Avro reader too, with its values, by the schema as it stands in the package."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.clickhouse.client import Database, connect
from schemas.codec import encode
from schemas.codec._frame import frame_bodies
from schemas.codec._single import HEADER_BYTES
from schemas.records import ROW_TYPES, Row
from tests.schemas.values import from_clickhouse, newest, plain_values


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = connect(f"chdb:{tmp_path_factory.mktemp('clickhouse') / 'data'}")
    yield opened
    opened.close()


def _shown(value: object) -> object:
    """As the client shows it: bytes as text, or in hexadecimal when they are none."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


@pytest.mark.parametrize("record", ROW_TYPES, ids=lambda r: r.__name__)
def test_clickhouse_reads_the_same_values(record: type[Row], db: Database, tmp_path: Path) -> None:
    avsc = newest(record).avsc
    row = record(**plain_values(avsc))
    file = tmp_path / "one.avro"
    file.write_bytes(frame_bodies([encode(row)[HEADER_BYTES:]] * 2, avsc, 2))
    found = db.query(f"SELECT * FROM file('{file}', 'Avro')")
    assert found.columns == tuple(f["name"] for f in json.loads(avsc)["fields"])
    assert [tuple(map(from_clickhouse, r)) for r in found.rows] == [tuple(map(_shown, row))] * 2
