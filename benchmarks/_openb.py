"""The openb packing experiment: arrivals only, one at a time, no retry, until 130 % of the cards have been asked for.

Per seed the trace's pods are shuffled, then drawn again uniformly until the demand is reached. A shared pod fits on one card, a
pod of k cards needs k wholly free ones; CPU, memory and the card's model are hard. What counts is the share of all card capacity
that is allocated when 100 % and 130 % of it have been asked for (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).
Used by `benchmarks.placement` and its tests. Every placement is checked here, whoever made it.
"""

import gzip
import random
from importlib import resources
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from connectors.sources import openb
from connectors.sources.found import Setting
from schemas.records import JobSubmitted

FOLDER: Final = resources.files("connectors.sources") / "data"
SETTING: Final = Setting("default", 0)
DEFAULT: Final = "default"
# Other mixes of requests on the same nodes; `benchmarks/data/README.md` says what is different.
VARIANTS: Final = ("cpu250", "gpushare100", "gpuspec33", "multigpu50")
CARDS: Final = 8
WHOLE: Final = 1000
I64 = npt.NDArray[np.int64]


class Pod(NamedTuple):
    """What a pod asks for. `cards` of `milli` each: either one card or less of it, or several whole ones; 0 cards: CPU only."""

    cpu_milli: int
    memory_bytes: int
    cards: int
    milli: int
    models: tuple[str, ...]

    @property
    def demand(self) -> int:
        """Milli-cards."""
        return self.cards * self.milli

    @property
    def shared(self) -> bool:
        """Less than a card."""
        return 0 < self.milli < WHOLE


class Cluster:
    """What is there, and what is free: rows are nodes in the file's order; `free[i]` milli of each card, -1 where there is none."""

    def __init__(self, cpu: I64, memory: I64, cards: I64, models: list[str]) -> None:
        self.cards = cards
        self.models = np.array(models)
        self.cpu_free = cpu.copy()
        self.memory_free = memory.copy()
        self.free = np.where(np.arange(CARDS) < cards[:, None], WHOLE, -1).astype(np.int64)
        self.capacity = int(cards.sum()) * WHOLE
        self.allocated = 0

    def take(self, pod: Pod, row: int, mask: int) -> None:
        """Allocate. Raises `AssertionError` for what cannot be: a benchmark must not flatter anybody."""
        chosen = [card for card in range(CARDS) if mask >> card & 1]
        assert len(chosen) == pod.cards, "as many cards as asked"
        assert not pod.models or str(self.models[row]) in pod.models, "a model that is allowed"
        self.cpu_free[row] -= pod.cpu_milli
        self.memory_free[row] -= pod.memory_bytes
        self.free[row, chosen] -= pod.milli
        assert self.cpu_free[row] >= 0, "CPU is there"
        assert self.memory_free[row] >= 0, "memory is there"
        assert (self.free[row, chosen] >= 0).all(), "cards are free"
        self.allocated += pod.demand


class Policy(Protocol):
    """Whoever chooses a node and cards; it may look at the cluster, which is changed when it has answered."""

    def place(self, pod: Pod) -> tuple[int, int] | None:
        """Row and card mask; None: it fits nowhere."""
        ...


def cluster(first: int | None = None) -> Cluster:
    """The trace's 1,213 nodes with 6,212 cards, or the first of them, all free."""
    nodes = openb.read((FOLDER / openb.NODES_FILE).read_text(), SETTING, openb.NODES_FILE).nodes[:first]
    cpu, memory, cards = (
        np.array([getattr(n, field) for n in nodes], np.int64) for field in ("cpu_milli", "memory_bytes", "cards")
    )
    return Cluster(cpu, memory, cards, [n.card_model for n in nodes])


def pods(variant: str = DEFAULT) -> list[Pod]:
    """The pods of the trace (8,152 in the default list)."""
    folder = FOLDER if variant == DEFAULT else resources.files("benchmarks") / "data"
    name = f"openb_pod_list_{variant}.csv.gz"
    found = openb.read(gzip.decompress((folder / name).read_bytes()).decode(), SETTING, name)
    assert not found.remarks, found.remarks
    return [_pod(j) for j in found.jobs]


def _pod(job: JobSubmitted) -> Pod:
    cards, share = divmod(job.cards_milli, WHOLE)
    asked = (1, share) if share else (cards, WHOLE if cards else 0)
    return Pod(job.cpu_milli, job.memory_bytes, *asked, job.card_models)


def arrivals(trace: list[Pod], capacity: int, seed: int, until: float = 1.3) -> list[Pod]:
    """The pods of one run in order."""
    rng = random.Random(seed)
    order = list(trace)
    rng.shuffle(order)
    asked = sum(p.demand for p in order)
    while asked < until * capacity:
        order.append(rng.choice(trace))
        asked += order[-1].demand
    return order


class Run(NamedTuple):
    """Percent of capacity allocated when 100 and 130 % had arrived, and pods that were placed and refused until then."""

    at_100: float
    at_130: float
    placed: int
    refused: int


def run(there: Cluster, policy: Policy, order: list[Pod]) -> Run:
    """Play one run to its end."""
    asked = placed = refused = 0
    at_100: float | None = None
    for pod in order:
        asked += pod.demand
        found = policy.place(pod)
        if found is None:
            refused += 1
        else:
            there.take(pod, *found)
            placed += 1
        if at_100 is None and asked >= there.capacity:
            at_100 = 100 * there.allocated / there.capacity
        if asked >= 1.3 * there.capacity:
            break
    return Run(at_100 or 0.0, 100 * there.allocated / there.capacity, placed, refused)
