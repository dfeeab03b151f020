"""The openb trace: counts as its authors and the data's description give them, rows checked by hand."""

import gzip
from collections import Counter
from pathlib import Path

from connectors.sources import openb
from connectors.sources.found import Setting
from tests.sources.reading import MIB, read_text, reasons

START = 1_672_531_200_000
TRACE = openb.packaged(Setting("default", START))


def test_the_whole_trace() -> None:
    assert (len(TRACE.nodes), len(TRACE.jobs), TRACE.remarks) == (1_213, 8_152, [])
    assert sum(n.cards for n in TRACE.nodes) == 6_212
    assert sum(n.cpu_milli for n in TRACE.nodes) == 107_018_000
    cards = Counter[str]()
    for n in TRACE.nodes:
        cards[n.card_model] += n.cards
    assert cards == {
        "G2": 4_392, "T4": 842, "G3": 312, "P100": 265, "V100-SXM2-32GB": 204, "V100-SXM2-16GB": 195, "A10": 2,
    }  # fmt: skip
    assert {n.site for n in TRACE.nodes} == {"openb"}
    assert {(n.data_centre, n.row, n.rack) for n in TRACE.nodes} == {("", "", "")}


def test_requests() -> None:
    whole = Counter(j.cards_milli // 1000 for j in TRACE.jobs if j.cards_milli % 1000 == 0)
    # 6,989 pods with one GPU, of which 3,078 ask for a part of it.
    assert whole == {0: 1_088, 1: 6_989 - 3_078, 2: 16, 4: 15, 8: 44}
    assert sum(0 < j.cards_milli < 1000 for j in TRACE.jobs) == 3_078


def test_order_of_arrival_and_time() -> None:
    times = [j.at for j in TRACE.jobs]
    assert times == sorted(times)
    assert times[0] == START
    assert (times[-1] - START) // 1000 == 12_901_761


def test_one_pod_by_hand() -> None:
    # openb-pod-0001,6000,12288,1,460,,LS,Running,427061,12902960,427061
    (job,) = (j for j in TRACE.jobs if j.job == "openb-pod-0001")
    assert (job.cards_milli, job.cpu_milli, job.memory_bytes) == (460, 6_000, 12_288 * MIB)
    assert (job.priority, job.queue, job.at) == (300, "LS", START + 427_061_000)
    assert job.labels == ("openb.phase=Running", f"sim.run_ms={(12_902_960 - 427_061) * 1000}")
    assert job.run_estimate_ms == 0, "nobody knew the run time before"


def test_how_pods_end() -> None:
    failed = [j for j in TRACE.jobs if "sim.exit_code=1" in j.labels]
    assert len(failed) == 1_870
    # Four pods were deleted in the second in which they were scheduled: they ran for one second, the trace's finest step.
    assert sum("sim.run_ms=1000" in j.labels for j in TRACE.jobs) >= 4


def test_a_pod_that_was_never_placed_runs_as_long_as_it_existed() -> None:
    assert openb.Pod(100, -1, 160, "Pending").run_ms() == 60_000
    assert openb.Pod(100, 130, 160, "Succeeded").run_ms() == 30_000


def test_gpu_specs_become_models(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\np,1000,1024,1,1000,V100M16|V100M32,BE\n"
    (job,) = read_text("openb", text, tmp_path).jobs
    assert job.card_models == ("V100-SXM2-16GB", "V100-SXM2-32GB")


def test_bad_rows_are_left_out_one_by_one(tmp_path: Path) -> None:
    text = "\n".join(
        (
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos",
            "good,1000,1024,1,500,,LS",
            "neg,-1,1024,1,500,,LS",
            "class,1000,1024,1,500,,Gold",
            "share,1000,1024,1,2000,,LS",
            ",1000,1024,1,500,,LS",
            "short,1000",
        )
    )
    found = read_text("openb", text, tmp_path)
    assert [j.job for j in found.jobs] == ["good"]
    assert [r.where for r in found.remarks] == [f"given:{n}" for n in (3, 4, 5, 6, 7)]
    assert reasons(found)[0] == "column cpu_milli is '-1'; a whole number that is not negative would be right"


def test_a_node_list_and_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv.gz"
    path.write_bytes(gzip.compress(b"sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1024,2,P100\nn2,64000,1024,2,\n"))
    from connectors.sources.importing import read_file

    found = read_file("openb", path, Setting("default", START, site="lab"))
    assert [(n.node, n.site, n.cards) for n in found.nodes] == [("n1", "lab", 2)]
    assert reasons(found) == ["2 GPUs without a model; column model must name one"]
