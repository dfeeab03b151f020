"""Fixtures that several test folders import into their `conftest.py`: `from tests.support.fixtures import broker`.

What needs something that this machine lacks is skipped with the reason, or fails when LOCKSTEP_REQUIRE_ALL=1.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import analytics
from connectors.clickhouse.client import connect
from connectors.clickhouse.migrate import migrate
from tests.support.broker import Broker, NoBroker
from tests.support.chdb_front import ChdbFront, HttpClickHouse
from tests.support.clickhouse_container import ClickHouseContainer, wanted

# Every folder that imports the fixture has its own instance of it; the broker behind them is one.
_running: list[Broker] = []
_users = 0


def started(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """A running broker of one's own."""
    try:
        return Broker.start(tmp_path_factory.mktemp("kafka"))
    except NoBroker as e:
        if os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1":
            pytest.fail(str(e))
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker, one for the whole session; tests take topics, groups and slots of their own, and let it live."""
    global _users  # noqa: PLW0603 - see above
    if not _running:
        _running.append(started(tmp_path_factory))
    _users += 1
    yield _running[0]
    _users -= 1
    if not _users:
        _running.pop().stop()


@pytest.fixture(scope="module")
def mortal_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for tests that kill it; they leave it running."""
    made = started(tmp_path_factory)
    yield made
    made.stop()


def http_clickhouse(folder: Path) -> HttpClickHouse:
    """An empty ClickHouse over HTTP: a server in a container where there is one, else chDB behind its front."""
    return ClickHouseContainer.start() if wanted() else ChdbFront.start(folder)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[HttpClickHouse]:
    """A migrated ClickHouse over HTTP that tests may kill."""
    started = http_clickhouse(tmp_path / "front")
    try:
        opened = connect(started.url)
        migrate(opened, analytics.migrations())
        opened.close()
        yield started
    finally:
        started.stop()
