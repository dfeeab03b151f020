"""From what a person says of a job to a whole submission: parsed, checked, and the rest inferred and named.

The command line and the local API call it. Inference looks at the map only to size CPU and memory, and never changes a given value.
"""

import getpass
import re
import secrets
import statistics
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from schemas.accelerators import ACCELERATORS, candidates
from schemas.errors import Refused
from schemas.records import JobSubmitted, NodeRecorded
from schemas.units import gibibytes, parse_bytes, parse_cards_milli, parse_cpu_milli, parse_duration_ms

ADJACENCY: Final = ("", "site", "data_centre", "rack", "node")
# Where no node is known to take a share of: what a card's work is commonly given, and what work without a card is.
CPU_MILLI_PER_CARD: Final = 8_000
MEMORY_BYTES_PER_CARD: Final = 64 << 30
CPU_MILLI_PLAIN: Final = 1_000
MEMORY_BYTES_PLAIN: Final = 2 << 30
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
Text = Annotated[
    str, BeforeValidator(lambda v: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v)
]


class JobSpec(BaseModel):
    """What a person may say of a job; nothing has to be said. Amounts are of each member, as text with a unit."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    job: str | None = Field(None, description="Id of the job, unique in the domain")
    user: str | None = Field(None, description="Who submits")
    queue: str | None = Field(None, description="Queue it waits in")
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000, description="Higher goes first")
    members: int | None = Field(None, ge=1, le=1_000_000, description="Members of the gang; all start together or none")
    cards: Text | None = Field(None, description="Cards of each member: 8, 0.5 or 500m; 0 for none")
    model: str | list[str] | None = Field(None, description="Card model, or several of which any will do")
    card_memory: Text | None = Field(None, description="Least device memory of each card: 80GB")
    cpu: Text | None = Field(None, description="Cores of each member: 16, 0.5 or 500m")
    memory: Text | None = Field(None, description="Main memory of each member: 128Gi")
    adjacency: str | None = Field(
        None, description="Narrowest level that must hold the whole gang: site, data_centre, rack or node"
    )
    time_limit: Text | None = Field(None, description="Longest run: 90s, 5m, 1h30m, 2d")
    estimate: Text | None = Field(None, description="Expected run: 90s, 5m, 1h30m, 2d")
    command: list[str] | str | None = Field(None, description="Command and arguments to run")
    labels: dict[str, Text] = Field(default_factory=dict, description="Labels")


class Inferred(NamedTuple):
    """A field that was not given: its value for people, and why this one."""

    field: str
    value: str
    why: str


def read_spec(path: Path, text: str) -> JobSpec:
    """A job file (YAML). Raises `Refused` that says which field is wrong and what would be right."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise Refused(f"{path} is not YAML: {' '.join(str(e).split())[:200]}") from e
    if not isinstance(found, dict):
        raise Refused(f"{path} must hold fields of one job, for example `cards: 8`; it holds {type(found).__name__}")
    return spec_of(found, f"{path}: ")


def spec_of(fields: Mapping[str, object], where: str = "") -> JobSpec:
    """A checked spec. Raises `Refused`."""
    for name in fields:
        if name not in JobSpec.model_fields:
            near = get_close_matches(str(name), JobSpec.model_fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(JobSpec.model_fields)}"
            raise Refused(f"{where}a job has no field {name!r}; {hint}")
    try:
        return JobSpec.model_validate(fields)
    except ValidationError as e:
        first = e.errors()[0]
        raise Refused(
            f"{where}{'.'.join(str(p) for p in first['loc'][:1])}: {first['msg']}, not {first['input']!r}"
        ) from e


def complete(
    spec: JobSpec, domain: str, now_ms: int, nodes: Sequence[NodeRecorded]
) -> tuple[JobSubmitted, list[Inferred]]:
    """The whole submission, and what of it was inferred. `nodes` are those of the map. Raises `Refused`."""
    inferred: list[Inferred] = []

    def infer(field: str, value: str, why: str) -> None:
        inferred.append(Inferred(field, value, why))

    user = spec.user
    if user is None:
        user = getpass.getuser()
        infer("user", user, "who runs this command")
    command = _command(spec.command)
    job = spec.job
    if job is None:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(command[0]).name if command else "job").strip("-.") or "job"
        job = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', user)}-{base}-{secrets.token_hex(3)}".lstrip("-._")[:200]
        infer("job", job, "user, command, and chance")
    if not _NAME.fullmatch(job):
        raise Refused(f"job: {job!r} is no id; letters, digits, '.', '_' and '-' would be right, 200 at most")
    queue = spec.queue
    if queue is None:
        queue = "default"
        infer("queue", queue, "no queue was named")
    priority = spec.priority
    if priority is None:
        priority = 0
        infer("priority", "0", "as most jobs")
    members = spec.members
    if members is None:
        members = 1
        infer("members", "1", "no gang was asked for")
    models = _models(spec.model, nodes)
    if spec.cards is not None:
        cards_milli = _parsed("cards", parse_cards_milli, spec.cards)
    else:
        cards_milli = 1000
        infer("cards", "1", "the smallest whole number; say --cards 0 for work without a card")
    if not cards_milli and (models or spec.card_memory):
        raise Refused(
            "cards: a job without cards cannot ask for a model or device memory; leave them out, or ask for a card"
        )
    if cards_milli and not models:
        infer(
            "model",
            "any",
            "no model was named" + ("; members may get different ones" if (spec.members or 1) > 1 else ""),
        )
    card_memory_bytes = _parsed("card_memory", parse_bytes, spec.card_memory) if spec.card_memory is not None else 0
    cpu_milli, memory_bytes = _shares(spec, cards_milli, models, card_memory_bytes, nodes, inferred)
    run_limit_ms = _parsed("time_limit", parse_duration_ms, spec.time_limit) if spec.time_limit is not None else 0
    if spec.time_limit is not None and not run_limit_ms:
        raise Refused(f"time_limit: {spec.time_limit} is no time to run in; leave it out for no limit")
    if spec.estimate is not None:
        run_estimate_ms = _parsed("estimate", parse_duration_ms, spec.estimate)
    else:
        run_estimate_ms = run_limit_ms
        infer(
            "estimate",
            spec.time_limit or "unknown",
            "its time limit" if run_limit_ms else "nothing was said about how long it runs",
        )
    adjacency = spec.adjacency or ""
    if adjacency not in ADJACENCY:
        near = get_close_matches(adjacency, ADJACENCY, 1)
        raise Refused(
            f"adjacency: {adjacency!r} is no level; "
            + (f"did you mean {near[0]}?" if near else f"one of {', '.join(ADJACENCY[1:])}")
        )
    labels = tuple(f"{k}={v}" for k, v in sorted(spec.labels.items()))
    row = JobSubmitted(
        job, now_ms, domain, user, queue, priority, members, cards_milli, models, card_memory_bytes, cpu_milli, memory_bytes,
        adjacency, run_limit_ms, run_estimate_ms, command, labels, tuple(i.field for i in inferred),
    )  # fmt: skip
    return row, inferred


def _parsed(field: str, parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except Refused as e:
        raise Refused(f"{field}: {e}") from e


def _command(given: list[str] | str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return ("sh", "-c", given) if isinstance(given, str) else tuple(given)


def _models(given: str | list[str] | None, nodes: Sequence[NodeRecorded]) -> tuple[str, ...]:
    """Models of the table, each once. A name that only the map knows is taken as it is."""
    names = [given] if isinstance(given, str) else given or []
    on_map = {n.card_model for n in nodes if n.card_model}
    found: dict[str, None] = {}
    for name in names:
        rows = [c.model for c in candidates(name)]
        if not rows and name in on_map:
            rows = [name]
        if not rows:
            near = get_close_matches(name, [*on_map, *ACCELERATORS], 3, 0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "a new model is a new row of the accelerator table"
            raise Refused(f"model: no card is known as {name!r}; {hint}")
        found.update(dict.fromkeys(rows))
    return tuple(found)


def _shares(
    spec: JobSpec, cards_milli: int, models: tuple[str, ...], card_memory_bytes: int, nodes: Sequence[NodeRecorded],
    inferred: list[Inferred],
) -> tuple[int, int]:  # fmt: skip
    """CPU and memory of a member: given, or its cards' share of a node, so that no card is left without either."""
    fitting = [
        n for n in nodes
        if n.cards * 1000 >= max(cards_milli, 1) and (not models or n.card_model in models) and n.card_memory_bytes >= card_memory_bytes
    ]  # fmt: skip
    if not cards_milli:
        cpu_share, memory_share, why = CPU_MILLI_PLAIN, MEMORY_BYTES_PLAIN, "work without a card"
    elif fitting:
        # The lower quartile of the nodes that could hold it: three in four have at least this share.
        cpu_share = _low([n.cpu_milli * cards_milli // (n.cards * 1000) for n in fitting])
        memory_share = _low([n.memory_bytes * cards_milli // (n.cards * 1000) for n in fitting])
        why = f"its cards' share of a node, of {len(fitting):,} that could hold a member"
    else:
        cpu_share = CPU_MILLI_PER_CARD * cards_milli // 1000
        memory_share = MEMORY_BYTES_PER_CARD * cards_milli // 1000
        why = "8 cores and 64 GiB for each card; no node of the map could hold a member"
    if spec.cpu is not None:
        cpu_milli = _parsed("cpu", parse_cpu_milli, spec.cpu)
    else:
        cpu_milli = cpu_share
        inferred.append(Inferred("cpu", f"{cpu_milli / 1000:g}", why))
    if spec.memory is not None:
        memory_bytes = _parsed("memory", parse_bytes, spec.memory)
    else:
        memory_bytes = memory_share
        inferred.append(Inferred("memory", f"{gibibytes(memory_bytes)}Gi", why))
    return cpu_milli, memory_bytes


def _low(values: Sequence[int]) -> int:
    return int(statistics.quantiles(values, n=4, method="inclusive")[0]) if len(values) > 1 else values[0]
