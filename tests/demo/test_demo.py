"""The demo in small: what it leaves behind, what it counts, and what it does to folders that are not its own."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from connectors.log.embedded import EmbeddedLog
from connectors.snapshots import FolderSnapshots
from infra.cli import make_app
from infra.demo import DOMAIN, MARK, SNAPSHOTS, Account, Outcome, Plan, fresh_folder, run
from infra.demo_pipeline import Progress
from schemas.errors import Refused
from streams.engine import inspect
from streams.replay import restore_state


def small(folder: Path, **plan: object) -> tuple[Outcome, list[Progress]]:
    seen: list[Progress] = []
    outcome = run(folder, Plan(**plan), seen.append, version="test", warehouse=None)  # type: ignore[arg-type]
    return outcome, seen


def test_a_short_demo_adds_up_and_leaves_what_commands_need(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    outcome, seen = small(folder, jobs=40, nodes=40)
    assert outcome.account.faults() == []
    assert (outcome.played.submitted, outcome.played.placed, outcome.played.ended) == (40, 40, 40)
    assert outcome.account.logged["JobEnded"] == 40
    assert [p.now for p in seen] == sorted(p.now for p in seen)
    # A fresh process finds the same in the folder.
    log = EmbeddedLog(folder)
    state = restore_state(log, DOMAIN, 0, FolderSnapshots(folder / SNAPSHOTS)).state
    log.close()
    assert state.seq == outcome.account.seq
    assert {j.state for j in inspect.jobs(state)} <= {"finished", "failed"}
    assert len(inspect.nodes(state)) == 40
    assert all(str(folder) in c for c in outcome.next_commands)


def test_too_few_nodes_leave_jobs_waiting_with_their_reason(tmp_path: Path) -> None:
    # The trace's first three nodes have two P100 cards each; among its first 60 jobs one needs four.
    outcome, _ = small(tmp_path / "demo", jobs=60, nodes=3)
    assert outcome.account.faults() == []
    assert outcome.account.logged["JobPending"] > 0
    assert outcome.played.placed == outcome.played.ended
    # Who asks later is told in the time of the trace, not in years until today.
    told = CliRunner().invoke(make_app("jobs"), ["jobs", "--data", str(tmp_path / "demo"), "--state", "pending"])
    assert "As of 2023-" in told.stderr
    assert not re.search(r"\d{4,}d", told.stdout)
    told = CliRunner().invoke(make_app("nodes"), ["nodes", "--data", str(tmp_path / "demo"), "--limit", "1"])
    assert "2 more; --limit 0 shows all" in told.stderr
    for words, count in ((("--limit", "1"), 1), ((), 3)):
        told = CliRunner().invoke(make_app("nodes"), ["nodes", "--data", str(tmp_path / "demo"), "--json", *words])
        assert len(json.loads(told.stdout)) == count


def test_faults_change_the_history_but_not_the_account(tmp_path: Path) -> None:
    outcome, _ = small(tmp_path / "demo", jobs=40, nodes=40, faults=True, seed=3)
    assert outcome.account.faults() == []
    assert outcome.played.ended == 40


def test_a_demo_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    fresh_folder(folder)
    (folder / "left").write_text("from before")
    fresh_folder(folder)
    assert [p.name for p in folder.iterdir()] == [MARK]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(Refused, match="holds something that is not of an earlier demo"):
        fresh_folder(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seq": 4}, "the log has 3 ledger entries, the engine counts 4"),
        ({"submitted": 3}, "3 jobs were submitted, 2 were accepted or refused"),
        ({"landed": {"JobAccepted": 2}}, "JobPlaced: 1 entries in the log, 0 rows in ClickHouse"),
        ({"landed": {"JobAccepted": 3, "JobPlaced": 1}}, "JobAccepted: 2 entries in the log, 3 rows in ClickHouse"),
    ],
)
def test_what_does_not_add_up_is_said(changed: dict[str, object], says: str) -> None:
    right: dict[str, object] = {
        "logged": {"JobAccepted": 2, "JobPlaced": 1},
        "landed": {"JobAccepted": 2, "JobPlaced": 1},
        "seq": 3,
        "submitted": 2,
    }
    assert Account(**right).faults() == []  # type: ignore[arg-type]
    assert Account(**{**right, **changed}).faults() == [says]  # type: ignore[arg-type]
