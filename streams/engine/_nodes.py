"""The map as rows in topology order, so that a place is a slice and a gang is a scan.

A row is a node; what it is and what is free on it is its class (`_classes`). Derived from descriptions and holdings by
`State.settle`, patched by `evolve`; read by `_place` and `inspect`. Never in a snapshot.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from schemas.records import NodeRecorded
from streams.engine._classes import I32, I64, WHOLE, Bools, Classes, Condition, Holding, NodeType, cards_of
from streams.engine._request import Request

# Places from the widest to the narrowest; a node is the narrowest.
LEVELS: Final = ("region", "city", "site", "data_centre", "row", "rack", "node")
# Rows from which grouping them by class pays.
MANY: Final = 16


class Nodes:
    """Row i is node `names[i]`, of class `class_of[i]`."""

    def __init__(self) -> None:
        # Grows with every change: an answer found at the same version is still right.
        self.version = 0
        # Grows when classes get new numbers: what was found out for the old ones is void.
        self.epoch = 0
        self.lay_out({}, {})

    def lay_out(
        self, descriptions: dict[str, NodeRecorded], holdings: dict[str, dict[tuple[str, int], Holding]]
    ) -> None:
        """Build all anew. O(nodes log nodes)."""
        order = sorted(descriptions.values(), key=_place_of)
        n = len(order)
        self.names = [d.node for d in order]
        self.index = {name: i for i, name in enumerate(self.names)}
        self.paths = [_place_of(d)[:-1] for d in order]
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
        self.classes = Classes()
        self.class_of: I32 = np.zeros(n, np.int32)
        for i, d in enumerate(order):
            c = self._class(d, holdings.get(d.node, _NOTHING))
            self.class_of[i] = c
            self.classes.enter(c, i)
        self._renumbered()

    def _renumbered(self) -> None:
        self.version += 1
        self.epoch += 1
        self._allowed: dict[tuple[tuple[str, ...], int, bool], list[bool]] = {}

    def _class(self, d: NodeRecorded, held: dict[tuple[str, int], Holding]) -> int:
        """A node's class, from its description and what is held on it."""
        classes = self.classes
        kind = classes.type_id(
            NodeType(d.state == "up", d.card_model, d.cards, d.card_memory_bytes, d.cpu_milli, d.memory_bytes)
        )
        # Cards the node reports as broken are the last ones: which ones they are is not in the telemetry yet.
        healthy = min(d.cards, max(0, d.cards_healthy))
        c = classes.id(Condition(kind, d.cpu_milli, d.memory_bytes, (WHOLE,) * healthy + (0,) * (d.cards - healthy)))
        for h in held.values():
            c = classes.after(c, h, -1)
        return c

    def compact(self) -> None:
        """Forget classes without nodes when they are many. Classes get new numbers then."""
        if not self.classes.crowded:
            return
        old = self.classes
        self.classes = Classes()
        for t in old.types:
            self.classes.type_id(t)
        number = np.zeros(len(old), np.int32)
        for c in np.flatnonzero(old.nodes).tolist():
            number[c] = self.classes.id(old.conditions[c])
        self.class_of = number[self.class_of]
        for row, c in enumerate(self.class_of.tolist()):
            self.classes.enter(c, row)
        self._renumbered()

    def fill(self, d: NodeRecorded, held: dict[tuple[str, int], Holding]) -> None:
        """A node's description or state changed, not its place."""
        self._move(self.index[d.node], self._class(d, held))

    def take(self, name: str, h: Holding) -> None:
        """Take a new holding off what is free on a node."""
        i = self.index[name]
        self._move(i, self.classes.after(int(self.class_of[i]), h, -1))

    def give(self, name: str, h: Holding) -> None:
        """Give a holding back to a node."""
        i = self.index[name]
        self._move(i, self.classes.after(int(self.class_of[i]), h, 1))

    def take_all(self, names: Sequence[str], holdings: Iterable[Holding]) -> None:
        """Take a gang's holdings off its nodes, one on each."""
        if len(names) < MANY:
            for name, h in zip(names, holdings, strict=True):
                self.take(name, h)
            return
        self.version += 1
        rows = list(map(self.index.__getitem__, names))
        classes, at = self.classes, np.array(rows, np.int64)
        before = self.class_of[at]
        after = [classes.after(c, h, -1) for c, h in zip(before.tolist(), holdings, strict=True)]
        self.class_of[at] = after
        classes.leave_all(before)
        for c, row in zip(after, rows, strict=True):
            classes.enter(c, row)

    def _move(self, row: int, c: int) -> None:
        self.version += 1
        self.classes.leave(int(self.class_of[row]))
        self.class_of[row] = c
        self.classes.enter(c, row)

    def allowed(self, models: tuple[str, ...], card_memory_bytes: int, *, needs_card: bool) -> Bools:
        """Classes whose cards may be used, whatever runs there. `card_memory_bytes`: of a whole card."""
        key = (models, card_memory_bytes, needs_card)
        found = self._allowed.setdefault(key, [])
        for t in self.classes.types[len(found) :]:
            card = t.cards > 0 and t.card_memory_bytes >= card_memory_bytes and (not models or t.card_model in models)
            found.append(card or not needs_card)
        may: Bools = np.array(found, np.bool_)[self.classes.type]
        return may

    def takes(self, c: int) -> bool:
        """Whether new work may start on nodes of a class."""
        return self.classes.types[self.classes.conditions[c].type].takes

    def may(self, request: Request) -> Bools:
        """Classes whose cards a request allows. A share of a card has the same share of its memory."""
        share = min(request.cards_milli, WHOLE)
        memory = -(-request.card_memory_bytes * WHOLE // share) if share else 0
        return self.allowed(request.card_models, memory, needs_card=share > 0)

    def place(self, level: str, row: int) -> str:
        """Name of the place of `level` that a row is in."""
        if level == "domain":
            return "the whole domain"
        return self.names[row] if level == "node" else self.paths[row][LEVELS.index(level)]


_NOTHING: Final[dict[tuple[str, int], Holding]] = {}


def _place_of(d: NodeRecorded) -> tuple[str, ...]:
    """A node's place from the widest level to the narrowest, itself."""
    return (d.region, d.city, d.site, d.data_centre, d.row, d.rack, d.node)


__all__ = ["LEVELS", "WHOLE", "Holding", "Nodes", "cards_of"]
