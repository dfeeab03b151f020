"""What the type checker of somebody who uses the SDK says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from connectors.log.embedded import EmbeddedLog

README = Path(__file__).resolve().parents[2] / "README.md"


def checked(tmp_path: Path, code: str) -> tuple[str, int]:
    (tmp_path / "theirs.py").write_text(code)
    said, errors, status = api.run(["--strict", "--config-file", "", str(tmp_path / "theirs.py")])
    assert not errors
    return said, status


def test_the_example_of_the_readme_is_well_typed_and_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    said, status = checked(tmp_path, example)
    assert status == 0, said
    env = {**os.environ, "LOCKSTEP_DATA_DIR": str(tmp_path / "data")}
    subprocess.run([sys.executable, str(tmp_path / "theirs.py")], env=env, check=True, timeout=60)
    log = EmbeddedLog(tmp_path / "data")
    sent = {topic: sum(s.end for s in log.span(topic).values()) for topic in ("resources", "resource-telemetry")}
    log.close()
    assert sent == {"resources": 1, "resource-telemetry": 1}


@pytest.mark.parametrize(
    "wrong", ['NodeTelemetry(node="n", counter="1", cards_healthy=8)', 'NodeTelemetry(node="n", counter=1, cards=8)']
)
def test_a_mistake_is_found_before_it_runs(tmp_path: Path, wrong: str) -> None:
    said, status = checked(tmp_path, f"from connectors.sdk import NodeTelemetry\n\n{wrong}\n")
    assert status == 1
    assert "error:" in said
