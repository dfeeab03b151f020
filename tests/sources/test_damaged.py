"""Files that are almost right: whatever stands where something else should be, a source answers with remarks or refuses."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from connectors.sources.importing import read_file
from schemas.codec import encode
from schemas.errors import Refused
from tests.sources.reading import FIXTURES, SETTING

ODD: tuple[Any, ...] = (
    None, "", "x", "-1", "1e999", -1, 0, 1.5, True, [], {}, [None], {"a": []}, "∞", 10**30, "9" * 40, ["gpu:a100:8"],
    {"set": True, "infinite": False, "number": "x"}, "gpu:(", "1-2-3", "2026-13-45T99:99:99",
)  # fmt: skip
SAMPLES = sorted(p.name for p in FIXTURES.glob("*.json"))
TEXTS = ("slurm22_gpu_scontrol_show_job.txt", "slurm22_gpu_scontrol_show_node.txt", "sacct_parsable2.txt")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a decoded JSON value."""
    found = [path] if path else []
    if isinstance(value, dict):
        for k, v in value.items():
            found += places(v, (*path, k))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            found += places(v, (*path, i))
    return found


def damaged(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    if odd is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = odd
    return changed


def survives(path: Path) -> None:
    tool: Any = "kubernetes" if "k8s" in path.name else "slurm"
    try:
        found = read_file(tool, path, SETTING)
    except Refused:
        return
    # What is taken fits its schema.
    for node in found.nodes:
        encode(node)
    for job in found.jobs:
        encode(job)


@pytest.mark.parametrize("name", SAMPLES)
def test_odd_values_anywhere(name: str, tmp_path: Path) -> None:
    whole = json.loads((FIXTURES / name).read_text())
    chance = random.Random(name)
    everywhere = places(whole)
    for _ in range(60):
        path, odd = chance.choice(everywhere), chance.choice((*ODD, ...))
        given = tmp_path / name
        given.write_text(json.dumps(damaged(whole, path, odd)))
        try:
            survives(given)
        except Exception as e:
            raise AssertionError(f"{name}: {odd!r} at {path}") from e


@pytest.mark.parametrize("name", TEXTS)
def test_lines_cut_short_and_signs_changed(name: str, tmp_path: Path) -> None:
    whole = (FIXTURES / name).read_text()
    chance = random.Random(name)
    for _ in range(60):
        at = chance.randrange(len(whole))
        given = tmp_path / name
        given.write_text(
            whole[:at] + chance.choice(("", "|", "=", "\n", " ", "x" * 50)) + whole[at + chance.randrange(40) :]
        )
        try:
            survives(given)
        except Exception as e:
            raise AssertionError(f"{name} changed at {at}") from e
