"""The homes of the log that processors are tested on: each test with `home` runs on all of them."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.log.embedded import EmbeddedLog
from connectors.log.memory import MemoryLog
from schemas.log import Log
from schemas.topics import TOPICS
from tests.support.fixtures import broker

__all__ = ["Home", "broker", "home"]

_prefixes = itertools.count()


class Home:
    """A place where a log is; `open` gives another client of it, as another process would have."""

    def __init__(self, name: str, opened: Callable[[], Log]) -> None:
        self.name = name
        self._opened = opened
        self._logs: list[Log] = []
        # How long to wait for messages that were just written: a broker takes a moment, a local log none.
        self.wait_ms = 300 if name == "kafka" else 0

    def open(self) -> Log:
        log = self._opened()
        self._logs.append(log)
        return log

    def close(self) -> None:
        for log in self._logs:
            log.close()


@pytest.fixture(params=["memory", "embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if request.param == "memory":
        first = MemoryLog()
        made = Home("memory", first.open_again)
    elif request.param == "embedded":
        made = Home("embedded", lambda: EmbeddedLog(tmp_path / "log"))
    else:
        broker = request.getfixturevalue("broker")
        prefix = f"streams-{os.getpid()}-{next(_prefixes)}."
        from connectors.log.kafka import KafkaLog

        made = Home("kafka", lambda: KafkaLog(broker.bootstrap, prefix=prefix))
    made.open().provision(TOPICS, dry_run=False)
    yield made
    made.close()
