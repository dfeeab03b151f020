"""One Slurm node or job as a row, whatever outer form it came in. Used by `connectors.sources.slurm` only.

Slurm's own rules hold: K, M, G, T are powers of 1024, a bare number of memory is MiB and of time minutes, a job's nodes are
its members, and what it asks for each node is what a member asks for.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from connectors.sources.cards import card, wanted
from connectors.sources.found import Found, Setting, Unusable
from schemas.errors import Refused
from schemas.records import JobSubmitted, NodeRegistered
from schemas.units import SlurmMemory, parse_slurm_memory

MIB: Final = 1 << 20
MINUTE_MS: Final = 60_000
# Slurm's priority counts down from 2^32 when no weights are configured: that is the order of age, which is the order here
# anyway. Only what fits a signed 32-bit number is a priority that somebody chose.
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_ARRAY: Final = 10_000
OVER: Final = frozenset(
    {
        "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
        "REVOKED", "SPECIAL_EXIT",
    }
)  # fmt: skip
AWAY: Final = ("DOWN", "FAIL", "MAINT", "ERROR", "UNKNOWN", "POWER", "NOT_RESPONDING", "FUTURE", "INVAL", "REBOOT")
_GRES: Final = re.compile(r"^(?:gres[:/])?(\w+)(?:[:/]([A-Za-z][\w.-]*))?(?:[:=](\d+))?(?:\(.*\))?$")
_CLOCK: Final = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?$")
_RANGE: Final = re.compile(r"^(\d+)(?:-(\d+)(?::(\d+))?)?$")


class Item:
    """A node or job with the names of Slurm's JSON; where it is in the file, for remarks."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def called(self, key: str, kind: str) -> str:
        name = self._values.get(key)
        return self.where if name in (None, "") else f"{self.where} ({kind} {name})"

    def text(self, key: str) -> str:
        value = self._values.get(key)
        return "" if value is None else str(value).strip()

    def words(self, key: str) -> list[str]:
        """A state: one word, a list of them, or words joined by '+'."""
        value = self._values.get(key)
        parts = value if isinstance(value, list) else re.split(r"[+\s,]", self.text(key))
        return [str(p).strip("*~#!%$@^-").upper() for p in parts if str(p).strip()]

    def names(self, key: str) -> list[str]:
        value = self._values.get(key)
        return [str(v) for v in value] if isinstance(value, list) else [v for v in self.text(key).split(",") if v]

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number. Raises `Unusable`, naming the field, when there is none and no default."""
        text = self.text(key)
        if re.fullmatch(r"\d+(\.0+)?", text):
            return int(float(text)) if "." in text else int(text)
        if not text and default is not None:
            return default
        raise Unusable(f"{key} is {text!r}; a whole number would be right")


def memory(text: str, key: str) -> SlurmMemory:
    """Slurm's memory: '512G', '62.50G', '64000' (MiB), '4Gc' (for each CPU)."""
    try:
        return parse_slurm_memory(text.strip())
    except Refused as e:
        raise Unusable(f"{key}: {e}") from e


def gpus(text: str, key: str) -> tuple[dict[str, int], list[str]]:
    """Cards by type ('' when not typed) of a gres or TRES list, and the other generic resources in it."""
    typed: dict[str, int] = {}
    untyped = 0
    others: list[str] = []
    for part in re.split(r",(?![^(]*\))", text):
        if not part or ("=" in part and not part.startswith("gres")):
            continue  # cpu=, mem=, node=, billing=
        match = _GRES.match(part.strip())
        if match is None:
            raise Unusable(f"{key} has {part!r}; gpu:TYPE:COUNT would be right")
        name, kind, count = match[1], match[2] or "", int(match[3] or 1)
        if name != "gpu":
            others.append(part)
        elif kind:
            typed[kind] = typed.get(kind, 0) + count
        else:
            untyped += count
    # TRES names the total once more without a type.
    if untyped > sum(typed.values()):
        if typed:
            raise Unusable(f"{key} is {text!r}: some GPUs have a type and some have none")
        typed[""] = untyped
    return typed, others


def one_model(found: Mapping[str, int], key: str) -> tuple[str, int]:
    """The only type and its count; a mix is not a node or a member that Lockstep knows."""
    if len(found) > 1:
        raise Unusable(f"{key} mixes {', '.join(found)}; cards of one model can be described, not several")
    return next(iter(found.items()), ("", 0))


def node(item: Item, setting: Setting, found: Found) -> NodeRegistered:
    """A node as registration. Raises `Unusable`."""
    name = item.text("name")
    if not name:
        raise Unusable("the node has no name")
    typed, others = gpus(item.text("gres"), "gres")
    kind, cards = one_model(typed, "gres")
    if cards and not kind:
        raise Unusable(
            f"gres {item.text('gres')!r} does not say which GPU; gpu:TYPE:{cards} in gres.conf would be right"
        )
    for other in others:
        found.note(item.called("name", "node"), f"gres {other} is left out; only whole GPUs are taken from it")
    model = card(kind)
    states = item.words("state") + item.words("state_flags")
    draining = any(s.startswith("DRAIN") or s == "DRNG" for s in states)
    away = any(s.startswith(AWAY) for s in states)
    reason = item.text("reason")
    labels = [f"slurm.partition={p}" for p in item.names("partitions")]
    labels += [f"slurm.feature={f}" for f in item.names("features")]
    labels += [f"slurm.reason={reason}"] if reason and reason != "none" else []
    return NodeRegistered(
        node=name, at=setting.at, domain=setting.domain, site=setting.site or "slurm", region="", city="", data_centre="",
        row="", rack="", cards=cards, card_model=model.model, card_memory_bytes=model.memory_bytes,
        cpu_milli=item.whole("cpus") * 1000, memory_bytes=item.whole("real_memory") * MIB,
        disk_bytes=item.whole("temporary_disk", 0) * MIB, interconnect=model.interconnect, labels=tuple(labels), owner="",
        admin_state="maintenance" if away else "draining" if draining else "active",
    )  # fmt: skip


def job(item: Item, setting: Setting, found: Found) -> list[JobSubmitted]:
    """A job as submission; a waiting array gives one for each of its tasks. Raises `Unusable`."""
    job_id = item.text("job_id")
    if not job_id:
        raise Unusable("the job has no id")
    where = item.called("job_id", "job")
    _wanted(item, setting, found, where)
    if item.text("cards_unknown"):
        raise Unusable("does not say how many GPUs it asks for; add ReqTRES to sacct --format")
    members = max(1, item.whole("node_count", 1))
    kind, cards = _cards(item, members)
    cpus = -(-item.whole("cpus", 1) // members)
    memory_bytes, memory_said = _memory(item, members, cpus)
    priority = item.whole("priority", 0)
    features = item.text("features")
    if features:
        found.note(where, f"features {features!r} are left out: nodes are chosen by card model, CPU and memory")
    labels = [f"slurm.job={job_id}", f"slurm.name={item.text('name')}"]
    if setting.ended and item.text("run_s"):
        labels.append(f"sim.run_ms={item.whole('run_s') * 1000}")
        code = item.text("exit_code").split(":", maxsplit=1)[0]
        labels += [f"sim.exit_code={code}"] if code not in ("", "0") else []
    row = JobSubmitted(
        job=f"slurm-{job_id}", at=_time(item.text("submit_time"), setting), domain=setting.domain,
        user=item.text("user_name") or item.text("user_id") or "slurm", queue=item.text("partition").split(",", maxsplit=1)[0],
        priority=priority if priority <= MAX_PRIORITY else 0, members=members, cards_milli=cards * 1000,
        card_models=wanted(kind) if kind else (), card_memory_bytes=0, cpu_milli=cpus * 1000,
        memory_bytes=memory_bytes, adjacency="", run_limit_ms=_limit_ms(item.text("time_limit")), run_estimate_ms=0,
        command=(), labels=tuple(labels),
        inferred=(() if memory_said else ("memory_bytes",)) + (() if priority <= MAX_PRIORITY else ("priority",)),
    )  # fmt: skip
    array = item.whole("array_job_id", 0)
    task = item.text("array_task_id") or item.text("array_task_string")
    if array and task:
        return [row._replace(job=f"slurm-{array}_{t}") for t in _tasks(task)]
    return [row]


def _wanted(item: Item, setting: Setting, found: Found, where: str) -> None:
    """Raises `Unusable` for work that should not be submitted anew."""
    states = item.words("job_state")
    over = [s for s in states if s in OVER]
    if over and not setting.ended:
        raise Unusable(f"is over ({over[0]}); --ended takes such work too")
    if "PENDING" in states:
        dependency = item.text("dependency")
        if dependency:
            raise Unusable(f"waits for other jobs ({dependency}); submit it when they are done")
        if item.text("priority") == "0":
            raise Unusable("is held; release it first (scontrol release)")
    if item.whole("het_job_id", 0):
        raise Unusable("is a part of a heterogeneous job; all members of a gang must ask for the same")
    if any(s in ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING") for s in states):
        found.note(where, "runs under Slurm now; it is submitted as new work")


def _cards(item: Item, members: int) -> tuple[str, int]:
    """Type and number of cards for each member."""
    per_node, total = item.text("tres_per_node"), item.text("tres_per_job")
    if per_node:
        return one_model(gpus(per_node, "tres_per_node")[0], "tres_per_node")
    if total:
        key = "tres_per_job"
    elif item.text("tres_per_task"):
        key, total = "tres_per_task", item.text("tres_per_task")
    else:
        key, total = "tres_req_str", item.text("tres_req_str")
    kind, cards = one_model(gpus(total, key)[0], key)
    if key == "tres_per_task":
        cards *= item.whole("tasks", 1)
    if cards % members:
        raise Unusable(f"{key}: {cards} GPUs cannot be shared evenly by {members} nodes; ask for GPUs per node")
    return kind, cards // members


def _memory(item: Item, members: int, cpus: int) -> tuple[int, bool]:
    """Bytes for each member, and whether somebody said so."""
    per_node, per_cpu, accounted = item.text("memory_per_node"), item.text("memory_per_cpu"), item.text("memory_sacct")
    if per_node not in ("", "0"):
        return memory(per_node, "memory_per_node").bytes, True
    if per_cpu not in ("", "0"):
        return memory(per_cpu, "memory_per_cpu").bytes * cpus, True
    if accounted:
        # Before 21.08 a letter says 'for each CPU' or 'for each node'; since then it is the whole job's.
        amount, per = memory(accounted, "ReqMem")
        return amount * cpus if per == "cpu" else amount if per == "node" else amount // members, True
    for part in item.text("tres_req_str").split(","):
        if part.startswith("mem="):
            return memory(part[4:], "tres_req_str").bytes // members, True
    return 0, False


def _limit_ms(text: str) -> int:
    """A time limit: minutes, or `[days-]hours:minutes[:seconds]`, or none."""
    if text in ("", "UNLIMITED", "INFINITE", "Partition_Limit", "NOT_SET"):
        return 0
    match = _CLOCK.match(text)
    if match is None:
        raise Unusable(f"time_limit is {text!r}; minutes or days-hours:minutes:seconds would be right")
    days, first, second, third = (int(g) if g is not None else None for g in match.groups())
    if days is not None:
        return ((days * 24 + (first or 0)) * 60 + (second or 0)) * MINUTE_MS + (third or 0) * 1000
    if second is None:
        return (first or 0) * MINUTE_MS
    if third is None:  # minutes:seconds
        return (first or 0) * MINUTE_MS + second * 1000
    return ((first or 0) * 60 + second) * MINUTE_MS + third * 1000


def _time(text: str, setting: Setting) -> int:
    """Milliseconds. Slurm prints local time without its zone: taken as UTC. No time, or one that is still to come: now."""
    if text.isdecimal():
        at = int(text) * 1000
        return min(at, setting.at) if at else setting.at
    try:
        return min(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000), setting.at)
    except ValueError:
        return setting.at


def _tasks(text: str) -> list[int]:
    """Tasks of an array: '7', '1-10%4', '0,4-12:4'."""
    tasks: list[int] = []
    for part in text.split("%", maxsplit=1)[0].split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise Unusable(f"array tasks {text!r} cannot be read; 1-10 or 1,3,5 would be right")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if (last - first) // max(1, step) >= MAX_ARRAY:
            raise Unusable(f"array of more than {MAX_ARRAY:,} tasks; split it")
        tasks += range(first, last + 1, max(1, step))
    return tasks
