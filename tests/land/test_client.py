"""The door to ClickHouse: reading only, errors in one sentence, no password in any of them. On both kinds of engine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.clickhouse.client import Database, connect
from schemas.errors import Refused, Transient
from tests.support.fixtures import http_clickhouse


@pytest.fixture(params=["in this process", "over HTTP"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "in this process":
        opened = connect(f"chdb:{tmp_path / 'c'}")
        yield opened
        opened.close()
        return
    started = http_clickhouse(tmp_path / "c")
    try:
        opened = connect(started.url)
        yield opened
        opened.close()
    finally:
        started.stop()


def test_people_may_only_read(either: Database) -> None:
    either.command("CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
    either.command("INSERT INTO t SELECT 1")
    for sql in (
        "INSERT INTO t SELECT 2", "DROP TABLE t", "WITH 1 AS x INSERT INTO t SELECT x", "ALTER TABLE t DELETE WHERE 1",
        "TRUNCATE TABLE t", "SET readonly = 0", "CREATE TABLE u (a Int64) ENGINE = Memory",
    ):  # fmt: skip
        with pytest.raises(Refused):
            either.query(sql, read_only=True)
    assert either.query("SELECT a FROM t", read_only=True).rows == [(1,)]
    assert either.query("SELECT count() FROM system.tables WHERE database = 'lockstep'", read_only=True).rows == [(1,)]
    either.command("INSERT INTO t SELECT 2")  # we may go on writing


def test_wrong_sql_is_refused_in_one_sentence(either: Database) -> None:
    with pytest.raises(Refused, match="nope") as caught:
        either.query("SELECT * FROM nope", read_only=True)
    assert "\n" not in str(caught.value)
    assert "version" not in str(caught.value)


def test_columns_come_without_rows_too(either: Database) -> None:
    found = either.query("SELECT 1 AS one, 'x' AS two WHERE 0", read_only=True)
    assert (found.columns, found.types, found.rows) == (("one", "two"), ("UInt8", "String"), [])


def test_no_more_rows_than_asked_for(either: Database) -> None:
    assert len(either.query("SELECT number FROM numbers(100000)", read_only=True, max_rows=7).rows) == 7


def test_parameters_are_bound(either: Database) -> None:
    assert either.query("SELECT {a:String} AS a", {"a": "x' OR 1 --"}, read_only=True).rows == [("x' OR 1 --",)]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("ftp://host/x", "must look like http://"),
        ("http://", "must look like http://"),
        ("http://host:port/x", "is not one"),
        ("http://host/da-ta", "no name for a ClickHouse database"),
    ],
)
def test_a_wrong_address_is_refused(target: str, told: str) -> None:
    with pytest.raises(Refused, match=told):
        connect(target)


def test_a_password_is_never_told() -> None:
    with pytest.raises(Transient) as caught:
        connect("http://lockstep:s3cret%21@127.0.0.1:9/lockstep")
    assert "s3cret" not in f"{caught.value!r} {caught.value}"
    assert "127.0.0.1:9 does not answer: Connection refused" in str(caught.value)


def test_a_folder_in_use_says_so(tmp_path: Path) -> None:
    opened = connect(f"chdb:{tmp_path / 'c'}")
    try:
        code = f"from connectors.clickhouse.client import connect\nconnect('chdb:{tmp_path / 'c'}')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process has it open" in done.stderr.splitlines()[-1]
    finally:
        opened.close()
