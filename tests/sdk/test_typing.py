"""What the type checker of somebody who uses the SDK says."""

import re
from pathlib import Path

import pytest
from mypy import api

README = Path(__file__).resolve().parents[2] / "README.md"
ABOVE = """
from collections.abc import Iterator
from typing import NamedTuple

class Sample(NamedTuple):
    cards: int
    watts: float

def read_my_sensors() -> Iterator[Sample]:
    yield Sample(8, 5200.0)

"""


def checked(tmp_path: Path, code: str) -> tuple[str, int]:
    (tmp_path / "theirs.py").write_text(code)
    said, errors, status = api.run(["--strict", "--config-file", "", str(tmp_path / "theirs.py")])
    assert not errors
    return said, status


def test_the_example_of_the_readme_is_well_typed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    said, status = checked(tmp_path, ABOVE + example)
    assert status == 0, said


@pytest.mark.parametrize(
    "wrong", ['NodeTelemetry(node="n", counter="1", cards_healthy=8)', 'NodeTelemetry(node="n", counter=1, cards=8)']
)
def test_a_mistake_is_found_before_it_runs(tmp_path: Path, wrong: str) -> None:
    said, status = checked(tmp_path, f"from connectors.sdk import NodeTelemetry\n\n{wrong}\n")
    assert status == 1
    assert "error:" in said
