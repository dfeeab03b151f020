"""Kubernetes: objects as `kubectl get -o json|yaml` prints them or as people write them, as registrations and submissions.

Nodes and resource slices (DRA) become nodes; pods, Jobs, gangs of pods (pod groups of KAI, Volcano, the coscheduling plugin,
Kueue), Volcano Jobs, JobSets and the training operator's jobs become jobs. Kinds without work in them (Namespace,
Service, …) are passed over. Called by `connectors.sources.importing`.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from connectors.sources import _k8s_pods as pods
from connectors.sources._k8s_nodes import Slices, bare_node, node
from connectors.sources._k8s_pods import Amount, Claims, Object, obj, objects
from connectors.sources.cards import wanted
from connectors.sources.found import Found, Setting, Unusable
from schemas.records import JobSubmitted

WORKLOADS: Final = frozenset({"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "CronJob"})
QUEUE_KEYS: Final = (
    "kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "runai/queue", "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
)  # fmt: skip
GROUP_KEYS: Final = (
    "pod-group.scheduling.run.ai/name", "pod-group-name", "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group",
    "kueue.x-k8s.io/pod-group-name",
)  # fmt: skip
# The training operator's kinds, and where each keeps its replicas.
REPLICAS: Final = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
}


class Part(NamedTuple):
    """`members` that run the same pod."""

    members: int
    spec: Object
    annotations: Object


def recognises(documents: Sequence[object]) -> bool:
    """Do these decoded JSON or YAML documents hold Kubernetes objects?"""
    return any(isinstance(d, dict) and "kind" in d and "apiVersion" in d for d in documents)


def read(documents: Sequence[object], setting: Setting, name: str) -> Found:
    """Every object of the documents, lists unfolded."""
    found = Found("kubernetes")
    everything = [(f"{name}: {where}", o) for where, o in _unfold(documents, found, name)]
    claims = _claims(everything, found)
    slices = Slices()
    groups: dict[tuple[str, str], list[tuple[str, Object]]] = {}
    queues: dict[tuple[str, str], str] = {}
    nodes: list[tuple[str, Object]] = []
    for where, o in everything:
        kind, group = str(o.get("kind")), str(o.get("apiVersion")).split("/", maxsplit=1)[0]
        try:
            meta = obj(o.get("metadata"), "metadata")
            spec = obj(o.get("spec"), "spec")
            if kind == "Node":
                nodes.append((where, o))
            elif kind == "ResourceSlice":
                slices.add(where, spec)
            elif kind == "PodGroup":
                queues[(_namespace(meta), _name(meta))] = str(spec.get("queue", ""))
            elif kind == "Pod":
                gang = _gang(meta)
                if gang:
                    groups.setdefault((_namespace(meta), gang), []).append((where, o))
                else:
                    _pod(o, claims, setting, found, where)
            elif kind in _PARTS and (kind != "Job" or group in ("batch", "batch.volcano.sh")):
                _gang_object(kind if group != "batch.volcano.sh" else "VolcanoJob", o, claims, setting, found, where)
            elif kind in WORKLOADS:
                raise Unusable(f"a {kind} makes pods over time; export the pods or Jobs it made")
        except Unusable as e:
            found.unusable(where, str(e))
    for where, o in nodes:
        try:
            found.take(node(o, slices, setting, found, where))
        except Unusable as e:
            found.unusable(where, str(e))
    for name_of, where in slices.left():
        try:
            found.take(bare_node(name_of, slices, setting, found, where))
        except Unusable as e:
            found.unusable(where, str(e))
    for (namespace, gang), members in groups.items():
        queue = queues.get((namespace, gang), "")
        try:
            _gang_of_pods(gang, members, queue, claims, setting, found)
        except Unusable as e:
            found.unusable(members[0][0], str(e))
    if not (found.nodes or found.jobs or found.remarks):
        kinds = ", ".join(sorted({str(o["kind"]) for _, o in everything})) or "no object"
        found.unusable(name, f"has no node and no job in it, only {kinds}")
    return found


def _unfold(documents: Sequence[object], found: Found, name: str) -> list[tuple[str, Object]]:
    items: list[tuple[str, Object]] = []
    for i, document in enumerate(documents):
        if document is None:
            continue
        if not isinstance(document, dict) or "kind" not in document:
            found.unusable(f"{name}: document {i + 1}", "has no kind; a Kubernetes object would be right")
            continue
        kind = str(document["kind"])
        inner = document.get("items")
        if kind.endswith("List") and isinstance(inner, list):
            for k, o in enumerate(inner):
                if not isinstance(o, dict):
                    found.unusable(f"{name}: items[{k}]", f"is a {type(o).__name__}; an object would be right")
                    continue
                # The API server leaves kind out inside a typed list.
                items.append(
                    (
                        f"items[{k}]",
                        {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion", ""), **o},
                    )
                )
        else:
            items.append((f"document {i + 1}" if len(documents) > 1 else kind, document))
    return [(f"{where} ({o['kind']} {_called(o)})", o) for where, o in items]


def _called(o: Object) -> str:
    meta = o.get("metadata")
    return str(meta.get("name") or meta.get("generateName") or "?") if isinstance(meta, dict) else "?"


def _name(meta: Object) -> str:
    name = str(meta.get("name") or meta.get("generateName") or "")
    if not name:
        raise Unusable("metadata.name is missing")
    return name.rstrip("-")


def _namespace(meta: Object) -> str:
    return str(meta.get("namespace") or "default")


def _marks(meta: Object) -> Object:
    """Labels and annotations together: tools put the same keys in either."""
    return {**obj(meta.get("annotations"), "annotations"), **obj(meta.get("labels"), "labels")}


def _gang(meta: Object) -> str:
    marks = _marks(meta)
    return next((str(marks[k]) for k in GROUP_KEYS if marks.get(k)), "")


def _claims(everything: Sequence[tuple[str, Object]], found: Found) -> Claims:
    claims = Claims()
    for where, o in everything:
        if o["kind"] in ("ResourceClaim", "ResourceClaimTemplate"):
            try:
                meta, spec = obj(o.get("metadata"), "metadata"), obj(o.get("spec"), "spec")
                key = (_namespace(meta), _name(meta))
                if o["kind"] == "ResourceClaim":
                    claims.cards[key] = pods.claim_cards(spec)
                else:
                    claims.templates[key] = pods.claim_cards(obj(spec.get("spec"), "spec.spec"))
            except Unusable as e:
                found.unusable(where, str(e))
    return claims


# --- jobs ------------------------------------------------------------------------------------------------------------


def _pod(o: Object, claims: Claims, setting: Setting, found: Found, where: str) -> None:
    meta, spec, status = (obj(o.get(k), k) for k in ("metadata", "spec", "status"))
    phase = str(status.get("phase", ""))
    if phase in ("Succeeded", "Failed") and not setting.ended:
        raise Unusable(f"is over ({phase}); --ended takes such work too")
    for owner in objects(meta.get("ownerReferences"), "ownerReferences"):
        if owner.get("kind") == "DaemonSet":
            raise Unusable("belongs to a DaemonSet: it runs on every node and is not scheduled work")
    if phase == "Running":
        found.note(where, "runs under Kubernetes now; it is submitted as new work")
    parts = [Part(1, spec, obj(meta.get("annotations"), "annotations"))]
    found.take(_job(meta, parts, claims, setting, "", _limit_ms(spec)))


def _gang_of_pods(
    gang: str, members: Sequence[tuple[str, Object]], queue: str, claims: Claims, setting: Setting, found: Found
) -> None:
    parts, metas = [], []
    for where, o in members:
        meta, spec, status = (obj(o.get(k), k) for k in ("metadata", "spec", "status"))
        if str(status.get("phase", "")) in ("Succeeded", "Failed") and not setting.ended:
            found.note(where, "is over; the gang is submitted without it")
            continue
        parts.append(Part(1, spec, obj(meta.get("annotations"), "annotations")))
        metas.append(meta)
    if not parts:
        raise Unusable(f"all pods of gang {gang} are over")
    meta = {**metas[0], "name": gang}
    found.take(_job(meta, parts, claims, setting, queue, _limit_ms(parts[0].spec)))


def _gang_object(kind: str, o: Object, claims: Claims, setting: Setting, found: Found, where: str) -> None:
    meta, spec, status = (obj(o.get(k), k) for k in ("metadata", "spec", "status"))
    state = _over(status)
    if state and not setting.ended:
        raise Unusable(f"is over ({state}); --ended takes such work too")
    parts = [p for p in _PARTS[kind](spec) if p.members]
    if not parts:
        raise Unusable("asks for no pods (0 replicas)")
    if kind == "Job" and _count(spec, "completions", 1) > parts[0].members:
        found.note(where, f"completions {spec['completions']} is left out: one gang of {parts[0].members} is submitted")
    limit = _limit_ms(spec) or _limit_ms(parts[0].spec)
    found.take(_job(meta, parts, claims, setting, str(spec.get("queue") or ""), limit))


def _over(status: Object) -> str:
    for c in objects(status.get("conditions"), "conditions"):
        if c.get("type") in ("Complete", "Completed", "Failed", "Succeeded") and c.get("status") == "True":
            return str(c["type"])
    if status.get("completionTime"):
        return "Complete"
    phase = obj(status.get("state"), "state").get("phase")
    return str(phase) if phase in ("Completed", "Failed", "Aborted", "Terminated") else ""


def _count(spec: Object, key: str, default: int) -> int:
    value = spec.get(key, default)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Unusable(f"{key} is {value!r}; a whole number would be right")
    return value


def _part(members: int, template: object) -> Part:
    t = obj(template, "template")
    meta = obj(t.get("metadata"), "template.metadata")
    return Part(members, obj(t.get("spec"), "template.spec"), obj(meta.get("annotations"), "annotations"))


def _job_parts(spec: Object) -> list[Part]:
    parallelism = _count(spec, "parallelism", 1)
    return [_part(min(parallelism, _count(spec, "completions", parallelism)), spec.get("template"))]


def _volcano_parts(spec: Object) -> list[Part]:
    return [_part(_count(t, "replicas", 1), t.get("template")) for t in objects(spec.get("tasks"), "tasks")]


def _jobset_parts(spec: Object) -> list[Part]:
    parts = []
    for r in objects(spec.get("replicatedJobs"), "replicatedJobs"):
        inner = obj(obj(r.get("template"), "template").get("spec"), "template.spec")
        parts += [p._replace(members=p.members * _count(r, "replicas", 1)) for p in _job_parts(inner)]
    return parts


def _replica_parts(key: str) -> Callable[[Object], list[Part]]:
    def parts(spec: Object) -> list[Part]:
        replicas = obj(spec.get(key), key)
        return [_part(_count(obj(r, n), "replicas", 1), obj(r, n).get("template")) for n, r in replicas.items()]

    return parts


_PARTS: Final[dict[str, Callable[[Object], list[Part]]]] = {
    "Job": _job_parts,
    "VolcanoJob": _volcano_parts,
    "JobSet": _jobset_parts,
    **{kind: _replica_parts(key) for kind, key in REPLICAS.items()},
}


def _job(
    meta: Object, parts: Sequence[Part], claims: Claims, setting: Setting, queue: str, limit_ms: int
) -> JobSubmitted:
    """One job of members that all ask for the same. Raises `Unusable` when they do not."""
    namespace = _namespace(meta)
    asks = {(pods.effective(p.spec, namespace, claims), pods.models(p.spec, p.annotations)) for p in parts}
    if len(asks) > 1:
        shapes = ", ".join(sorted(_shape(a) for a, _ in asks))
        raise Unusable(f"its pods ask for different things ({shapes}); all members of a gang must ask for the same")
    ((amount, models),) = asks
    if amount.cards_milli > 1000 and amount.cards_milli % 1000:
        raise Unusable(f"asks for {amount.cards_milli / 1000:g} cards; whole cards, or a part of one, can be asked for")
    spec = parts[0].spec
    priority = spec.get("priority", 0)
    marks = _marks(meta)
    queue = queue or next((str(marks[k]) for k in QUEUE_KEYS if marks.get(k)), "") or namespace
    containers = objects(spec.get("containers"), "containers")
    argv = [*_words(containers[0], "command"), *_words(containers[0], "args")] if containers else []
    inferred = [f for f, n in (("cpu_milli", amount.cpu_milli), ("memory_bytes", amount.memory_bytes)) if not n]
    return JobSubmitted(
        job=f"{namespace}.{_name(meta)}", at=min(_time(meta.get("creationTimestamp"), setting.at), setting.at),
        domain=setting.domain, user=namespace, queue=queue,
        priority=priority if isinstance(priority, int) and abs(priority) < 1 << 31 else 0,
        members=sum(p.members for p in parts), cards_milli=amount.cards_milli,
        card_models=tuple(dict.fromkeys(w for m in models for w in wanted(m))), card_memory_bytes=0, cpu_milli=amount.cpu_milli,
        memory_bytes=amount.memory_bytes, adjacency="", run_limit_ms=limit_ms, run_estimate_ms=0, command=tuple(argv),
        labels=(f"kubernetes.namespace={namespace}",), inferred=(*inferred, "user"),
    )  # fmt: skip


def _shape(a: Amount) -> str:
    return f"{a.cards_milli / 1000:g} cards {a.cpu_milli} mCPU {a.memory_bytes} B"


def _words(container: Object, key: str) -> list[str]:
    value = container.get(key)
    return [str(v) for v in value] if isinstance(value, list) else []


def _limit_ms(spec: Object) -> int:
    return _count(spec, "activeDeadlineSeconds", 0) * 1000


def _time(value: object, default: int) -> int:
    try:
        return int(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return default
