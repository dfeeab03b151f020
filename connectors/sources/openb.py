"""The openb trace: nodes and pods of a production GPU cluster (Alibaba, 2023), as registrations and submissions.

The demo replays it whole; `lockstep import openb FILE` reads either of its two tables. What the trace does not say is not
made up: no region, data centre, row or rack; one site, `openb`. `data/README.md` has source and licence.
"""

import csv
import gzip
import io
from importlib import resources
from typing import Final, NamedTuple

from connectors.sources.cards import NONE, card, wanted
from connectors.sources.found import Found, Setting, Unusable
from schemas.records import JobSubmitted, NodeRegistered

NODES_FILE: Final = "openb_node_list_gpu_node.csv"
PODS_FILE: Final = "openb_pod_list_default.csv.gz"
SITE: Final = "openb"
MIB: Final = 1 << 20
# Kubernetes' service classes as priorities: work that answers people goes first, best effort last. The trace has no
# priorities of its own; these four steps leave room between them.
PRIORITY_OF: Final = {"LS": 300, "Guaranteed": 200, "Burstable": 100, "BE": 0}
# What the trace recorded, told to the simulated infrastructure: how long the job runs, and how it ends.
RUN_LABEL: Final = "sim.run_ms"
EXIT_LABEL: Final = "sim.exit_code"
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class Pod(NamedTuple):
    """A pod's course in the trace, seconds from its start; `scheduled_s` -1: never placed."""

    created_s: int
    scheduled_s: int
    deleted_s: int
    phase: str

    def run_ms(self) -> int:
        """How long it ran. A pod that was never placed has no run time: the time it existed stands in for it. At least
        one second: the trace's clock has whole seconds."""
        began = self.scheduled_s if self.scheduled_s >= 0 else self.created_s
        return max(1, self.deleted_s - began) * 1000


def packaged(setting: Setting) -> Found:
    """The trace that comes with the package: 1,213 nodes and 8,152 jobs, jobs in order of arrival."""
    folder = resources.files("connectors.sources") / "data"
    found = read((folder / NODES_FILE).read_text(), setting, NODES_FILE)
    pods = read(gzip.decompress((folder / PODS_FILE).read_bytes()).decode(), setting, PODS_FILE)
    found.jobs = sorted(pods.jobs, key=lambda j: (j.at, j.job))
    found.remarks += pods.remarks
    found.format = "openb"
    return found


def recognises(text: str) -> bool:
    """Is this one of the trace's two tables?"""
    header = text.split("\n", 1)[0].strip().split(",")
    return set(_NODE_COLUMNS) <= set(header) or set(_POD_COLUMNS) <= set(header)


def read(text: str, setting: Setting, name: str) -> Found:
    """Rows of a node list or a pod list. `setting.at` is the start of the trace."""
    table = csv.DictReader(io.StringIO(text))
    pods = "num_gpu" in (table.fieldnames or ())
    found = Found("openb pod list" if pods else "openb node list")
    for number, row in enumerate(table, 2):
        where = f"{name}:{number}"
        try:
            if pods:
                found.take(_job(row, setting))
            else:
                found.take(_node(row, setting))
        except Unusable as e:
            found.unusable(where, str(e))
    return found


def _whole(row: dict[str, str], column: str) -> int:
    text = (row.get(column) or "").strip()
    if not text.isdecimal():
        raise Unusable(f"column {column} is {text!r}; a whole number that is not negative would be right")
    return int(text)


def _node(row: dict[str, str], setting: Setting) -> NodeRegistered:
    cards = _whole(row, "gpu")
    model = (row.get("model") or "").strip()
    if not row.get("sn"):
        raise Unusable("column sn is empty; the node's name would be right")
    if cards and not model:
        raise Unusable(f"{cards} GPUs without a model; column model must name one")
    found = card(model) if cards else NONE
    return NodeRegistered(
        node=row["sn"], at=setting.at, domain=setting.domain, site=setting.site or SITE, region="", city="", data_centre="",
        row="", rack="", cards=cards, card_model=found.model, card_memory_bytes=found.memory_bytes,
        cpu_milli=_whole(row, "cpu_milli"), memory_bytes=_whole(row, "memory_mib") * MIB, disk_bytes=0,
        interconnect=found.interconnect, labels=(), owner="", admin_state="active",
    )  # fmt: skip


def _models(spec: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(m for name in spec.split("|") if name for m in wanted(name)))


def _job(row: dict[str, str], setting: Setting) -> JobSubmitted:
    if not row.get("name"):
        raise Unusable("column name is empty; the pod's name would be right")
    # One variant of the list has only what is asked for: no class, no times.
    qos = (row["qos"] or "").strip() if "qos" in row else "BE"
    if qos not in PRIORITY_OF:
        raise Unusable(f"column qos is {qos!r}; one of {', '.join(PRIORITY_OF)} would be right")
    cards, share = _whole(row, "num_gpu"), _whole(row, "gpu_milli")
    if cards == 1 and not 1 <= share <= 1000:
        raise Unusable(f"column gpu_milli is {share}; 1 to 1000 thousandths of a card can be")
    labels = [f"openb.phase={row.get('pod_phase', '')}"]
    at = setting.at
    if row.get("creation_time"):
        scheduled = row.get("scheduled_time") or ""
        pod = Pod(
            _whole(row, "creation_time"),
            _whole(row, "scheduled_time") if scheduled else -1,
            _whole(row, "deletion_time"),
            row.get("pod_phase") or "",
        )
        at = setting.at + pod.created_s * 1000
        labels += [f"{RUN_LABEL}={pod.run_ms()}"] + ([f"{EXIT_LABEL}=1"] if pod.phase == "Failed" else [])
    return JobSubmitted(
        job=row["name"], at=at, domain=setting.domain, user="openb", queue=qos, priority=PRIORITY_OF[qos], members=1,
        cards_milli=share if cards == 1 else cards * 1000,
        card_models=_models(row.get("gpu_spec") or ""), card_memory_bytes=0,
        cpu_milli=_whole(row, "cpu_milli"), memory_bytes=_whole(row, "memory_mib") * MIB, adjacency="", run_limit_ms=0,
        run_estimate_ms=0, command=(), labels=tuple(labels), inferred=("priority", "user"),
    )  # fmt: skip
