"""Which source reads a file, and what is said when none can."""

from pathlib import Path

import pytest

from connectors.sources.importing import Tool, read_file
from schemas.errors import Refused
from tests.sources.reading import FIXTURES, SETTING, read, read_text


@pytest.mark.parametrize(
    ("tool", "name", "other"),
    [
        ("kubernetes", "slurm22_gpu_sinfo.json", "slurm"),
        ("openb", "sacct_parsable2.txt", "slurm"),
        ("slurm", "k8s_node.json", "kubernetes"),
    ],
)
def test_the_wrong_tool_is_told_the_right_one(tool: Tool, name: str, other: str) -> None:
    with pytest.raises(Refused, match=f"is of {other}, not of {tool}: try `lockstep import {other}"):
        read(tool, name)


READABLE = sorted(
    p.name
    for p in FIXTURES.iterdir()
    if (p.suffix != ".md" and not p.name.startswith("slurm22_gpu_s")) or p.suffix == ".json"
)


@pytest.mark.parametrize("name", READABLE)
def test_every_sample_is_recognised(name: str) -> None:
    found = read("kubernetes" if name.startswith("k8s") else "slurm", name)
    assert found.nodes or found.jobs or found.remarks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not recognised"),
        ("hello", "is not recognised"),
        ('{"meta": ', "looks like JSON but is not: line 1"),
        ("kind: Pod\napiVersion: v1\nspec: [", "looks like YAML but is not"),
        ("[1, 2]", "is not recognised"),
    ],
)
def test_files_of_no_use(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=says):
        read_text("slurm", text, tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_file("slurm", tmp_path / "absent", SETTING)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="is not text"):
        read_file("slurm", tmp_path / "binary", SETTING)
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(Refused, match="compressed"):
        read_file("slurm", tmp_path / "broken.gz", SETTING)
