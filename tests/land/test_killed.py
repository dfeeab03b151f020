"""ClickHouse away and ClickHouse killed: the real engine behind HTTP, the real HTTP client, kill -9 in mid-insert.

LOCKSTEP_INSERT_KILLS sets how often (20 here, 500 in `bin/soak`); LOCKSTEP_SEED repeats the moments of a run.
"""

import os
import random
import threading
import time

import pytest

from connectors.clickhouse.client import Database, connect
from connectors.clickhouse.landing import TABLES
from connectors.log.memory import MemoryLog
from schemas.errors import Transient
from streams.metrics import Metrics
from tests.land.ledger import START_MS, entries, land_all, lander, pendings, seqs, write
from tests.support.chdb_front import HttpClickHouse

NAMES = list(TABLES["ledger"].values())
KILLS = int(os.environ.get("LOCKSTEP_INSERT_KILLS", "20"))
BATCH = 3_000
# Kills between two landings that are only timed.
UNDISTURBED = 20
HOUR_MS = 3_600_000


def test_away_for_longer_than_a_batch(log: MemoryLog, front: HttpClickHouse) -> None:
    db = connect(front.url)
    worker = lander(log, lambda: db, max_rows=20)
    write(log, entries(28))
    land_all(worker)
    front.kill()
    write(log, entries(100, 29))
    for _ in range(5):
        with pytest.raises(Transient, match="does not answer"):
            worker.step(START_MS, 0)
        assert not worker.health().ready
        assert "waits for ClickHouse" in worker.health().detail
    front.up()
    land_all(worker)
    assert seqs(db, NAMES) == list(range(1, 129))
    assert worker.health().ready
    db.close()


def test_away_at_the_start(log: MemoryLog, front: HttpClickHouse) -> None:
    front.kill()
    write(log, pendings(5))
    opened: list[Database] = []

    def database() -> Database:
        opened.append(connect(front.url))
        return opened[-1]

    worker = lander(log, database)
    with pytest.raises(Transient, match="does not answer"):
        worker.step(START_MS, 0)
    assert worker.health().detail == "waits for ClickHouse"
    front.up()
    land_all(worker)
    assert seqs(opened[-1], NAMES) == [1, 2, 3, 4, 5]
    opened[-1].close()


@pytest.mark.parametrize("kills", [pytest.param(KILLS, id="kills")])
def test_killed_in_mid_insert(log: MemoryLog, front: HttpClickHouse, kills: int) -> None:
    seed = int(os.environ.get("LOCKSTEP_SEED", str(time.time_ns() % 1_000_000)))
    print(f"reproduce with LOCKSTEP_SEED={seed} LOCKSTEP_INSERT_KILLS={kills}")
    rng = random.Random(seed)
    metrics = Metrics()
    db = connect(front.url)
    worker = lander(log, lambda: db, metrics, max_rows=BATCH)
    made, hit, took_s = 0, 0, 0.0

    def batch() -> None:
        # Each batch lies in several months, which are parts of their own; over and over the same ones, so that parts merge.
        nonlocal made
        write(log, [row._replace(at=START_MS + row.seq % (2 * BATCH) * HOUR_MS) for row in entries(BATCH, made + 1)])
        made += BATCH

    while hit < kills:
        if hit % UNDISTURBED == 0:
            batch()
            began = time.monotonic()
            land_all(worker)
            took_s = time.monotonic() - began
        batch()
        # Somewhere in the inserts of the batch's fourteen tables the engine dies.
        assassin = threading.Timer(rng.uniform(0.0, took_s), front.kill)
        assassin.start()
        try:
            while worker.step(START_MS, 0):
                pass
        except Transient:
            hit += 1
        assassin.join()
        front.up()
        if rng.random() < 0.3:  # and sometimes landing dies with it
            worker = lander(log.open_again(), lambda: db, metrics, max_rows=BATCH)
        land_all(worker)
    land_all(worker)
    found = seqs(db, NAMES)
    assert len(found) == made
    assert found == list(range(1, made + 1))
    print(
        f"{hit} kills hit an insert; {metrics.values.get(('lockstep_gaps_filled_total', ()), 0):.0f} rows were missing and filled"
    )
    db.close()
