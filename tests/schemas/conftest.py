"""A real schema registry for the tests that need one."""

import os
from collections.abc import Iterator

import pytest

from tests.support.registry import NoRegistry, Registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    try:
        made = Registry.start(tmp_path_factory.mktemp("registry"))
    except NoRegistry as e:
        if os.environ.get("LOCKSTEP_REQUIRE_ALL") == "1":
            pytest.fail(str(e))
        pytest.skip(str(e))
    yield made
    made.stop()
