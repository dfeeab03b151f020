"""Maps of any size in three conditions, and jobs to place on them: what `gang`, `rate`, `queue` and `memory` measure with."""

import random
from enum import StrEnum
from typing import Final

from schemas.records import JobCancelled, JobPlaced, JobSubmitted, LedgerEntry, NodeChanged, Receipt
from streams.engine import State, accept, decide, evolve

DOMAIN: Final = "default"
BEGIN_MS: Final = 1_800_000_000_000
CARDS: Final = 8
WHOLE: Final = 1000
SEED: Final = 4
# Nodes that one made-up attempt holds.
CHUNK: Final = 10_000


class Condition(StrEnum):
    EMPTY = "empty"
    HALF = "half"  # every second node full, by chance
    FRAGMENTED = "fragmented"  # 1 to 7 cards of every node taken, by chance


def node(i: int) -> NodeChanged:
    """8 cards, 128 cores, 1 TiB; 16 nodes to a rack, 10 racks to a row, 10 rows to a data centre, each a site of its own."""
    hall = i // 1600
    return NodeChanged(
        f"node-{i:06d}", BEGIN_MS, DOMAIN, f"site-{hall}", "north", "", f"dc-{hall}", f"row-{i // 160}", f"rack-{i // 16}", CARDS,
        "A100-SXM4-80GB", 80 << 30, 128_000, 1 << 40, 1 << 42, "", (), "", "up", CARDS, "registered", 0,
    )  # fmt: skip


def job(name: str, *, members: int = 1, cards: int = 1, cpu_milli: int = 8_000, queue: str = "default") -> JobSubmitted:
    """`cards` whole ones for each member."""
    return JobSubmitted(
        name, BEGIN_MS, DOMAIN, "ada", queue, 0, members, cards * WHOLE, (), 0, cpu_milli, 16 << 30, "", 0, 3_600_000,
        ("true",), (), (),
    )  # fmt: skip


def a_map(cards: int, condition: Condition = Condition.EMPTY) -> State:
    """A domain with so many cards in that condition."""
    state = State.empty(DOMAIN)
    nodes = cards // CARDS
    for i in range(nodes):
        accept(state, node(i), f"changes/0@{i}", BEGIN_MS)
    rng = random.Random(SEED)
    if condition is Condition.HALF:
        chosen = [i for i in range(nodes) if rng.random() < 0.5]
        for begin in range(0, len(chosen), CHUNK):
            _hold(state, [(i, (1 << CARDS) - 1) for i in chosen[begin : begin + CHUNK]])
    elif condition is Condition.FRAGMENTED:
        masks = [sum(1 << card for card in rng.sample(range(CARDS), rng.randint(1, CARDS - 1))) for _ in range(nodes)]
        for begin in range(0, nodes, CHUNK):
            _hold(state, list(enumerate(masks))[begin : begin + CHUNK])
    decide(state, BEGIN_MS)
    # Node arrays are laid out when somebody first asks after a change of the map: not what is measured.
    state.settle()
    return state


def _hold(state: State, held: list[tuple[int, int]]) -> None:
    """An attempt holds these cards (node, mask): the entries that placing it would have written."""
    name = f"held-{state.seq}"
    counts = [mask.bit_count() for _, mask in held]
    accept(state, job(name, members=sum(counts)), "", BEGIN_MS)
    placed = JobPlaced(
        DOMAIN, state.seq + 1, state.at, "", name, 1, "ada", "default", tuple(f"node-{i:06d}" for i, _ in held), tuple(counts),
        tuple(mask for _, mask in held), WHOLE, sum(counts) * WHOLE, "domain", "", 0, 1, "", BEGIN_MS * 2,
    )  # fmt: skip
    evolve(state, placed)


def tell(state: State, placed: JobPlaced, kind: str, now: int) -> None:
    """Receipts of a kind from all its nodes."""
    for n in placed.nodes:
        accept(state, Receipt(placed.job, now, DOMAIN, placed.attempt, n, kind, 0, ""), "", now)


def end(state: State, placed: JobPlaced, now: int) -> list[LedgerEntry]:
    """The job is cancelled and all its nodes confirm that they are free."""
    accept(state, JobCancelled(placed.job, now, DOMAIN, "ada", ""), "", now)
    decided = decide(state, now)
    tell(state, placed, "released", now)
    return decided
