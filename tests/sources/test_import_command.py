"""`lockstep import` from the outside: what it prints, what it appends, how it ends."""

import json
from pathlib import Path

from typer.testing import CliRunner

from connectors.log.embedded import EmbeddedLog
from infra.cli.import_ import app
from schemas.records import JobSubmitted, NodeRegistered
from tests.sources.reading import FIXTURES
from tests.streams.facts import read

RUN = CliRunner()


def invoke(*words: str | Path) -> tuple[int, str]:
    result = RUN.invoke(app, [str(w) for w in words])
    return result.exit_code, result.stdout + result.stderr


def test_a_dry_run_appends_nothing(tmp_path: Path) -> None:
    code, text = invoke("slurm", FIXTURES / "slurm22_gpu_sinfo.json", "--data", tmp_path / "data", "--dry-run")
    assert code == 0
    assert "4 nodes and 0 jobs would be taken" in text
    assert "gpu-h20-02" in text
    assert not (tmp_path / "data").exists()


def test_nodes_and_jobs_are_appended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert invoke("slurm", FIXTURES / "slurm22_gpu_sinfo.json", "--data", data, "--site", "lab")[0] == 0
    assert invoke("slurm", FIXTURES / "slurm22_gpu_squeue.json", "--data", data)[0] == 0
    log = EmbeddedLog(data)
    nodes = [r for r in read(log, "resources") if isinstance(r, NodeRegistered)]
    jobs = [r for r in read(log, "jobs") if isinstance(r, JobSubmitted)]
    log.close()
    assert {(n.node, n.site) for n in nodes} == {(f"gpu-{m}-0{i}", "lab") for m in ("a100", "h20") for i in (1, 2)}
    assert {j.job for j in jobs} == {"slurm-1", "slurm-2", "slurm-3_1", "slurm-3_2", "slurm-3_3", "slurm-4", "slurm-5", "slurm-6"}  # fmt: skip


def test_exit_codes(tmp_path: Path) -> None:
    data = ("--data", tmp_path / "data")
    # Some of its items cannot be taken: 3. Nothing in it: 2. The wrong tool: 2, with a hint.
    code, text = invoke("slurm", FIXTURES / "sacct_parsable2.txt", *data)
    assert code == 3
    assert "(and 30 more): does not say how many GPUs" in " ".join(text.split())
    assert invoke("kubernetes", FIXTURES / "k8s_event.json", *data)[0] == 2
    code, text = invoke("kubernetes", FIXTURES / "slurm22_gpu_sinfo.json", *data)
    assert code == 2
    assert "lockstep import slurm" in " ".join(text.split())


def test_json_for_programs(tmp_path: Path) -> None:
    code, text = invoke("kubernetes", FIXTURES / "k8s_gang_gpu_manifests.json", "--dry-run", "--json")
    assert code == 0
    outcome = json.loads(text)
    assert (outcome["format"], outcome["sent"], outcome["nodes"], outcome["remarks"]) == ("kubernetes", False, [], [])
    assert [j["members"] for j in outcome["jobs"]] == [1, 2]


def test_standard_input() -> None:
    result = RUN.invoke(
        app, ["slurm", "-", "--dry-run"], input=(FIXTURES / "slurm22_gpu_scontrol_show_node.txt").read_bytes()
    )
    assert result.exit_code == 0
    assert "4 nodes" in result.stdout
