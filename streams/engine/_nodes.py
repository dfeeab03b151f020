"""The map as arrays in topology order, so that a place is a slice and a gang is a scan.

Derived from descriptions and holdings by `State.settle`, patched by `evolve`; read by `_place` and `inspect`. Keeps a journal
of changed rows, so that a search need not look again at what did not change. Never in a snapshot.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.records import NodeRecorded

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# Places from the widest to the narrowest; a node is the narrowest.
LEVELS: Final = ("region", "city", "site", "data_centre", "row", "rack", "node")
# Changed rows remembered; more than a round changes on any map, 0.5 MB.
MAX_JOURNAL: Final = 1 << 16
# A whole card, milli-cards.
WHOLE: Final = 1000


class Holding(NamedTuple):
    """What one attempt holds on one node."""

    card_mask: int
    card_milli: int
    cpu_milli: int
    memory_bytes: int


class Nodes:
    """Node arrays in topology order; row i of each is node `names[i]`. Free amounts below zero are owed by a node that shrank."""

    def __init__(self) -> None:
        # Grows with every change of these arrays: an answer found at the same version is still right.
        self.version = 0
        # Rows changed since version `_journal_from`, one for each version.
        self._journal: list[int] = []
        self._journal_from = 0
        self.lay_out({}, {})

    def lay_out(
        self, descriptions: dict[str, NodeRecorded], holdings: dict[str, dict[tuple[str, int], Holding]]
    ) -> None:
        """Build all arrays. O(nodes log nodes)."""
        order = sorted(descriptions.values(), key=_place_of)
        n = len(order)
        width = max((d.cards for d in order), default=0)
        self.names = [d.node for d in order]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.paths = [_place_of(d)[:-1] for d in order]
        self.models = sorted({d.card_model for d in order})
        model_id = {m: i for i, m in enumerate(self.models)}
        self.model: I32 = np.fromiter((model_id[d.card_model] for d in order), np.int32, n)
        self.cards: I64 = np.fromiter((d.cards for d in order), np.int64, n)
        self.card_memory: I64 = np.fromiter((d.card_memory_bytes for d in order), np.int64, n)
        self.cpu: I64 = np.fromiter((d.cpu_milli for d in order), np.int64, n)
        self.memory: I64 = np.fromiter((d.memory_bytes for d in order), np.int64, n)
        self.takes: Bools = np.zeros(n, np.bool_)
        self.card_free: I32 = np.zeros((n, max(1, width)), np.int32)
        self.whole_free: I64 = np.zeros(n, np.int64)
        self.cpu_free: I64 = np.zeros(n, np.int64)
        self.memory_free: I64 = np.zeros(n, np.int64)
        # Nodes that hold no more than they have: what they get back can be added without counting everything anew.
        self._sound = [False] * n
        self._allowed: dict[tuple[tuple[str, ...], int, bool], Bools] = {}
        # starts[level]: first row of each place of that level. An unknown name ('') is no place: its nodes stand alone.
        self.starts: dict[str, I64] = {
            "domain": np.zeros(1 if n else 0, np.int64),
            "node": np.arange(n, dtype=np.int64),
        }
        begins: list[list[int]] = [[] for _ in LEVELS[:-1]]
        before: tuple[str, ...] = ()
        for i, path in enumerate(self.paths):
            same = path == before
            for depth, name in enumerate(path):
                same_here = same or (i > 0 and path[: depth + 1] == before[: depth + 1])
                if not same_here or name == "":
                    begins[depth].append(i)
            before = path
        for level, rows in zip(LEVELS, begins, strict=False):
            self.starts[level] = np.asarray(rows, np.int64)
        for d in order:
            self.fill(d, holdings.get(d.node, _NOTHING))
        self._forget()

    def _changed(self, row: int) -> None:
        self.version += 1
        self._journal.append(row)
        if len(self._journal) > MAX_JOURNAL:
            self._forget()

    def _forget(self) -> None:
        """Whatever was found before must be found anew from the whole arrays."""
        self.version += 1
        self._journal.clear()
        self._journal_from = self.version

    def changed_since(self, version: int) -> list[int] | None:
        """Rows changed since that version; None when that is no longer known."""
        return None if version < self._journal_from else self._journal[version - self._journal_from :]

    def fill(self, d: NodeRecorded, held: dict[tuple[str, int], Holding]) -> None:
        """One node's free amounts, from its description and what is held on it."""
        i = self.index[d.node]
        self._changed(i)
        self.takes[i] = d.state == "up"
        cpu, memory = d.cpu_milli, d.memory_bytes
        # Cards the node reports as broken are the last ones: which ones they are is not in the telemetry yet.
        healthy = min(d.cards, max(0, d.cards_healthy))
        width = self.card_free.shape[1]
        row = [WHOLE] * healthy + [0] * (width - healthy)
        sound = True
        for h in held.values():
            cpu -= h.cpu_milli
            memory -= h.memory_bytes
            for card in cards_of(h.card_mask):
                if card >= width:
                    sound = False
                    continue
                row[card] -= h.card_milli
        if held and min(row) < 0:
            # A node that shrank under running work owes cards: none of those is free.
            sound = False
            row = [max(0, free) for free in row]
        self.card_free[i] = row
        self.whole_free[i] = row.count(WHOLE)
        self.cpu_free[i], self.memory_free[i] = cpu, memory
        self._sound[i] = sound

    def take(self, name: str, h: Holding) -> None:
        """Take a new holding off a node's free amounts."""
        self._add(self.index[name], h, -1)

    def give(self, d: NodeRecorded, h: Holding, left: dict[tuple[str, int], Holding]) -> None:
        """Give back a holding to a node that still has `left`."""
        i = self.index[d.node]
        if self._sound[i]:
            self._add(i, h, 1)
        else:
            self.fill(d, left)

    def _add(self, i: int, h: Holding, sign: int) -> None:
        self._changed(i)
        if h.cpu_milli:
            self.cpu_free[i] += sign * h.cpu_milli
        if h.memory_bytes:
            self.memory_free[i] += sign * h.memory_bytes
        if not h.card_mask:
            return
        row, milli, whole = self.card_free[i], sign * h.card_milli, 0
        for card in cards_of(h.card_mask):
            before = int(row[card])
            after = before + milli
            if after < 0:
                # Granted twice by a version that took a returned node's cards for free: owed, as `fill` sees it.
                after, self._sound[i] = 0, False
            row[card] = after
            whole += (after == WHOLE) - (before == WHOLE)
        if whole:
            self.whole_free[i] += whole

    def allowed(self, models: tuple[str, ...], card_memory_bytes: int, *, needs_card: bool) -> Bools:
        """Nodes whose cards may be used, whatever runs there. `card_memory_bytes`: of a whole card."""
        key = (models, card_memory_bytes, needs_card)
        found = self._allowed.get(key)
        if found is None:
            if needs_card:
                found = (self.cards > 0) & (self.card_memory >= card_memory_bytes)
                if models:
                    found &= np.isin(self.model, [i for i, m in enumerate(self.models) if m in models])
            else:
                found = np.ones(len(self.names), np.bool_)
            self._allowed[key] = found
        return found

    def place(self, level: str, row: int) -> str:
        """Name of the place of `level` that a row is in."""
        if level == "domain":
            return "the whole domain"
        return self.names[row] if level == "node" else self.paths[row][LEVELS.index(level)]


@dataclass(slots=True)
class Scan:
    """For one kind of request: members that fit on each node, and how tight each is; right at `version` of the arrays."""

    version: int
    fit: I64
    score: I64


_NOTHING: Final[dict[tuple[str, int], Holding]] = {}


def _place_of(d: NodeRecorded) -> tuple[str, ...]:
    """A node's place from the widest level to the narrowest, itself."""
    return (d.region, d.city, d.site, d.data_centre, d.row, d.rack, d.node)


@lru_cache(maxsize=1 << 14)
def cards_of(mask: int) -> tuple[int, ...]:
    """Cards of a mask, ascending."""
    return tuple(card for card in range(mask.bit_length()) if mask >> card & 1)
