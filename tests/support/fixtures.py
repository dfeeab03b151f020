"""Fixtures that several test folders import into their `conftest.py`: `from tests.support.fixtures import broker`.

What needs something that this machine lacks is skipped with the reason, or fails when LOCKSTEP_REQUIRE_ALL=1.
"""

import os
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker, NoBroker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker, one for the whole session; tests take topics, groups and slots of their own."""
    try:
        made = Broker.start(tmp_path_factory.mktemp("kafka"))
    except NoBroker as e:
        if os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1":
            pytest.fail(str(e))
        pytest.skip(str(e))
    yield made
    made.stop()
