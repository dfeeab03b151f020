"""Nodes in the same condition, told apart once: equivalence classes of nodes, and which rows of the map are in each.

A node's class is what it is (its type) and what is free on it, card by card. A map of 125,000 nodes has few classes, so what a
search finds out is found out for classes and read for nodes (equivalence classes and score caching: Verma et al., "Large-scale
cluster management at Google with Borg", EuroSys 2015). Owned by `_nodes`, read by `_place`. Never in a snapshot.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Choice = npt.NDArray[np.int8]

# A whole card, milli-cards.
WHOLE: Final = 1000
# Classes without nodes are forgotten when they are more than the others and this many.
SPARE: Final = 1024


class NodeType(NamedTuple):
    """What a node is, whatever runs there. `takes`: new work may start there."""

    takes: bool
    card_model: str
    cards: int
    card_memory_bytes: int
    cpu_milli: int
    memory_bytes: int


class Condition(NamedTuple):
    """A type, by number, and what is free: below zero where a node that shrank owes it. `card_free`: milli-cards, by card."""

    type: int
    cpu_free: int
    memory_free: int
    card_free: tuple[int, ...]


class Holding(NamedTuple):
    """What one attempt holds on one node."""

    card_mask: int
    card_milli: int
    cpu_milli: int
    memory_bytes: int


class Classes:
    """Class `c` is condition `conditions[c]`; row `c` of each array is about it. Numbers are given in order and kept until
    `Nodes.compact` gives new ones."""

    def __init__(self) -> None:
        self.types: list[NodeType] = []
        self.conditions: list[Condition] = []
        self._type_ids: dict[NodeType, int] = {}
        self._ids: dict[Condition, int] = {}
        self._after: dict[tuple[int, Holding, int], int] = {}
        # Rows of each class, lowest first; those that have left it are forgotten when they come to the top.
        self._rows: list[list[int]] = []
        self._nodes: I64 = np.zeros(64, np.int64)
        self._type: I32 = np.zeros(64, np.int32)
        self._cpu: I64 = np.zeros(64, np.int64)
        self._memory: I64 = np.zeros(64, np.int64)
        self._whole: I64 = np.zeros(64, np.int64)
        self._cards: I32 = np.zeros((64, 1), np.int32)

    def __len__(self) -> int:
        return len(self.conditions)

    def _grow(self, size: int, width: int) -> None:
        """Room for so many classes, and cards of each."""
        old, held = self._cards.shape
        more = (0, size - old)
        self._nodes, self._type = np.pad(self._nodes, more), np.pad(self._type, more)
        self._cpu, self._memory = np.pad(self._cpu, more), np.pad(self._memory, more)
        self._whole, self._cards = np.pad(self._whole, more), np.pad(self._cards, (more, (0, width - held)))

    # What every class has, as arrays of this length.

    @property
    def nodes(self) -> I64:
        """How many nodes are in the class."""
        return self._nodes[: len(self.conditions)]

    @property
    def type(self) -> I32:
        return self._type[: len(self.conditions)]

    @property
    def cpu_free(self) -> I64:
        return self._cpu[: len(self.conditions)]

    @property
    def memory_free(self) -> I64:
        return self._memory[: len(self.conditions)]

    @property
    def whole_free(self) -> I64:
        """Cards that are wholly free."""
        return self._whole[: len(self.conditions)]

    @property
    def card_free(self) -> I32:
        """Milli-cards, [class, card]; 0 and less where there is none."""
        return self._cards[: len(self.conditions)]

    def type_id(self, t: NodeType) -> int:
        found = self._type_ids.get(t)
        if found is None:
            found = self._type_ids[t] = len(self.types)
            self.types.append(t)
        return found

    def id(self, condition: Condition) -> int:
        """The number of a condition, a new one if it was never seen."""
        found = self._ids.get(condition)
        if found is not None:
            return found
        c = len(self.conditions)
        size, width = self._cards.shape
        if c == size or len(condition.card_free) > width:
            self._grow(2 * size if c == size else size, max(width, len(condition.card_free)))
        self._ids[condition] = c
        self.conditions.append(condition)
        self._rows.append([])
        self._type[c] = condition.type
        self._cpu[c] = condition.cpu_free
        self._memory[c] = condition.memory_free
        self._cards[c, : len(condition.card_free)] = condition.card_free
        self._whole[c] = condition.card_free.count(WHOLE)
        return c

    def after(self, c: int, h: Holding, sign: int) -> int:
        """The class of a node of class `c` when a holding was given back (`sign` 1) or taken (-1)."""
        key = (c, h, sign)
        found = self._after.get(key)
        if found is None:
            before = self.conditions[c]
            free = list(before.card_free)
            free += [0] * (h.card_mask.bit_length() - len(free))
            for card in cards_of(h.card_mask):
                free[card] += sign * h.card_milli
            # A card that is no longer there is only told of while it is owed.
            while len(free) > self.types[before.type].cards and not free[-1]:
                free.pop()
            found = self._after[key] = self.id(
                Condition(
                    before.type,
                    before.cpu_free + sign * h.cpu_milli,
                    before.memory_free + sign * h.memory_bytes,
                    tuple(free),
                )
            )
        return found

    def enter(self, c: int, row: int) -> None:
        self._nodes[c] += 1
        heappush(self._rows[c], row)

    def leave(self, c: int) -> None:
        """A row left; `lowest` will find out which."""
        self._nodes[c] -= 1

    def leave_all(self, classes: I32) -> None:
        np.subtract.at(self._nodes, classes, 1)

    def lowest(self, c: int, class_of: I32) -> int:
        """The lowest row of a class that has nodes."""
        rows = self._rows[c]
        while class_of[rows[0]] != c:
            heappop(rows)
        return rows[0]

    @property
    def crowded(self) -> bool:
        """Most classes have no nodes, or rows are remembered that have long left."""
        n = len(self.conditions)
        return n > SPARE and n > 2 * int(np.count_nonzero(self.nodes)) + SPARE


@dataclass(slots=True)
class Scan:
    """For one kind of request: members that fit on a node of each class, what the gang costs there, how its cards are chosen.
    Right for ever, as long as classes keep their numbers (`epoch`) and costs are by the same model (`model`): of newer classes
    only those must be looked at that came since."""

    epoch: int
    model: int
    fit: I64
    score: I64
    choice: Choice


_CARDS_OF: Final[dict[int, tuple[int, ...]]] = {}


def cards_of(mask: int) -> tuple[int, ...]:
    """Cards of a mask, ascending."""
    found = _CARDS_OF.get(mask)
    if found is None:
        if len(_CARDS_OF) >= 1 << 14:
            _CARDS_OF.clear()
        found = _CARDS_OF[mask] = tuple(card for card in range(mask.bit_length()) if mask >> card & 1)
    return found
