"""A log copied while Lockstep runs, and a ClickHouse that is made again from its ledger, whole and once."""

import sqlite3
from pathlib import Path

from tests.commands.conftest import Lockstep

LEDGER = "SELECT count() AS n, uniqExact(seq) AS seqs, max(seq) AS newest FROM ledger"


def _copy(data: Path, to: Path) -> None:
    """What `sqlite3 log.sqlite ".backup FILE"` does."""
    to.mkdir()
    source, target = sqlite3.connect(data / "log.sqlite"), sqlite3.connect(to / "log.sqlite")
    source.backup(target)
    source.close()
    target.close()


def test_a_copied_log_is_enough(lockstep: Lockstep, tmp_path: Path) -> None:
    lockstep.start("up", "--simulate")
    lockstep.until("nodes", lambda: len(lockstep("nodes", "--json").json) == 48)
    job = lockstep("submit", "--json", "--", "true").json["job"]
    landed = f"SELECT job FROM job_placed WHERE job = '{job}'"
    lockstep.until("landed", lambda: lockstep("sql", "--json", landed).json)
    _copy(lockstep.data, tmp_path / "copy")
    refused = lockstep("rebuild")
    assert refused.code == 2
    assert "is running already" in refused.err
    assert lockstep.stop() == 0
    held = lockstep("rebuild")
    assert held.code == 2
    assert "holds rows already" in held.err
    assert len(held.err.splitlines()) == 1

    restored = Lockstep(tmp_path / "copy")
    planned = restored("rebuild", "--dry-run", "--json").json
    assert planned["ledger"] >= 50  # 48 nodes, the engine's start, the job
    assert restored("sql", "--json", LEDGER).json[0]["n"] == 0
    assert restored("rebuild").code == 0
    try:
        restored.start()
        restored.until("landed anew", lambda: restored("sql", "--json", LEDGER).json[0]["newest"] > planned["ledger"])
        assert restored.stop() == 0
        (after,) = restored("sql", "--json", LEDGER).json
        assert (
            after["n"] == after["seqs"] == after["newest"] > planned["ledger"]
        )  # it went on: another start is a fact, too
        assert restored("sql", "--json", landed).json
    finally:
        restored.end()
