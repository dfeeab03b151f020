"""One Kubernetes node as a registration, with its cards from extended resources or from resource slices (DRA).

Used by `connectors.sources.kubernetes` only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.sources._k8s_pods import CARD_RESOURCES, Object, cards_of, obj, objects, quantity
from connectors.sources.cards import Card, card
from connectors.sources.found import Found, Setting, Unusable
from schemas.records import NodeRegistered
from schemas.units import parse_cpu_milli, parse_kubernetes_bytes

REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
RACK: Final = ("topology.kubernetes.io/rack", "cloud.google.com/gce-topology-subblock")
ROW: Final = ("cloud.google.com/gce-topology-block", "network.topology.nvidia.com/block")
# Labels that name the model of the node's cards, by vendor.
MODEL: Final = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "alibabacloud.com/gpu-card-model",
    "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator", "huawei.com/npu.product",
    "node.kubernetes.io/npu.chip.name", "accelerator", "gpu-type",
)  # fmt: skip
# Resources whose very name says the make.
MODEL_OF_RESOURCE: Final = {"huawei.com/Ascend310P": "Ascend-310P", "habana.ai/gaudi": "Gaudi"}


class Devices(NamedTuple):
    """Cards of one node by its slices."""

    where: str
    cards: int
    model: str
    memory_bytes: int


@dataclass(slots=True)
class Slices:
    """Resource slices by node. Drivers that publish no cards (network channels, …) add nothing."""

    by_node: dict[str, list[Devices]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def add(self, where: str, spec: Object) -> None:
        name = str(spec.get("nodeName") or "")
        found: dict[tuple[str, int], int] = {}
        for device in objects(spec.get("devices"), "devices"):
            basic = obj(device.get("basic", device), "device")  # older API versions nest
            attributes = obj(basic.get("attributes"), "attributes")
            if str(_value(attributes.get("type"))) not in ("gpu", "npu", "xpu", "tpu"):
                continue
            model = str(_value(attributes.get("productName")) or "")
            memory = obj(basic.get("capacity"), "capacity").get("memory")
            size = quantity(parse_kubernetes_bytes, _value(memory), "capacity.memory") if memory is not None else 0
            found[(model, size)] = found.get((model, size), 0) + 1
        if not found:
            return
        if not name:
            raise Unusable("its devices belong to no single node; slices with nodeName can be taken")
        for (model, size), count in found.items():
            self.by_node.setdefault(name, []).append(Devices(where, count, model, size))

    def of(self, name: str) -> Devices | None:
        """Cards of a node. Raises `Unusable` when they are of several models."""
        self._taken.add(name)
        devices = self.by_node.get(name)
        if not devices:
            return None
        if len({(d.model, d.memory_bytes) for d in devices}) > 1:
            raise Unusable(
                f"its slices mix {', '.join(sorted({d.model for d in devices}))}; one model to a node can be taken"
            )
        return devices[0]._replace(cards=sum(d.cards for d in devices))

    def left(self) -> list[tuple[str, str]]:
        """Nodes known only by their slices, each with where its first slice is."""
        return [(name, devices[0].where) for name, devices in self.by_node.items() if name not in self._taken]


def bare_node(name: str, slices: Slices, setting: Setting, found: Found, where: str) -> NodeRegistered:
    """A node of which only the slices are known. Raises `Unusable`."""
    devices = slices.of(name)
    assert devices is not None
    found.note(
        where,
        f"a slice says nothing of the CPU and memory of {name}: only jobs that ask for neither fit; export the Node with it",
    )
    known = card(devices.model)
    return NodeRegistered(
        node=name, at=setting.at, domain=setting.domain, site=setting.site or "kubernetes", region="", city="",
        data_centre="", row="", rack="", cards=devices.cards, card_model=known.model,
        card_memory_bytes=devices.memory_bytes or known.memory_bytes, cpu_milli=0, memory_bytes=0, disk_bytes=0,
        interconnect=known.interconnect, labels=(), owner="", admin_state="active",
    )  # fmt: skip


def _value(attribute: object) -> object:
    """A DRA attribute or capacity: `{"string": …}`, `{"int": …}`, `{"value": …}` or plain."""
    return next(iter(attribute.values()), None) if isinstance(attribute, Mapping) else attribute


def node(o: Object, slices: Slices, setting: Setting, found: Found, where: str) -> NodeRegistered:
    """A Node object as registration. Raises `Unusable`."""
    meta, spec, status = (obj(o.get(k), k) for k in ("metadata", "spec", "status"))
    labels = obj(meta.get("labels"), "labels")
    name = str(meta.get("name") or "")
    if not name:
        raise Unusable("metadata.name is missing")
    # What the kubelet offers to pods; capacity includes what the system keeps for itself.
    offered = obj(status.get("allocatable"), "allocatable") or obj(status.get("capacity"), "capacity")
    if "cpu" not in offered or "memory" not in offered:
        raise Unusable(
            "status has neither allocatable nor capacity with cpu and memory; export it with kubectl get nodes -o json"
        )
    model, cards = _cards(name, labels, offered, slices)
    zone = _first(labels, ZONE)
    if labels.get("nvidia.com/mig.strategy") in ("mixed", "single") and cards:
        found.note(where, "MIG slices are left out; only whole cards are taken")
    return NodeRegistered(
        node=name, at=setting.at, domain=setting.domain, site=setting.site or zone or "kubernetes", region=_first(labels, REGION),
        city="", data_centre="", row=_first(labels, ROW), rack=_first(labels, RACK), cards=cards,
        card_model=model.model if cards else "", card_memory_bytes=model.memory_bytes if cards else 0,
        cpu_milli=quantity(parse_cpu_milli, offered["cpu"], "cpu"),
        memory_bytes=quantity(parse_kubernetes_bytes, offered["memory"], "memory"),
        disk_bytes=quantity(parse_kubernetes_bytes, offered.get("ephemeral-storage", "0"), "ephemeral-storage"),
        interconnect=model.interconnect if cards else "",
        labels=tuple(f"{k}={v}" for k, v in sorted(labels.items())), owner="", admin_state=_state(spec, status),
    )  # fmt: skip


def _first(labels: Object, keys: tuple[str, ...]) -> str:
    return next((str(labels[k]) for k in keys if labels.get(k)), "")


def _cards(name: str, labels: Object, offered: Object, slices: Slices) -> tuple[Card, int]:
    cards = cards_of({k: v for k, v in offered.items() if k in CARD_RESOURCES}, "allocatable") // 1000
    sliced = slices.of(name)
    if sliced is not None:
        if cards and cards != sliced.cards:
            raise Unusable(
                f"its resources say {cards} cards and its slices {sliced.cards}; export both at the same time"
            )
        known = card(sliced.model)
        return known._replace(memory_bytes=sliced.memory_bytes or known.memory_bytes), sliced.cards
    written = _first(labels, MODEL) or next((m for r, m in MODEL_OF_RESOURCE.items() if r in offered), "")
    if cards and not written:
        raise Unusable(f"has {cards} cards but no label says which; label it nvidia.com/gpu.product=… or accelerator=…")
    known = card(written)
    mib = str(labels.get("nvidia.com/gpu.memory", ""))
    if mib.isdecimal():
        known = known._replace(memory_bytes=int(mib) << 20)
    return known, cards


def _state(spec: Object, status: Object) -> str:
    for condition in objects(status.get("conditions"), "conditions"):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return "maintenance"
    return "draining" if spec.get("unschedulable") else "active"
