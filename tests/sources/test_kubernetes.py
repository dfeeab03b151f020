"""Kubernetes objects: samples with figures read by hand, and made-up manifests for the scheduler's own rules."""

import json
from pathlib import Path

import pytest
import yaml

from connectors.sources._k8s_pods import Amount, Claims, effective
from connectors.sources.found import Found, Setting
from tests.sources.reading import GIB, KIB, MIB, NOW, read, read_text, reasons


def test_a_node_without_cards() -> None:
    (node,) = read("kubernetes", "k8s_node.json").nodes
    assert (node.node, node.site, node.cards, node.card_model) == ("node-a1", "kubernetes", 0, "")
    assert (node.cpu_milli, node.memory_bytes, node.disk_bytes) == (4_000, 8_163_684 * KIB, 16_954_240 * KIB)
    assert node.admin_state == "active"
    assert "kubernetes.io/arch=amd64" in node.labels


def test_twelve_nodes_one_for_each_model() -> None:
    found = read("kubernetes", "k8s_nodelist_openb_gpu.json")
    assert len(found.nodes) == 12
    by_name = {n.node: (n.cards, n.card_model, n.cpu_milli, n.memory_bytes) for n in found.nodes}
    assert by_name["openb-node-0000"] == (2, "P100", 64_000, 262_144 * MIB)
    assert by_name["openb-node-0023"] == (8, "V100-SXM2-32GB", 96_000, 786_432 * MIB)
    # Both P100 rows of the accelerator table have 16 GB; G3 is undisclosed.
    assert found.nodes[0].card_memory_bytes == 16 * GIB
    assert by_name["openb-node-0022"] == (8, "G3", 128_000, 786_432 * MIB)
    assert found.remarks == []


def test_a_pod_with_and_without_an_init_container() -> None:
    for name in ("k8s_pod.json", "k8s_pod_init_containers.json"):
        found = read("kubernetes", name)
        (job,) = found.jobs
        # The init container asks for the same 100m and 70Mi: the larger of the two, not both.
        assert (job.job, job.cpu_milli, job.memory_bytes, job.cards_milli) == ("default.nginx", 100, 70 * MIB, 0)
        assert job.at == 1_565_327_539_000  # 2019-08-09T05:12:19Z
        assert [r.reason for r in found.remarks] == ["runs under Kubernetes now; it is submitted as new work"]


def test_a_finished_job_is_left_out_unless_asked_for() -> None:
    assert reasons(read("kubernetes", "k8s_job.json")) == ["is over (Complete); --ended takes such work too"]
    (job,) = read("kubernetes", "k8s_job.json", Setting("default", NOW, ended=True)).jobs
    assert (job.job, job.members, job.command[0]) == ("default.hello-1567179180", 1, "/bin/bash")
    assert set(job.inferred) == {"cpu_milli", "memory_bytes", "user"}


def test_an_event_is_no_work() -> None:
    assert reasons(read("kubernetes", "k8s_event.json")) == ["has no node and no job in it, only Event"]


def test_resource_slices_are_nodes_with_cards_only() -> None:
    found = read("kubernetes", "k8s_resourceslices_h100_dra.json")
    assert [(n.node, n.cards, n.card_model, n.card_memory_bytes) for n in found.nodes] == [
        ("gpu-node-1", 8, "H100-SXM5-80GB", 81_559 * MIB),
        ("gpu-node-2", 8, "H100-SXM5-80GB", 81_559 * MIB),
    ]
    assert {n.cpu_milli for n in found.nodes} == {0}
    assert all(r.used and "export the Node with it" in r.reason for r in found.remarks)
    assert len(found.remarks) == 2


def test_slices_and_their_node_together(tmp_path: Path) -> None:
    slices = json.loads((Path(__file__).parent / "fixtures" / "k8s_resourceslices_h100_dra.json").read_text())
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": "gpu-node-1"},
        "status": {"allocatable": {"cpu": "96", "memory": "2Ti"}},
    }
    both = {"kind": "List", "apiVersion": "v1", "items": [node, *slices["items"]]}
    found = read_text("kubernetes", json.dumps(both), tmp_path)
    assert [(n.node, n.cards, n.cpu_milli) for n in found.nodes] == [("gpu-node-1", 8, 96_000), ("gpu-node-2", 8, 0)]


def test_a_gang_by_pod_group_and_claims() -> None:
    found = read("kubernetes", "k8s_gang_gpu_manifests.json")
    assert [(j.job, j.members, j.cards_milli, j.queue) for j in found.jobs] == [
        ("dra-test.dra-gpu-test", 1, 1_000, "dra-test"),
        ("gang-scheduling-test.gang-test-group", 2, 1_000, "default-queue"),
    ]
    assert found.remarks == []


# --- the scheduler's arithmetic ----------------------------------------------------------------------------------------


def container(cpu: str, memory: str, cards: int = 0, **more: object) -> dict[str, object]:
    limits = {"nvidia.com/gpu": cards} if cards else {}
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": limits}, **more}


def test_effective_request() -> None:
    """The example of the Kubernetes documentation on sidecars: init containers run one after the other beside the sidecars
    that were started before them; the rest run together."""
    pod = {
        "initContainers": [
            container("1", "1Gi"),
            container("500m", "512Mi", restartPolicy="Always"),
            container("4", "1Gi"),
        ],
        "containers": [container("1", "1Gi", 2), container("2", "2Gi", 2)],
        "overhead": {"cpu": "250m", "memory": "120Mi"},
    }
    # CPU: containers 3 + sidecar 0.5 = 3.5, but the second init container beside the sidecar needs 4.5.
    # Memory: containers 3 Gi + sidecar 0.5 Gi. Overhead on top of both.
    assert effective(pod, "default", Claims()) == Amount(4_000, 4_750, 3_584 * MIB + 120 * MIB)


def test_a_limit_without_a_request_is_the_request() -> None:
    pod = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Gi", "amd.com/gpu": "4"}}}]}
    assert effective(pod, "default", Claims()) == Amount(4_000, 2_000, GIB)


def test_a_share_of_a_card() -> None:
    pod = {
        "containers": [
            {
                "name": "c",
                "resources": {"limits": {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "460"}},
            }
        ]
    }
    assert effective(pod, "default", Claims()).cards_milli == 460


# --- kinds of gangs --------------------------------------------------------------------------------------------------


def manifest(text: str, tmp_path: Path) -> Found:
    return read_text("kubernetes", text, tmp_path)


GANGS = {
    "batch/v1 Job": (
        """
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: team-a}}
spec:
  parallelism: 4
  completions: 4
  activeDeadlineSeconds: 7200
  template: {spec: {nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}, containers: [{name: c, resources: {limits: {nvidia.com/gpu: 8, cpu: 16, memory: 64Gi}}}]}}
""",
        (4, 8_000, 16_000, 64 * GIB, "team-a", ("H100-SXM5-80GB",), 7_200_000),
    ),
    "Volcano": (
        """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  queue: research
  tasks:
  - {replicas: 1, name: master, template: {spec: {containers: [{name: c, resources: {limits: {huawei.com/Ascend910: 8}}}]}}}
  - {replicas: 3, name: worker, template: {spec: {containers: [{name: c, resources: {limits: {huawei.com/Ascend910: 8}}}]}}}
""",
        (4, 8_000, 0, 0, "research", (), 0),
    ),
    "JobSet": (
        """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  replicatedJobs:
  - {name: w, replicas: 2, template: {spec: {parallelism: 3, completions: 3, template: {spec: {containers: [{name: c, resources: {limits: {google.com/tpu: 4}}}]}}}}}
""",
        (6, 4_000, 0, 0, "default", (), 0),
    ),
    "PyTorchJob": (
        """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: {spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 2}}}]}}}
    Worker: {replicas: 7, template: {spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 2}}}]}}}
""",
        (8, 2_000, 0, 0, "default", (), 0),
    ),
}


@pytest.mark.parametrize("kind", GANGS)
def test_gang_kinds(kind: str, tmp_path: Path) -> None:
    text, expected = GANGS[kind]
    found = manifest(text, tmp_path)
    assert found.remarks == []
    (j,) = found.jobs
    assert j.job == "default.train"
    assert (j.members, j.cards_milli, j.cpu_milli, j.memory_bytes, j.queue, j.card_models, j.run_limit_ms) == expected


def test_bad_items_pass_by_their_neighbours(tmp_path: Path) -> None:
    good = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "good"},
        "spec": {"containers": [container("1", "1Gi")]},
    }

    def pod(name: str, **resources: object) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "resources": {"limits": resources}}]},
        }

    bad = [
        pod("words", memory="lots"),
        pod("both", **{"nvidia.com/gpu": 1, "amd.com/gpu": 1}),
        pod("half", **{"nvidia.com/gpu": "1500m"}),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "claims"},
            "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": "absent"}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": 4, "memory": "1Gi", "nvidia.com/gpu": "8"}},
        },
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}},
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "uneven"},
            "spec": {
                "pytorchReplicaSpecs": {
                    "Master": {"template": {"spec": {"containers": [container("1", "1Gi", 1)]}}},
                    "Worker": {"template": {"spec": {"containers": [container("1", "1Gi", 8)]}}},
                }
            },
        },
        "no object",
    ]
    found = manifest(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*bad, good]}), tmp_path)
    assert [j.job for j in found.jobs] == ["default.good"]
    assert found.nodes == []
    left_out = {r.where.split("(")[-1].rstrip(")"): r.reason for r in found.remarks if not r.used}
    assert "container c memory: 'lots'" in left_out["Pod words"]
    assert "nvidia.com/gpu and amd.com/gpu" in left_out["Pod both"]
    assert "nvidia.com/gpu: '1500m'" in left_out["Pod half"]
    assert "export the pods or Jobs it made" in left_out["Deployment web"]
    assert "ResourceClaim absent is not in the file" in left_out["Pod claims"]
    assert "no label says which" in left_out["Node n1"]
    assert "allocatable" in left_out["Node n2"]
    assert "ask for different things" in left_out["PyTorchJob uneven"]
    assert len(left_out) == 9


def test_cordoned_and_unready_nodes(tmp_path: Path) -> None:
    status = {"allocatable": {"cpu": "4", "memory": "1Gi"}}
    nodes = [
        {"metadata": {"name": "cordoned"}, "spec": {"unschedulable": True}, "status": status},
        {"metadata": {"name": "unready"}, "status": {**status, "conditions": [{"type": "Ready", "status": "Unknown"}]}},
        {
            "metadata": {
                "name": "here",
                "labels": {
                    "topology.kubernetes.io/region": "eu",
                    "topology.kubernetes.io/zone": "eu-1",
                    "topology.kubernetes.io/rack": "r7",
                },
            },
            "status": status,
        },
    ]
    # The API server leaves the kind of each item out of a typed list.
    found = manifest(json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": nodes}), tmp_path)
    assert [(n.node, n.admin_state, n.site, n.region, n.rack) for n in found.nodes] == [
        ("cordoned", "draining", "kubernetes", "", ""),
        ("unready", "maintenance", "kubernetes", "", ""),
        ("here", "active", "eu-1", "eu", "r7"),
    ]
