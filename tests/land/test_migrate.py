"""Migrations: applied once, never changed, never from the future."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import analytics
from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.migrate import Migration, Step, migrate, migration, plan
from schemas.errors import Fatal, Refused

ONE = Migration(
    1, "one", "-- a comment; with a semicolon\nCREATE TABLE IF NOT EXISTS a (x Int64) ENGINE = MergeTree ORDER BY x;\n"
)
TWO = Migration(2, "two", "INSERT INTO a SELECT 1;\nINSERT INTO a SELECT 2;\n")


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Database]:
    opened = connect(f"chdb:{tmp_path / 'c'}")
    yield opened
    opened.close()


def test_each_is_applied_once_and_in_order(empty: Database) -> None:
    assert plan(empty, [ONE, TWO]) == [Step("apply", 1, "one"), Step("apply", 2, "two")]
    assert migrate(empty, [ONE]) == [Step("apply", 1, "one")]
    assert migrate(empty, [ONE, TWO]) == [Step("keep", 1, "one"), Step("apply", 2, "two")]
    assert migrate(empty, [ONE, TWO]) == [Step("keep", 1, "one"), Step("keep", 2, "two")]
    assert empty.query("SELECT x FROM a ORDER BY x").rows == [(1,), (2,)]
    assert empty.query("SELECT number, name FROM migrations ORDER BY number").rows == [(1, "one"), (2, "two")]


def test_a_changed_one_is_refused(empty: Database) -> None:
    migrate(empty, [ONE])
    with pytest.raises(Refused, match=r"migration 001 \(one\) was changed"):
        migrate(empty, [Migration(1, "one", ONE.sql + "-- more"), TWO])


def test_a_newer_database_is_refused(empty: Database) -> None:
    migrate(empty, [ONE, TWO])
    with pytest.raises(Refused, match=r"has migration 002 \(two\), which this version does not know"):
        migrate(empty, [ONE])


def test_gaps_and_odd_names_are_refused(empty: Database) -> None:
    with pytest.raises(Refused, match="without gaps"):
        plan(empty, [ONE, Migration(3, "three", "")])
    with pytest.raises(Refused, match="looks like 007_what_it_does"):
        migration("7-ledger.sql", "")


def test_one_that_died_half_way_is_applied_again(empty: Database) -> None:
    broken = Migration(2, "two", "CREATE TABLE IF NOT EXISTS b (x Int64) ENGINE = MergeTree ORDER BY x;\nSELEKT 1;\n")
    with pytest.raises(Fatal):
        migrate(empty, [ONE, broken])
    mended = Migration(2, "two", broken.sql.replace("SELEKT", "SELECT"))
    assert migrate(empty, [ONE, mended]) == [Step("keep", 1, "one"), Step("apply", 2, "two")]


def test_the_packaged_ones_can_be_applied_twice_by_hand(empty: Database) -> None:
    """One that dies before it is remembered is applied again: each statement must bear it."""
    for m in (*analytics.migrations(), *analytics.migrations()):
        for statement in m.statements():
            empty.command(statement)
