"""ClickHouse is lost and comes back from the ledger, whole and once."""

import shutil

from tests.commands.conftest import Lockstep

LEDGER = "SELECT count() AS n, uniqExact(seq) AS seqs, max(seq) AS newest FROM ledger"


def test_clickhouse_comes_back_from_the_ledger(lockstep: Lockstep) -> None:
    lockstep.start("up", "--simulate")
    lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48)
    job = lockstep("submit", "--json", "--", "true").json["job"]
    landed = f"SELECT job FROM job_placed WHERE job = '{job}'"
    lockstep.until("landed", lambda: lockstep("sql", "--json", landed).json)
    refused = lockstep("rebuild")
    assert refused.code == 2
    assert "is running already" in refused.err
    assert lockstep.stop() == 0
    (before,) = lockstep("sql", "--json", LEDGER).json
    assert before["n"] == before["seqs"] == before["newest"] >= 50

    held = lockstep("rebuild")
    assert held.code == 2
    assert "holds rows already" in held.err
    assert len(held.err.splitlines()) == 1

    shutil.rmtree(lockstep.data / "clickhouse")
    planned = lockstep("rebuild", "--dry-run", "--json")
    assert planned.json["ledger"] == before["n"]
    assert lockstep("sql", "--json", LEDGER).json[0]["n"] == 0
    assert lockstep("rebuild").code == 0
    lockstep.start()
    lockstep.until("landed anew", lambda: lockstep("sql", "--json", LEDGER).json[0]["newest"] >= before["newest"])
    assert lockstep.stop() == 0
    (after,) = lockstep("sql", "--json", LEDGER).json
    assert after["n"] == after["seqs"] == after["newest"] > before["newest"]
    assert lockstep("sql", "--json", landed).json
