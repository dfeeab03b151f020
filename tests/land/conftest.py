"""ClickHouse for landing tests: the engine in this process, or behind HTTP where it can be killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import analytics
from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.migrate import migrate
from connectors.log.memory import MemoryLog
from schemas.topics import TOPICS
from tests.support.fixtures import front

__all__ = ["front"]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A migrated database in this process."""
    opened = connect(f"chdb:{tmp_path / 'clickhouse'}")
    try:
        migrate(opened, analytics.migrations())
        yield opened
    finally:
        opened.close()


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    made = MemoryLog()
    made.provision(TOPICS, dry_run=False)
    yield made
    made.close()
