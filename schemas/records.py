"""Every record of the catalogue as a typed, immutable row.

Field order and names are those of the newest `.avsc` of the record (a test holds them together); units and
meaning are documented there. Rows are named tuples because the hot paths build hundreds of thousands a second
from decoded columns: `Row._make` over zipped columns costs a tenth of a frozen dataclass. Times (`at`, `*_at`) are
milliseconds since 1970-01-01 UTC. Everything imports this module; it imports nothing of ours.
"""

from typing import NamedTuple


class NodeRegistered(NamedTuple):
    """A node joins, or its description changed. Written by infrastructure to `resources`, key: node."""

    node: str
    at: int
    domain: str
    site: str
    region: str
    city: str
    data_centre: str
    row: str
    rack: str
    cards: int
    card_model: str
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    interconnect: str
    labels: tuple[str, ...]
    owner: str
    admin_state: str


class NodeRemoved(NamedTuple):
    """A node left for good. Written by infrastructure to `resources`, key: node."""

    node: str
    at: int
    domain: str
    reason: str


class NodeTelemetry(NamedTuple):
    """One sample of a node's health; also its heartbeat. Written by infrastructure to `resource-telemetry`, key: node."""

    node: str
    at: int
    counter: int
    cards_healthy: int
    card_utilization_pct: float
    card_memory_used_bytes: int
    cpu_used_milli: int
    memory_used_bytes: int
    power_watts: float


class LinkRegistered(NamedTuple):
    """A directed link between two sites joins, or its description changed. Written by infrastructure to `links`, key: link."""

    link: str
    at: int
    domain: str
    src_site: str
    dst_site: str
    capacity_gbps: float
    base_latency_ms: float
    cost_usd_per_gb: float
    admin_state: str


class LinkRemoved(NamedTuple):
    """A link left for good. Written by infrastructure to `links`, key: link."""

    link: str
    at: int
    domain: str
    reason: str


class LinkTelemetry(NamedTuple):
    """One sample of a link. Written by probes to `link-telemetry`, key: link."""

    link: str
    at: int
    counter: int
    used_gbps: float
    latency_ms: float
    loss_pct: float


class JobSubmitted(NamedTuple):
    """A user asks for a job. Written by the CLI, the SDK or an importer to `jobs`, key: job."""

    job: str
    at: int
    domain: str
    user: str
    queue: str
    priority: int
    members: int
    cards_milli: int
    card_models: tuple[str, ...]
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    adjacency: str
    run_limit_ms: int
    run_estimate_ms: int
    command: tuple[str, ...]
    labels: tuple[str, ...]
    inferred: tuple[str, ...]


class JobCancelled(NamedTuple):
    """A user asks for the end of a job. Written to `jobs`, key: job."""

    job: str
    at: int
    domain: str
    user: str
    reason: str


class Receipt(NamedTuple):
    """A node's answer to a command, or its news of the members it runs. Written by infrastructure to `receipts`, key: job."""

    job: str
    at: int
    domain: str
    attempt: int
    node: str
    kind: str
    exit_code: int
    reason: str


class JobProgress(NamedTuple):
    """A running job tells how far it is. Written to `receipts`, key: job."""

    job: str
    at: int
    domain: str
    attempt: int
    progress_fraction: float
    checkpoint: str
    checkpoint_at: int


class NodeChanged(NamedTuple):
    """A material change of a node, with its whole present description. Written by observe to `changes`, key: node; also observe's own changelog."""

    node: str
    at: int
    domain: str
    site: str
    region: str
    city: str
    data_centre: str
    row: str
    rack: str
    cards: int
    card_model: str
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    interconnect: str
    labels: tuple[str, ...]
    owner: str
    state: str
    cards_healthy: int
    reason: str
    counter: int
    described_at: int = -1


class LinkChanged(NamedTuple):
    """A material change of a link, with its whole present description. Written by observe to `changes`, key: link."""

    link: str
    at: int
    domain: str
    src_site: str
    dst_site: str
    capacity_gbps: float
    base_latency_ms: float
    cost_usd_per_gb: float
    state: str
    used_gbps: float
    latency_ms: float
    reason: str
    counter: int
    described_at: int = -1


class Command(NamedTuple):
    """What the engine wants a node to do. Written by decide to `commands`, key: node."""

    command_id: str
    at: int
    domain: str
    kind: str
    job: str
    attempt: int
    node: str
    members: int
    card_mask: int
    card_milli: int
    cpu_milli: int
    memory_bytes: int
    command: tuple[str, ...]
    due_at: int


class DeadLetter(NamedTuple):
    """A message that could not be understood or must not be used, whole. Written by every processor to `dead-letter`, key: source topic."""

    topic: str
    partition: int
    offset: int
    at: int
    stage: str
    code: str
    reason: str
    schema_id: int | None
    key: bytes | None
    value: bytes | None
    replays: int


class EngineStarted(NamedTuple):
    """An engine took over the domain."""

    domain: str
    seq: int
    at: int
    source: str
    version: str
    snapshot_seq: int


class NodeRecorded(NamedTuple):
    """A node's description or state as scheduling uses it from here on."""

    domain: str
    seq: int
    at: int
    source: str
    node: str
    site: str
    region: str
    city: str
    data_centre: str
    row: str
    rack: str
    cards: int
    card_model: str
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    disk_bytes: int
    interconnect: str
    labels: tuple[str, ...]
    owner: str
    state: str
    cards_healthy: int
    reason: str


class LinkRecorded(NamedTuple):
    """A link's description or state as scheduling uses it from here on."""

    domain: str
    seq: int
    at: int
    source: str
    link: str
    src_site: str
    dst_site: str
    capacity_gbps: float
    base_latency_ms: float
    cost_usd_per_gb: float
    state: str
    used_gbps: float
    latency_ms: float
    reason: str


class JobAccepted(NamedTuple):
    """A job was accepted and waits."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    submitted_at: int
    user: str
    queue: str
    priority: int
    members: int
    cards_milli: int
    card_models: tuple[str, ...]
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    adjacency: str
    run_limit_ms: int
    run_estimate_ms: int
    command: tuple[str, ...]
    labels: tuple[str, ...]
    inferred: tuple[str, ...]


class JobRefused(NamedTuple):
    """A submission was refused; nothing else changed."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    user: str
    queue: str
    code: str
    reason: str


class JobPending(NamedTuple):
    """A waiting job's reason changed."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    code: str
    reason: str
    position: int


class JobPlaced(NamedTuple):
    """A whole gang was given its cards."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    user: str
    queue: str
    nodes: tuple[str, ...]
    members_on_node: tuple[int, ...]
    card_masks: tuple[int, ...]
    card_milli: int
    cards_milli_total: int
    level: str
    place: str
    waited_ms: int
    candidates: int
    reason: str
    due_at: int


class JobCancelRequested(NamedTuple):
    """A user's cancellation was accepted."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    user: str
    reason: str


class ReceiptRecorded(NamedTuple):
    """A node's receipt was accepted."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    node: str
    kind: str
    exit_code: int
    reason: str


class JobStarted(NamedTuple):
    """All members of the attempt run."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    waited_ms: int


class JobProgressed(NamedTuple):
    """A job told how far it is."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    progress_fraction: float
    checkpoint: str
    checkpoint_at: int


class JobInterrupted(NamedTuple):
    """An attempt ended without its job's end: lost node, failed start, missing receipt. The job waits again unless it ended."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    code: str
    reason: str
    ran_ms: int
    requeued: bool


class JobEnded(NamedTuple):
    """A job is over."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    user: str
    queue: str
    outcome: str
    reason: str
    exit_code: int
    waited_ms: int
    ran_ms: int
    cards_milli_total: int


class CapacityQuarantined(NamedTuple):
    """Cards of an ended attempt were not confirmed free in time: they stay taken until the node confirms, or is removed; one that returns is asked again."""

    domain: str
    seq: int
    at: int
    source: str
    job: str
    attempt: int
    node: str
    card_mask: int
    card_milli: int
    reason: str


class MixLearned(NamedTuple):
    """What was learned of the mix of requests, by which partly free nodes are told apart from here on."""

    domain: str
    seq: int
    at: int
    source: str
    arrivals: int
    fitted_at_arrivals: int
    kinds: int
    card_value_micro: tuple[int, ...]
    stranding_cpu_milli: tuple[int, ...]
    stranding_memory_bytes: tuple[int, ...]
    stranding_share_micro: tuple[int, ...]
    slot_cards: tuple[int, ...]
    slot_cpu_milli: tuple[int, ...]
    slot_memory_bytes: tuple[int, ...]
    slot_card_models: tuple[str, ...]
    slot_cost_micro: tuple[int, ...]
    price_card_models: tuple[str, ...]
    price_micro: tuple[int, ...]


LedgerEntry = (
    EngineStarted
    | NodeRecorded
    | LinkRecorded
    | JobAccepted
    | JobRefused
    | JobPending
    | JobPlaced
    | JobCancelRequested
    | ReceiptRecorded
    | JobStarted
    | JobProgressed
    | JobInterrupted
    | JobEnded
    | CapacityQuarantined
    | MixLearned
)
Row = (
    NodeRegistered
    | NodeRemoved
    | NodeTelemetry
    | LinkRegistered
    | LinkRemoved
    | LinkTelemetry
    | JobSubmitted
    | JobCancelled
    | Receipt
    | JobProgress
    | NodeChanged
    | LinkChanged
    | Command
    | DeadLetter
    | LedgerEntry
)

LEDGER_TYPES: tuple[type[LedgerEntry], ...] = (
    EngineStarted,
    NodeRecorded,
    LinkRecorded,
    JobAccepted,
    JobRefused,
    JobPending,
    JobPlaced,
    JobCancelRequested,
    ReceiptRecorded,
    JobStarted,
    JobProgressed,
    JobInterrupted,
    JobEnded,
    CapacityQuarantined,
    MixLearned,
)
ROW_TYPES: tuple[type[Row], ...] = (
    NodeRegistered,
    NodeRemoved,
    NodeTelemetry,
    LinkRegistered,
    LinkRemoved,
    LinkTelemetry,
    JobSubmitted,
    JobCancelled,
    Receipt,
    JobProgress,
    NodeChanged,
    LinkChanged,
    Command,
    DeadLetter,
    *LEDGER_TYPES,
)
