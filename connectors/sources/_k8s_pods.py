"""What a Kubernetes pod asks for, by the scheduler's own arithmetic. Used by `connectors.sources.kubernetes` only.

Effective request: the sum over containers and restartable init containers, or the largest init container (with those sidecars
already running) if that is more, plus the pod's overhead. A missing request is the limit. Cards come from extended
resources and from resource claims (DRA).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from connectors.sources.found import Unusable
from schemas.errors import Refused
from schemas.units import parse_cards_milli, parse_cpu_milli, parse_kubernetes_bytes

# Extended resources that count whole cards, by vendor.
CARD_RESOURCES: Final = (
    "nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi", "google.com/tpu",
    "aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "huawei.com/Ascend910", "huawei.com/Ascend310P",
    "huawei.com/Ascend310", "cambricon.com/mlu", "hygon.com/dcu", "kunlunxin.com/xpu", "mthreads.com/gpu",
    "iluvatar.com/gpu", "metax-tech.com/gpu", "enflame.com/gcu", "alibabacloud.com/gpu-count",
)  # fmt: skip
# A share of one card in thousandths, as the openb cluster writes it.
CARD_MILLI: Final = "alibabacloud.com/gpu-milli"
CARD_CLASSES: Final = ("gpu", "npu", "xpu", "tpu", "neuron", "accelerator")
# Where people write the wanted model: node selector or affinity keys, annotations of the openb cluster.
MODEL_KEYS: Final = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "accelerator", "gpu-type", "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator", "alibabacloud.com/gpu-card-model", "huawei.com/npu.product", "node.kubernetes.io/npu.chip.name",
)  # fmt: skip
Object = Mapping[str, object]


class Amount(NamedTuple):
    """Cards in thousandths, CPU in 1/1000 core, memory in bytes."""

    cards_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    def at_least(self, other: "Amount") -> "Amount":
        return Amount(*(max(a, b) for a, b in zip(self, other, strict=True)))


@dataclass(slots=True)
class Claims:
    """Cards of the resource claims and claim templates of a file, by (namespace, name)."""

    cards: dict[tuple[str, str], int] = field(default_factory=dict)
    templates: dict[tuple[str, str], int] = field(default_factory=dict)


def obj(value: object, what: str) -> Object:
    """An object, {} for nothing. Raises `Unusable` for anything else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Unusable(f"{what} is a {type(value).__name__}; an object would be right")
    return value


def objects(value: object, what: str) -> list[Object]:
    """A list of objects, [] for nothing."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unusable(f"{what} is a {type(value).__name__}; a list would be right")
    return [obj(v, what) for v in value]


def quantity(parse: Callable[[str], int], value: object, what: str) -> int:
    """A quantity through the units' parser; the refusal names the field."""
    try:
        return parse(str(value))
    except Refused as e:
        raise Unusable(f"{what}: {e}") from e


def cards_of(resources: Object, what: str) -> int:
    """Cards in thousandths of a resource list."""
    found = {r: quantity(parse_cards_milli, resources[r], f"{what} {r}") for r in CARD_RESOURCES if r in resources}
    found = {r: n for r, n in found.items() if n}
    if len(found) > 1:
        raise Unusable(f"{what} asks for {' and '.join(found)}; cards of one make can be asked for, not several")
    count = next(iter(found.values()), 0)
    if CARD_MILLI in resources:
        text = str(resources[CARD_MILLI])
        if not text.isdecimal():
            raise Unusable(f"{what} {CARD_MILLI}: {text!r} is not a whole number of thousandths")
        # gpu-count cards of gpu-milli each; without a count it is a share of one.
        return int(text) if count in (0, 1000) else count
    return count


def _container(container: Object, what: str) -> Amount:
    resources = obj(container.get("resources"), f"{what} resources")
    limits = obj(resources.get("limits"), f"{what} limits")
    asked = {**limits, **obj(resources.get("requests"), f"{what} requests")}
    return Amount(
        cards_of(asked, what),
        quantity(parse_cpu_milli, asked["cpu"], f"{what} cpu") if "cpu" in asked else 0,
        quantity(parse_kubernetes_bytes, asked["memory"], f"{what} memory") if "memory" in asked else 0,
    )


def effective(spec: Object, namespace: str, claims: Claims) -> Amount:
    """What the pod as a whole asks for. Raises `Unusable`."""
    total = Amount()
    for c in objects(spec.get("containers"), "containers"):
        total = total.plus(_container(c, f"container {c.get('name', '?')}"))
    sidecars, most = Amount(), Amount()
    for c in objects(spec.get("initContainers"), "initContainers"):
        one = _container(c, f"init container {c.get('name', '?')}")
        if c.get("restartPolicy") == "Always":
            sidecars = sidecars.plus(one)
            most = most.at_least(sidecars)
        else:
            most = most.at_least(sidecars.plus(one))
    total = total.plus(sidecars).at_least(most)
    overhead = obj(spec.get("overhead"), "overhead")
    total = total.plus(
        Amount(
            0,
            quantity(parse_cpu_milli, overhead["cpu"], "overhead cpu") if "cpu" in overhead else 0,
            quantity(parse_kubernetes_bytes, overhead["memory"], "overhead memory") if "memory" in overhead else 0,
        )
    )
    return total.plus(Amount(cards_milli=_claimed(spec, namespace, claims) * 1000))


def _claimed(spec: Object, namespace: str, claims: Claims) -> int:
    count = 0
    for claim in objects(spec.get("resourceClaims"), "resourceClaims"):
        name, template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
        known = claims.cards if name else claims.templates
        which = str(name or template or "?")
        if (namespace, which) not in known:
            kind = "ResourceClaim" if name else "ResourceClaimTemplate"
            raise Unusable(f"its {kind} {which} is not in the file; export it along with the pod")
        count += known[(namespace, which)]
    return count


def claim_cards(spec: Object) -> int:
    """Cards that a claim's spec asks for: requests whose device class is of cards, exact counts only."""
    count = 0
    for request in objects(obj(spec.get("devices"), "devices").get("requests"), "devices.requests"):
        exact = obj(request.get("exactly", request), "exactly")
        device_class = str(exact.get("deviceClassName", ""))
        if not any(word in device_class.lower().replace("-", ".").split(".") for word in CARD_CLASSES):
            continue
        if exact.get("allocationMode", "ExactCount") != "ExactCount":
            raise Unusable(f"asks for all devices of class {device_class}; an exact count would be right")
        number = exact.get("count", 1)
        if not isinstance(number, int) or number < 0:
            raise Unusable(f"count is {number!r}; a whole number would be right")
        count += number
    return count


def models(spec: Object, annotations: Object) -> tuple[str, ...]:
    """Card models the pod insists on: node selector, required node affinity, annotation."""
    selector = obj(spec.get("nodeSelector"), "nodeSelector")
    found = [str(selector[k]) for k in MODEL_KEYS if k in selector]
    affinity = obj(obj(spec.get("affinity"), "affinity").get("nodeAffinity"), "nodeAffinity")
    required = obj(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"), "required affinity")
    for term in objects(required.get("nodeSelectorTerms"), "nodeSelectorTerms"):
        for e in objects(term.get("matchExpressions"), "matchExpressions"):
            values = e.get("values")
            if e.get("key") in MODEL_KEYS and e.get("operator") == "In" and isinstance(values, list):
                found += [str(v) for v in values]
    written = annotations.get("alibabacloud.com/gpu-card-model")
    found += str(written).split("|") if written else []
    return tuple(dict.fromkeys(m for m in found if m))
