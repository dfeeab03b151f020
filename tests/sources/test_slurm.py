"""Slurm's own output: every expected figure was read from the sample by hand, by Slurm's documentation of the field."""

import json
from collections import Counter
from pathlib import Path

import pytest

from connectors.sources._slurm_items import _limit_ms, _tasks, gpus
from connectors.sources.found import Setting, Unusable
from connectors.sources.slurm import _fields
from schemas.errors import Refused
from tests.sources.reading import GIB, MIB, NOW, read, read_text, reasons

A100 = ("A100-PCIe-40GB", "A100-SXM4-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB", "A100")
H20 = ("H20-SXM-96GB", "H20-SXM-141GB", "H20")


@pytest.mark.parametrize("name", ["slurm22_gpu_sinfo.json", "slurm22_gpu_scontrol_show_node.txt"])
def test_the_same_four_nodes_by_sinfo_and_by_scontrol(name: str) -> None:
    found = read("slurm", name)
    assert found.remarks == []
    assert [(n.node, n.cards, n.card_model, n.cpu_milli, n.memory_bytes, n.admin_state) for n in found.nodes] == [
        ("gpu-a100-01", 8, "A100", 64_000, 512_000 * MIB, "active"),
        ("gpu-a100-02", 8, "A100", 64_000, 512_000 * MIB, "active"),
        ("gpu-h20-01", 8, "H20", 96_000, 1_024_000 * MIB, "active"),
        ("gpu-h20-02", 8, "H20", 96_000, 1_024_000 * MIB, "draining"),
    ]
    assert found.nodes[2].labels == (
        "slurm.partition=train", "slurm.partition=infer", "slurm.feature=roce", "slurm.feature=region-a",
    )  # fmt: skip
    assert any(label.startswith("slurm.reason=XID 79 on gpu 3") for label in found.nodes[3].labels)
    assert all(n.site == "slurm" and n.domain == "default" and n.at == NOW for n in found.nodes)


@pytest.mark.parametrize("name", ["slurm22_gpu_squeue.json", "slurm22_gpu_scontrol_show_job.txt"])
def test_the_same_eight_jobs_by_squeue_and_by_scontrol(name: str) -> None:
    found = read("slurm", name)
    rows = {
        j.job: (j.queue, j.members, j.cards_milli, j.card_models, j.cpu_milli, j.memory_bytes, j.run_limit_ms)
        for j in found.jobs
    }
    hour = 3_600_000
    assert rows == {
        "slurm-1": ("train", 2, 8_000, A100, 8_000, 256 * GIB, 24 * hour),
        "slurm-2": ("train", 1, 4_000, H20, 16_000, 128 * GIB, 4 * hour),
        "slurm-3_1": ("train", 1, 1_000, H20, 4_000, 32 * GIB, hour),
        "slurm-3_2": ("train", 1, 1_000, H20, 4_000, 32 * GIB, hour),
        "slurm-3_3": ("train", 1, 1_000, H20, 4_000, 32 * GIB, hour),
        "slurm-4": ("infer", 1, 8_000, H20, 32_000, 512 * GIB, 48 * hour),
        # Waiting: no memory for each node yet, but 1000G for the two of them.
        "slurm-5": ("train", 2, 8_000, A100, 8_000, 500 * GIB, 48 * hour),
        "slurm-6": ("train", 1, 1_000, H20, 1_000, 500 * GIB, 72 * hour),
    }
    # 2026-12-01T02:36:55, which the JSON has as 1796092615.
    assert {j.at for j in found.jobs} == {1_796_092_615_000}
    assert {j.user for j in found.jobs} == {"user01"}
    # Slurm's counted-down priorities are the order of age.
    assert {j.priority for j in found.jobs} == {0}
    assert reasons(found) == []
    assert sum("runs under Slurm now" in r.reason for r in found.remarks) == 6


def test_nodes_without_gpus_of_slurm_21() -> None:
    found = read("slurm", "slurm21_sinfo.json")
    assert [(n.node, n.cards, n.card_model, n.cpu_milli, n.memory_bytes, n.admin_state) for n in found.nodes] == [
        ("cs2", 0, "", 64_000, 500_000 * MIB, "active"),
        ("cs3", 0, "", 64_000, 500_000 * MIB, "active"),
        ("cs4", 0, "", 64_000, 500_000 * MIB, "active"),
        ("cs5", 0, "", 64_000, 500_000 * MIB, "maintenance"),
    ]


def test_jobs_of_slurm_21_and_23_numbers_bare_and_as_objects() -> None:
    found = read("slurm", "slurm21_squeue.json")
    (job,) = found.jobs
    assert (job.job, job.at, job.priority, job.cpu_milli, job.memory_bytes) == (
        "slurm-26515966", 1_684_114_900_000, 1013, 1_000, 64_000 * MIB,
    )  # fmt: skip
    assert job.run_limit_ms == 30_240 * 60_000
    # The second one's numbers are {"set", "infinite", "number"}; it waits for another job.
    assert reasons(found) == ["waits for other jobs (afterok:58948419(unfulfilled)); submit it when they are done"]
    assert any("a100-80gb&preemptible&gpu-1" in r.reason and r.used for r in found.remarks)


def test_a_waiting_array_becomes_its_tasks(tmp_path: Path) -> None:
    raw = json.loads((Path(__file__).parent / "fixtures" / "slurm21_squeue.json").read_text())
    raw["jobs"] = [{**raw["jobs"][1], "dependency": ""}]
    found = read_text("slurm", json.dumps(raw), tmp_path)
    assert [j.job for j in found.jobs] == [f"slurm-58948420_{i}" for i in range(1, 11)]
    assert {(j.cpu_milli, j.memory_bytes, j.run_limit_ms, j.priority) for j in found.jobs} == {
        (1_000, 128 * GIB, 1_439 * 60_000, 1368)
    }


def test_slurmrestd() -> None:
    nodes = read("slurm", "slurmrestd_v0038_nodes.json").nodes
    assert [(n.node, n.cpu_milli, n.memory_bytes, n.admin_state) for n in nodes] == [
        ("node145", 36_000, 94_791 * MIB, "draining"),
        ("node146", 36_000, 94_791 * MIB, "draining"),
        ("node147", 36_000, 94_793 * MIB, "active"),
    ]
    jobs = read("slurm", "slurmrestd_v0038_jobs.json")
    # 2 CPUs at 2000 MiB each; the limit is 3600 minutes.
    assert [(j.job, j.cpu_milli, j.memory_bytes, j.run_limit_ms) for j in jobs.jobs] == [
        ("slurm-20464", 2_000, 4_000 * MIB, 216_000_000),
        ("slurm-20468", 2_000, 4_000 * MIB, 216_000_000),
    ]
    assert reasons(jobs) == ["is over (COMPLETED); --ended takes such work too"]


def test_sacct() -> None:
    found = read("slurm", "sacct_parsable2.txt")
    # 301 lines: 122 jobs and their steps; 32 run, 31 wait, 59 are over.
    assert len(found.jobs) == 32
    assert Counter(r[:12] for r in reasons(found)) == {"is over (COM": 49, "is over (CAN": 5, "is over (TIM": 3, "is over (FAI": 2, "does not say": 31}  # fmt: skip
    first, second = found.jobs[:2]
    assert (first.job, first.user, first.queue, first.priority) == ("slurm-1879824", "uc-10000", "accel_long", 11429)
    assert (first.cards_milli, first.card_models, first.cpu_milli, first.memory_bytes) == (
        1_000,
        A100,
        32_000,
        128 * GIB,
    )
    assert first.run_limit_ms == 20_160 * 60_000
    assert first.at == 1_757_283_366_000  # 2025-09-07T22:16:06, read as UTC
    assert (second.cards_milli, second.card_models) == (4_000, ("A100-PCIe-80GB", "A100-SXM4-80GB", "A100_80"))


def test_sacct_with_what_is_over_can_be_replayed() -> None:
    found = read("slurm", "sacct_parsable2.txt", Setting("default", NOW, ended=True))
    # Those that never ran have no TRES: whether they asked for GPUs nobody knows any more.
    assert len(found.jobs) == 122 - 31 - 4
    ran = {label for j in found.jobs if j.job == "slurm-1879824" for label in j.labels}
    assert "sim.run_ms=1192379000" in ran


@pytest.mark.parametrize("name", ["slurm22_gpu_sinfo.txt", "slurm22_gpu_squeue.txt"])
def test_tables_for_people_are_refused_with_what_would_be_right(name: str) -> None:
    with pytest.raises(Refused, match=r"made for people.*sinfo --json"):
        read("slurm", name)


def one_node(tmp_path: Path, **fields: object) -> list[str]:
    good: dict[str, object] = {"name": "good", "cpus": 4, "real_memory": 1000, "gres": "", "state": "idle"}
    found = read_text("slurm", json.dumps({"meta": {}, "nodes": [{**good, "name": "n1", **fields}, good]}), tmp_path)
    assert "good" in [n.node for n in found.nodes], "a bad item never takes its neighbour with it"
    return reasons(found)


def test_bad_items_are_named_with_what_would_be_right(tmp_path: Path) -> None:
    assert "does not say which GPU" in one_node(tmp_path, gres="gpu:8")[0]
    assert "mixes a100, v100" in one_node(tmp_path, gres="gpu:a100:4,gpu:v100:4")[0]
    assert one_node(tmp_path, cpus="many") == ["cpus is 'many'; a whole number would be right"]
    assert one_node(tmp_path, real_memory=None) == ["real_memory is ''; a whole number would be right"]


def one_job(tmp_path: Path, **fields: object) -> list[str]:
    job = {"job_id": 1, "job_state": "PENDING", "cpus": 4, "node_count": 2, "priority": 5, **fields}
    return reasons(read_text("slurm", json.dumps({"meta": {}, "jobs": [job]}), tmp_path))


def test_jobs_that_cannot_be_submitted_as_they_stand(tmp_path: Path) -> None:
    assert "cannot be shared evenly by 2 nodes" in one_job(tmp_path, tres_per_job="gres:gpu:h100:3")[0]
    assert "is held" in one_job(tmp_path, priority=0)[0]
    assert "heterogeneous" in one_job(tmp_path, het_job_id=7)[0]
    assert "time_limit is 'soon'" in one_job(tmp_path, time_limit="soon")[0]
    assert "memory_per_node" in one_job(tmp_path, memory_per_node="4Q")[0]
    assert one_job(tmp_path) == []


def test_gpus_of_gres_and_tres() -> None:
    assert gpus("gpu:a100:8(S:0-1)", "gres") == ({"a100": 8}, [])
    assert gpus("gres:gpu:h20:4", "tres") == ({"h20": 4}, [])
    assert gpus("billing=32,cpu=32,gres/gpu:a100=1,gres/gpu=1,mem=128G", "tres") == ({"a100": 1}, [])
    assert gpus("gres/gpu=2,node=1", "tres") == ({"": 2}, [])
    assert gpus("gpu:8", "gres") == ({"": 8}, [])
    assert gpus("gpu:a100:2(IDX:0,1),shard:a100:64(S:0,1)", "gres") == ({"a100": 2}, ["shard:a100:64(S:0,1)"])
    with pytest.raises(Unusable, match="some GPUs have a type"):
        gpus("gres/gpu=3,gres/gpu:a100=1", "tres")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5_400),
        ("04:00:00", 14_400),
        ("1-00:00:00", 86_400),
        ("2-12", 216_000),
        ("30:15", 1_815),
        ("UNLIMITED", 0),
    ],
)
def test_time_limits_by_slurms_manual(text: str, seconds: int) -> None:
    assert _limit_ms(text) == seconds * 1000


def test_array_tasks() -> None:
    assert _tasks("0,4-12:4%2") == [0, 4, 8, 12]
    with pytest.raises(Unusable, match="more than 10,000"):
        _tasks("0-999999")
    with pytest.raises(Unusable, match="cannot be read"):
        _tasks("all")


def test_fields_with_blanks_and_equals_signs() -> None:
    fields = _fields(
        "NodeName=n1 OS=Linux 6.1 #1 SMP RealMemory=5 CfgTRES=cpu=4,mem=1G Reason=XID 79 on gpu 3 [root@x]"
    )
    assert fields["OS"] == "Linux 6.1 #1 SMP"
    assert fields["CfgTRES"] == "cpu=4,mem=1G"
    assert fields["Reason"] == "XID 79 on gpu 3 [root@x]"
