"""Input rows for engine tests, each with values that can be. Amounts as people say them: cards, cores, GiB, seconds."""

from schemas.records import JobCancelled, JobProgress, JobSubmitted, NodeChanged, Receipt

DOMAIN = "default"
NOW = 1_800_000_000_000  # 2027-01-15, milliseconds
GIB = 1 << 30


def node(
    name: str,
    *,
    cards: int = 8,
    model: str = "A100",
    card_memory: int = 80,
    cpu: float = 64,
    memory: float = 512,
    region: str = "",
    city: str = "",
    site: str = "s1",
    data_centre: str = "",
    row: str = "",
    rack: str = "",
    state: str = "up",
    healthy: int | None = None,
    at: int = NOW,
) -> NodeChanged:
    return NodeChanged(
        name, at, DOMAIN, site, region, city, data_centre, row, rack, cards, model if cards else "", card_memory * GIB,
        int(cpu * 1000), int(memory * GIB), 0, "", (), "", state, cards if healthy is None else healthy, "", 0,
    )  # fmt: skip


def job(
    name: str,
    *,
    members: int = 1,
    cards: float = 1,
    models: tuple[str, ...] = (),
    card_memory: float = 0,
    cpu: float = 1,
    memory: float = 1,
    adjacency: str = "",
    priority: int = 0,
    limit: float = 0,
    user: str = "ada",
    at: int = NOW,
) -> JobSubmitted:
    return JobSubmitted(
        name, at, DOMAIN, user, "default", priority, members, round(cards * 1000), models, int(card_memory * GIB),
        int(cpu * 1000), int(memory * GIB), adjacency, int(limit * 1000), 0, ("true",), (), (),
    )  # fmt: skip


def cancel(name: str, *, user: str = "ada", reason: str = "no longer needed", at: int = NOW) -> JobCancelled:
    return JobCancelled(name, at, DOMAIN, user, reason)


def receipt(
    name: str, where: str, kind: str, *, attempt: int = 1, exit_code: int = 0, reason: str = "", at: int = NOW
) -> Receipt:
    return Receipt(name, at, DOMAIN, attempt, where, kind, exit_code, reason)


def progress(
    name: str, fraction: float, *, attempt: int = 1, checkpoint: str = "", checkpoint_at: int = 0, at: int = NOW
) -> JobProgress:
    return JobProgress(name, at, DOMAIN, attempt, fraction, checkpoint, checkpoint_at)
