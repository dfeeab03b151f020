"""What one member of each waiting kind needs, as arrays: which kinds could use what was just freed is one comparison for all.

However many kinds wait, a round looks only at those that a freed node could hold a member of; all others fit no better than when
they were tried last. Owned by the state, derived, never in a snapshot.
"""

from typing import Final

import numpy as np

from streams.engine._classes import I64, WHOLE, Condition
from streams.engine._request import Request

# Needs more cards than any node has: an empty row.
NOBODY: Final = 1 << 40


class Needs:
    """Rows of waiting kinds, in no order; rows of kinds that left are used again."""

    def __init__(self) -> None:
        self._rows: dict[Request, int] = {}
        self._kinds: list[Request | None] = []
        self._empty: list[int] = []
        # Whole cards, share of one card (milli), CPU (milli), memory (bytes) of a member.
        self._whole: I64 = np.zeros(0, np.int64)
        self._share: I64 = np.zeros(0, np.int64)
        self._cpu: I64 = np.zeros(0, np.int64)
        self._memory: I64 = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, kind: Request) -> None:
        if self._empty:
            row = self._empty.pop()
            self._kinds[row] = kind
        else:
            row = len(self._kinds)
            self._kinds.append(kind)
            if row == self._whole.size:
                more = (0, max(16, row))
                self._whole = np.pad(self._whole, more, constant_values=NOBODY)
                self._share, self._cpu, self._memory = (np.pad(a, more) for a in (self._share, self._cpu, self._memory))
        self._rows[kind] = row
        whole, share = divmod(kind.cards_milli, WHOLE)
        self._whole[row], self._share[row] = whole, share
        self._cpu[row], self._memory[row] = kind.cpu_milli, kind.memory_bytes

    def remove(self, kind: Request) -> None:
        row = self._rows.pop(kind)
        self._kinds[row] = None
        self._whole[row] = NOBODY
        self._empty.append(row)

    def that_fit(self, free: Condition) -> list[Request]:
        """Kinds of which a node with this much free holds a member, whatever its card model."""
        largest = max(0, *free.card_free) if free.card_free else 0
        fits = (
            (self._whole <= free.card_free.count(WHOLE))
            & (self._share <= largest)
            & ((self._cpu <= free.cpu_free) | (self._cpu == 0))
            & ((self._memory <= free.memory_free) | (self._memory == 0))
        )
        return [kind for row in np.flatnonzero(fits).tolist() if (kind := self._kinds[row]) is not None]
