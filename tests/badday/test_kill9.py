"""Bad day 1: kill -9 of observe, decide and land at random moments, 50 times in one run, on Kafka and on the embedded log."""

import os
import random
import time
from pathlib import Path

import pytest

from connectors.log.embedded import EmbeddedLog
from connectors.log.kafka import KafkaLog
from tests.badday.day import bad_day
from tests.badday.roles import ROLES, RoleProcess
from tests.support.broker import Broker
from tests.support.chdb_front import HttpClickHouse

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "50"))


def _kill(rng: random.Random, roles: dict[str, RoleProcess]) -> None:
    time.sleep(rng.uniform(0.05, 1.2))  # the random moment
    victim = roles[rng.choice(ROLES)]
    victim.kill()
    victim.start()


def test_on_the_embedded_log(front: HttpClickHouse, tmp_path: Path) -> None:
    env = {"LOCKSTEP_DATA_DIR": str(tmp_path / "data")}
    log = EmbeddedLog(tmp_path / "data")
    try:
        bad_day(log, env, front, tmp_path, KILLS, _kill)
    finally:
        log.close()


@pytest.mark.kafka
def test_on_kafka(broker: Broker, front: HttpClickHouse, tmp_path: Path) -> None:
    prefix = f"kill9-{time.time_ns()}."
    bootstrap = broker.bootstrap
    env = {
        "LOCKSTEP_DATA_DIR": str(tmp_path / "data"), "LOCKSTEP_KAFKA": bootstrap, "LOCKSTEP_TOPIC_PREFIX": prefix,
    }  # fmt: skip
    log = KafkaLog(bootstrap, prefix=prefix)
    try:
        bad_day(log, env, front, tmp_path, KILLS, _kill)
    finally:
        log.close()
