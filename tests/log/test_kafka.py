"""The log on Kafka, against a real broker: the whole contract."""

import os
from collections.abc import Iterator

import pytest

from connectors.log.kafka import KafkaLog
from tests.log.contract import LogContract
from tests.log.home import Home
from tests.support.broker import Broker

pytestmark = pytest.mark.kafka
# Silent members lose their partitions within seconds; the session must not be longer than that either.
IMPATIENT = {"consumer.max.poll.interval.ms": "1500", "consumer.session.timeout.ms": "1500"}


@pytest.fixture
def home(broker: Broker) -> Iterator[Home]:
    prefix = f"contract-{os.getpid()}."
    made = Home(
        "kafka",
        lambda: KafkaLog(broker.bootstrap, prefix),
        # Rebalances take heartbeats, and the machine that runs the tests may be busy.
        settle_ms=40_000,
        quiet_ms=400,
        impatient=lambda: KafkaLog(broker.bootstrap, prefix, IMPATIENT),
    )
    yield made
    made.close()


class TestKafka(LogContract):
    """Every sentence of the protocol."""
