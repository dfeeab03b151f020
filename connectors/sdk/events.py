"""Events that infrastructure sends, as models that refuse wrong values before they leave the sender.

Amounts may be numbers in the unit of the field's name, or text as people write it (`memory_bytes="80GB"`). Each model becomes the row
of the same name in `schemas.records`; `connectors.sdk.Producer` sends it.
"""

import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from schemas import records
from schemas.accelerators import candidates
from schemas.errors import Refused
from schemas.records import Row
from schemas.units import parse_bytes, parse_cards_milli, parse_cpu_milli, parse_duration_ms, parse_gbps

N = TypeVar("N", int, float)
INT64_MAX: Final = (1 << 63) - 1
SHOWN: Final = 80  # characters of a wrong value in an error


def now_ms() -> int:
    """This machine's time, milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def _text(parse: Callable[[str], N]) -> BeforeValidator:
    """Text with a unit becomes a number; what is no such text is refused with the reason."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except Refused as e:
            raise ValueError(str(e)) from e

    return BeforeValidator(read)


def _labels(value: object) -> object:
    """A mapping becomes `key=value` texts."""
    return tuple(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else value


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """The first of pydantic's errors as one sentence, and how many more there are."""
    errors = error.errors(include_url=False)
    first = errors[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    told = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "missing":
            told = "is missing"
        case "extra_forbidden":
            names = [f.alias or name for name, f in model.model_fields.items()]
            near = get_close_matches(field, names, 1)
            told = "is no field; " + (f"did you mean {near[0]}?" if near else f"the fields are {', '.join(names)}")
        case "value_error":
            pass  # ours: it names value and remedy already
        case _:
            shown = repr(first["input"])
            told = f"{told[:1].lower()}{told[1:]}, not {shown if len(shown) <= SHOWN else shown[:SHOWN] + '…'}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    colon = "" if first["type"] in ("missing", "extra_forbidden") else ":"
    return f"{model.__name__}{f'.{field}' if field else ''}{colon} {told}{more}"


Name = Annotated[str, Field(min_length=1, max_length=253)]
Count = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
if TYPE_CHECKING:
    # What may be given; what is kept is the number. Type checkers know one type for both.
    Bytes: TypeAlias = int | str
    CpuMilli: TypeAlias = int | str
    CardsMilli: TypeAlias = int | str
    Gbps: TypeAlias = float | str
    Millis: TypeAlias = int | str
    Labels: TypeAlias = tuple[str, ...] | Mapping[str, str]
else:
    Bytes = Annotated[int, _text(parse_bytes), Field(ge=0, le=INT64_MAX)]
    CpuMilli = Annotated[int, _text(parse_cpu_milli), Field(ge=0, le=INT64_MAX)]
    CardsMilli = Annotated[int, _text(parse_cards_milli), Field(ge=0, le=INT64_MAX)]
    Gbps = Annotated[float, _text(parse_gbps), Field(ge=0, allow_inf_nan=False)]
    Millis = Annotated[int, _text(parse_duration_ms), Field(ge=0, le=INT64_MAX)]
    Labels = Annotated[tuple[str, ...], BeforeValidator(_labels)]
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
At = Annotated[int, Field(ge=0, le=INT64_MAX)]
AdminState = Literal["active", "draining", "maintenance"]


class Event(BaseModel):
    """What all events share. `topic` and `key` say where one goes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    row_type: ClassVar[type[Row]]
    topic: ClassVar[str]
    key_field: ClassVar[str]

    def __init__(self, /, **values: object) -> None:
        """Raises `Refused`: one sentence with the model, the field, what is wrong with it and what would be right."""
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise Refused(_sentence(type(self), e)) from e

    def row(self) -> Row:
        """The row as it is encoded."""
        row: Row = self.row_type._make(getattr(self, f) for f in self.row_type._fields)
        return row

    @property
    def key(self) -> bytes:
        return str(getattr(self, self.key_field)).encode()


class NodeRegistered(Event):
    """A node joins, or its description changed."""

    row_type: ClassVar[type[Row]] = records.NodeRegistered
    topic: ClassVar[str] = "resources"
    key_field: ClassVar[str] = "node"
    node: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    site: Name
    region: str = ""
    city: str = ""
    data_centre: str = ""
    row_: str = Field(default="", alias="row")
    rack: str = ""
    cards: Annotated[int, Field(ge=0, le=63)] = 0
    card_model: str = ""
    card_memory_bytes: Bytes = 0
    cpu_milli: CpuMilli
    memory_bytes: Bytes
    disk_bytes: Bytes = 0
    interconnect: str = ""
    labels: Labels = ()
    owner: str = ""
    admin_state: AdminState = "active"

    @model_validator(mode="after")
    def _cards_have_a_model(self) -> "NodeRegistered":
        if self.cards and not self.card_model:
            raise ValueError("a node with cards needs their card_model")
        return self

    def row(self) -> Row:
        """With the model's name as the accelerator table has it, and its memory from there where none is given."""
        values = {f: getattr(self, "row_" if f == "row" else f) for f in self.row_type._fields}
        found = candidates(self.card_model) if self.card_model else ()
        fitting = [c for c in found if not self.card_memory_bytes or c.memory_bytes == self.card_memory_bytes]
        if len(fitting) == 1:
            values["card_model"] = fitting[0].model
            values["card_memory_bytes"] = self.card_memory_bytes or fitting[0].memory_bytes
        return records.NodeRegistered(**values)


class NodeRemoved(Event):
    """A node left for good."""

    row_type: ClassVar[type[Row]] = records.NodeRemoved
    topic: ClassVar[str] = "resources"
    key_field: ClassVar[str] = "node"
    node: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    reason: str = ""


class NodeTelemetry(Event):
    """One sample of a node's health; also its heartbeat. `counter` grows with each sample of a node; a sender that started
    anew may count from 0 again, if its clock did not go back."""

    row_type: ClassVar[type[Row]] = records.NodeTelemetry
    topic: ClassVar[str] = "resource-telemetry"
    key_field: ClassVar[str] = "node"
    node: Name
    at: At = Field(default_factory=now_ms)
    counter: Annotated[int, Field(ge=0, le=INT64_MAX)]
    cards_healthy: Annotated[int, Field(ge=0, le=63)]
    card_utilization_pct: Percent = 0.0
    card_memory_used_bytes: Bytes = 0
    cpu_used_milli: CpuMilli = 0
    memory_used_bytes: Bytes = 0
    power_watts: Figure = 0.0


class LinkRegistered(Event):
    """A directed link between two sites joins, or its description changed."""

    row_type: ClassVar[type[Row]] = records.LinkRegistered
    topic: ClassVar[str] = "links"
    key_field: ClassVar[str] = "link"
    link: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    src_site: Name
    dst_site: Name
    capacity_gbps: Gbps
    base_latency_ms: Figure = 0.0
    cost_usd_per_gb: Figure = 0.0
    admin_state: AdminState = "active"

    @model_validator(mode="after")
    def _joins_two_sites(self) -> "LinkRegistered":
        if self.src_site == self.dst_site:
            raise ValueError(f"a link joins two sites, this one leads from {self.src_site} to itself")
        return self


class LinkRemoved(Event):
    """A link left for good."""

    row_type: ClassVar[type[Row]] = records.LinkRemoved
    topic: ClassVar[str] = "links"
    key_field: ClassVar[str] = "link"
    link: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    reason: str = ""


class LinkTelemetry(Event):
    """One sample of a link. `counter` as in `NodeTelemetry`."""

    row_type: ClassVar[type[Row]] = records.LinkTelemetry
    topic: ClassVar[str] = "link-telemetry"
    key_field: ClassVar[str] = "link"
    link: Name
    at: At = Field(default_factory=now_ms)
    counter: Annotated[int, Field(ge=0, le=INT64_MAX)]
    used_gbps: Gbps
    latency_ms: Figure
    loss_pct: Percent = 0.0


class JobSubmitted(Event):
    """A job is asked for. Amounts are of each member."""

    row_type: ClassVar[type[Row]] = records.JobSubmitted
    topic: ClassVar[str] = "jobs"
    key_field: ClassVar[str] = "job"
    job: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    user: Name
    queue: Name = "default"
    priority: int = Field(default=0, ge=-(1 << 31), le=(1 << 31) - 1)
    members: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    cards_milli: CardsMilli = 1000
    card_models: tuple[str, ...] = ()
    card_memory_bytes: Bytes = 0
    cpu_milli: CpuMilli = 0
    memory_bytes: Bytes = 0
    adjacency: Literal["", "site", "data_centre", "rack", "node"] = ""
    run_limit_ms: Millis = 0
    run_estimate_ms: Millis = 0
    command: tuple[str, ...] = ()
    labels: Labels = ()
    inferred: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole_cards(self) -> "JobSubmitted":
        if (milli := int(self.cards_milli)) > 1000 and milli % 1000:
            raise ValueError(
                f"cards_milli {milli} is neither whole cards nor a share of one; 500 or 2000 would be right"
            )
        return self


class JobCancelled(Event):
    """The end of a job is asked for."""

    row_type: ClassVar[type[Row]] = records.JobCancelled
    topic: ClassVar[str] = "jobs"
    key_field: ClassVar[str] = "job"
    job: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    user: Name
    reason: str = ""


class Receipt(Event):
    """A node's answer to a command, or its news of the members it runs."""

    row_type: ClassVar[type[Row]] = records.Receipt
    topic: ClassVar[str] = "receipts"
    key_field: ClassVar[str] = "job"
    job: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    attempt: Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
    node: Name
    kind: Literal["started", "start_failed", "finished", "failed", "released"]
    exit_code: int = Field(default=0, ge=-(1 << 31), le=(1 << 31) - 1)
    reason: str = ""


class JobProgress(Event):
    """A running job tells how far it is."""

    row_type: ClassVar[type[Row]] = records.JobProgress
    topic: ClassVar[str] = "receipts"
    key_field: ClassVar[str] = "job"
    job: Name
    at: At = Field(default_factory=now_ms)
    domain: Name = "default"
    attempt: Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
    progress_fraction: Annotated[float, Field(ge=0, le=1)]
    checkpoint: str = ""
    checkpoint_at: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0


EVENTS: Final[tuple[type[Event], ...]] = (
    NodeRegistered, NodeRemoved, NodeTelemetry, LinkRegistered, LinkRemoved, LinkTelemetry, JobSubmitted, JobCancelled, Receipt,
    JobProgress,
)  # fmt: skip
