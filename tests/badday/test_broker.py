"""Bad day 3: the broker goes away amid the transactions of all roles, killed or politely, and comes back.

The roles live through it: none is restarted, and at the end the account is in order.
"""

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from connectors.log.kafka import KafkaLog
from tests.badday.day import bad_day
from tests.badday.roles import RoleProcess
from tests.support.broker import Broker
from tests.support.chdb_front import HttpClickHouse

BOUNCES = int(os.environ.get("LOCKSTEP_BOUNCES", "2"))


@pytest.mark.kafka
def test_a_broker_that_comes_and_goes(mortal_broker: Broker, front: HttpClickHouse, tmp_path: Path) -> None:
    prefix = f"bounce-{time.time_ns()}."
    bootstrap = mortal_broker.bootstrap
    env = {
        "LOCKSTEP_DATA_DIR": str(tmp_path / "data"), "LOCKSTEP_KAFKA": bootstrap, "LOCKSTEP_TOPIC_PREFIX": prefix,
    }  # fmt: skip
    ways = itertools.cycle([mortal_broker.kill, mortal_broker.stop])

    def bounce(rng: random.Random, _roles: dict[str, RoleProcess]) -> None:
        time.sleep(rng.uniform(3.0, 5.0))  # the roles are at work
        next(ways)()
        time.sleep(rng.uniform(0.0, 2.0))
        mortal_broker.restart()

    log = KafkaLog(bootstrap, prefix=prefix)
    try:
        bad_day(log, env, front, tmp_path, BOUNCES, bounce)
    finally:
        log.close()
