"""Each scenario file says what must come of it. To see a changed ledger: `pytest tests/engine -k NAME -vv`; to write it into
the file after reading it: LOCKSTEP_WRITE_SCENARIOS=1."""

import os
from pathlib import Path

import pytest

from schemas.records import JobEnded, JobInterrupted, JobPending, JobRefused
from streams.engine import reasons
from tests.engine.scenario import load, play

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_scenario(path: Path) -> None:
    scenario = load(path)
    found, _ = play(scenario)
    if os.environ.get("LOCKSTEP_WRITE_SCENARIOS") == "1":
        given = path.read_text().partition("\n---\n")[0].rstrip("\n")
        path.write_text(f"{given}\n---\n{found}")
    assert found == load(path).expected
    assert play(scenario, restarts=True)[0] == found, "restarts change nothing"


def test_every_reason_code_is_declared_and_shown_by_a_scenario() -> None:
    seen: dict[str, set[str]] = {"pending": set(), "interrupted": set(), "failed": set(), "refused": set()}
    for path in FILES:
        for e in play(load(path))[1]:
            if isinstance(e, JobPending):
                seen["pending"].add(e.code)
            elif isinstance(e, JobInterrupted):
                seen["interrupted"].add(e.code)
            elif isinstance(e, JobRefused):
                seen["refused"].add(e.code)
            elif isinstance(e, JobEnded) and e.outcome == "failed":
                seen["failed"].add(e.reason.partition(":")[0])
    assert seen == {
        "pending": set(reasons.PENDING),
        "interrupted": set(reasons.INTERRUPTED),
        "failed": set(reasons.FAILED),
        "refused": set(reasons.REFUSED),
    }
