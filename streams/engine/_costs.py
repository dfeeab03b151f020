"""What a placement costs the capacity that stays free, by what was learned of the mix (`_mix`): least is best.

For a node of each class and a request: what the free part of its cards is worth less afterwards, plus what is stranded more (cards
left without the CPU and memory that their next job will ask for), times what the card model costs; plus places lost for members of
several cards; plus a little for CPU left idle, so that equal nodes fill up. In integers, millionths of a card: the same on every
machine, for one class at a time or for all. Asked by `_place`; derived, never in a snapshot.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas.records import MixLearned
from streams.engine._classes import I32, I64, WHOLE, Choice
from streams.engine._nodes import Nodes
from streams.engine._request import Request

MICRO: Final = 1_000_000
# Costs that differ by less than a fiftieth of a card are equal: then the lowest row is taken.
GRAIN: Final = 20_000
GRAINS_PER_CARD: Final = MICRO // GRAIN
# A card stranded weighs one and a half times its value.
STRANDED_HALVES: Final = 3
# CPU left idle: a tenth of a card for 128 cores.
IDLE_CPU_MICRO: Final = 100_000
IDLE_CPU_MILLI: Final = 128_000
# Keys by which cards are chosen: those of the second choice behind all of the first, those without room behind all.
SECOND: Final = 1 << 40
NO_ROOM: Final = 1 << 50
# Cells (classes × groups) worked out at once: 8 MB for each step.
CELLS: Final = 1 << 20

Doubles = npt.NDArray[np.float64]


class Stranding(NamedTuple):
    """Groups of demand: cards that a milli of CPU and a byte are enough for (millionths), and each group's share (millionths)."""

    per_cpu_milli: Doubles
    per_byte: Doubles
    share: I64

    @classmethod
    def of(cls, cpu_milli: Sequence[int], memory_bytes: Sequence[int], share_micro: Sequence[int]) -> "Stranding":
        """From what goes with a card. `cpu_milli` and `memory_bytes` are at least 1."""
        return cls(
            MICRO / np.array(cpu_milli, np.float64),
            MICRO / np.array(memory_bytes, np.float64),
            np.array(share_micro, np.int64),
        )

    def of_free(self, cpu_milli: I64, memory_bytes: I64, free: I64) -> I64:
        """How much of the free cards (`free`, millionths) has no CPU or memory, for the mean of the groups."""
        lost = np.empty(free.size, np.int64)
        step = max(1, CELLS // max(1, self.share.size))
        for begin in range(0, free.size, step):
            rows = slice(begin, begin + step)
            enough = np.minimum(cpu_milli[rows, None] * self.per_cpu_milli, memory_bytes[rows, None] * self.per_byte)
            short = np.maximum(free[rows, None] - enough, 0.0).astype(np.int64)
            lost[rows] = short @ self.share // MICRO
        return lost


def free_value(table: I64, card_free: I32) -> I64:
    """What the free part of each class's cards is worth: half by its size, half by what fits into it (`table`, by hundredths)."""
    free = np.maximum(card_free, 0).astype(np.int64)
    value: I64 = (free * (MICRO // WHOLE) + table[free // 10]).sum(axis=1) // 2
    return value


def slots_of(cards: int, cpu_milli: int, memory_bytes: int, whole: I64, cpu_free: I64, memory_free: I64) -> I64:
    """Members of whole cards that fit on what is free."""
    slots: I64 = whole // cards
    if cpu_milli:
        slots = np.minimum(slots, cpu_free // cpu_milli)
    if memory_bytes:
        slots = np.minimum(slots, memory_free // memory_bytes)
    return np.maximum(slots, 0)


class Costs:
    """Costs by one `MixLearned`; `version` tells them apart. What does not depend on the request is kept for each class."""

    def __init__(self, learned: MixLearned) -> None:
        self.version = learned.seq
        self._table: I64 = np.array(learned.card_value_micro, np.int64)
        self._stranding = Stranding.of(
            learned.stranding_cpu_milli, learned.stranding_memory_bytes, learned.stranding_share_micro
        )
        self._slot_cards: I64 = np.array(learned.slot_cards, np.int64)
        self._slot_cpu: I64 = np.maximum(np.array(learned.slot_cpu_milli, np.int64), 1)
        self._slot_memory: I64 = np.maximum(np.array(learned.slot_memory_bytes, np.int64), 1)
        self._slots = [
            (set(models.split(",")) if models else None, cost)
            for models, cost in zip(learned.slot_card_models, learned.slot_cost_micro, strict=True)
        ]
        self._price_of = dict(zip(learned.price_card_models, learned.price_micro, strict=True))
        self._epoch = -1
        self._forget()

    def price(self, card_model: str) -> int:
        """What a card of a model costs, millionths of one that is not scarce."""
        return self._price_of.get(card_model, MICRO)

    def _forget(self) -> None:
        empty = np.zeros(0, np.int64)
        self._free, self._lost, self._lost_slots = empty, empty, empty
        self._price: I64 = empty
        # [type, slot type]
        self._slot_cost: I64 = np.zeros((0, len(self._slots)), np.int64)

    def _sync(self, nodes: Nodes) -> None:
        """Look at the classes that are new."""
        classes = nodes.classes
        if self._epoch != nodes.epoch:
            self._epoch = nodes.epoch
            self._forget()
        for t in classes.types[self._price.size :]:
            self._price = np.append(self._price, self.price(t.card_model) if t.cards else MICRO)
            cost = [[c if models is None or t.card_model in models else 0 for models, c in self._slots]]
            self._slot_cost = np.concatenate((self._slot_cost, np.array(cost, np.int64)))
        rows = slice(self._free.size, None)
        if self._free.size < len(classes):
            free = free_value(self._table, classes.card_free[rows])
            cpu, memory, whole = classes.cpu_free[rows], classes.memory_free[rows], classes.whole_free[rows]
            lost = self._stranding.of_free(cpu, memory, free)
            slots = self._slots_worth(classes.type[rows], whole, cpu, memory)
            self._free = np.concatenate((self._free, free))
            self._lost = np.concatenate((self._lost, lost))
            self._lost_slots = np.concatenate((self._lost_slots, slots))

    def _slots_worth(self, types: I32, whole: I64, cpu: I64, memory: I64) -> I64:
        """What the places for members of several cards are worth."""
        if not self._slots:
            return np.zeros(whole.size, np.int64)
        # One milli of CPU or one byte is no limit: there are never more places than cards.
        slots = np.minimum(whole[:, None] // self._slot_cards, cpu[:, None] // self._slot_cpu)
        np.minimum(slots, memory[:, None] // self._slot_memory, out=slots)
        np.maximum(slots, 0, out=slots)
        worth: I64 = (slots * self._slot_cost[types]).sum(axis=1)
        return worth

    def of(self, nodes: Nodes, request: Request, begin: int) -> tuple[I64, Choice]:
        """Cost of the whole gang on one node, in grains, for each class from `begin`, where it fits; and how its cards are
        chosen: 0 cards already begun before whole ones, 1 whole ones first."""
        self._sync(nodes)
        classes, rows = nodes.classes, slice(begin, None)
        members = request.members
        cpu = classes.cpu_free[rows] - members * request.cpu_milli
        memory = classes.memory_free[rows] - members * request.memory_bytes
        whole, types = classes.whole_free[rows], classes.type[rows]
        free, lost, slots = self._free[rows], self._lost[rows], self._lost_slots[rows]
        taken = members * request.cards_milli * (MICRO // WHOLE)

        def cost_of(value: I64 | int, wholes: I64 | int) -> I64:
            lost_after = self._stranding.of_free(cpu, memory, free - (taken + value) // 2)
            cost: I64 = self._price[types] * (value + STRANDED_HALVES * (lost_after - lost) // 2) // MICRO
            if self._slots:
                cost = cost + slots - self._slots_worth(types, whole - wholes, cpu, memory)
            return cost

        choice = np.zeros(whole.size, np.int8)
        if 0 < request.cards_milli < WHOLE:
            begun_first, whole_first = self.card_keys(classes.card_free[rows], request.cards_milli)
            cost = cost_of(*_chosen(begun_first, members))
            value, others = _chosen(whole_first, members)
            other_cost = cost_of(value, members - others)
            choice = (other_cost < cost).astype(np.int8)
            cost = np.minimum(cost, other_cost)
        else:
            cost = cost_of(taken, taken // MICRO)
        idle = np.maximum(cpu, 0) * IDLE_CPU_MICRO // IDLE_CPU_MILLI
        return (cost + idle + GRAIN // 2) // GRAIN, choice

    def mask(self, card_free: tuple[int, ...], request: Request, choice: int) -> int:
        """Cards for a gang on one node: the lowest whole ones, or for shares those whose free part loses the least value."""
        if request.cards_milli == 0:
            return 0
        if request.cards_milli >= WHOLE:
            need = request.members * (request.cards_milli // WHOLE)
            return sum(1 << card for card in [card for card, f in enumerate(card_free) if f == WHOLE][:need])
        keys = self.card_keys(np.array([card_free], np.int32), request.cards_milli)[choice][0]
        best = np.argsort(keys, kind="stable")[: request.members]
        return sum(1 << card for card in best.tolist())

    def card_keys(self, card_free: I32, milli: int) -> tuple[I64, I64]:
        """Keys by which cards are chosen for shares, least first, [class, card]: begun cards first, and whole ones first. A key
        is what the card's free part loses in value."""
        free = np.maximum(card_free, 0).astype(np.int64)
        loss = self._table[free // 10] - self._table[np.maximum(free - milli, 0) // 10]
        loss[free < milli] = NO_ROOM
        whole = free == WHOLE
        return loss + SECOND * whole, loss + SECOND * ~whole


def _chosen(keys: I64, members: int) -> tuple[I64, I64]:
    """The value lost by the best cards, and how many of them are second choices."""
    total: I64 = keys.min(axis=1) if members == 1 else np.sort(keys, axis=1)[:, :members].sum(axis=1)
    return total & (SECOND - 1), (total >> 40) & ((1 << 9) - 1)


__all__ = ["Costs", "Stranding", "free_value", "slots_of"]
