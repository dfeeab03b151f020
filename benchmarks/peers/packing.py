"""BestFit and FGD, as published, for the openb experiment: what the engine's placements are compared with.

Both as in Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023, and its simulator: scores are truncated to integers of 0 to 100, and of equal ones the lowest row wins. FGD is told
the whole trace's mix of requests in advance, as there. Scores are kept for each kind of request until a node changes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks._openb import CARDS, I64, WHOLE, Cluster, Pod

# The simulator normalises by its largest node: 128 cores (in fact some have fewer), 8 cards.
MOST_CPU_MILLI: Final = 128_000
# FGD's target workload: the most frequent kinds that make up this share of all pods.
POPULAR: Final = 0.95
NO: Final = -1.0
F64 = npt.NDArray[np.float64]


def _fits(there: Cluster, pod: Pod, rows: I64) -> npt.NDArray[np.bool_]:
    """Which of these rows could take the pod."""
    ok: npt.NDArray[np.bool_] = (there.cpu_free[rows] >= pod.cpu_milli) & (there.memory_free[rows] >= pod.memory_bytes)
    if pod.models:
        ok &= np.isin(there.models[rows], pod.models)
    if pod.cards:
        ok &= (there.free[rows] >= pod.milli).sum(axis=1) >= pod.cards
    return ok


def _lowest(free: I64, pod: Pod) -> int:
    """Mask of the lowest cards that are free for it."""
    chosen = np.flatnonzero(free >= pod.milli)[: pod.cards]
    return sum(1 << int(card) for card in chosen)


class _Scored:
    """The best score wins, the lowest row of equal ones. Knows which rows changed since a kind was last scored."""

    def __init__(self, there: Cluster) -> None:
        self.there = there
        self._journal: list[int] = []
        self._known: dict[Pod, tuple[int, F64]] = {}

    def place(self, pod: Pod) -> tuple[int, int] | None:
        seen, scores = self._known.get(pod, (-1, np.full(len(self.there.cards), NO)))
        rows = np.arange(len(scores)) if seen < 0 else np.unique(np.array(self._journal[seen:], np.int64))
        if len(rows):
            fits = rows[_fits(self.there, pod, rows)]
            scores[rows] = NO
            if len(fits):
                scores[fits] = self.scores(pod, fits)
        self._known[pod] = (len(self._journal), scores)
        row = int(scores.argmax())
        if scores[row] == NO:
            return None
        self._journal.append(row)
        return row, self.mask(pod, row)

    def scores(self, pod: Pod, rows: I64) -> F64:
        raise NotImplementedError

    def mask(self, pod: Pod, row: int) -> int:
        raise NotImplementedError


class BestFit(_Scored):
    """Least left of CPU and cards, each as a share of the largest node's; a share goes to the fullest card that has room."""

    def scores(self, pod: Pod, rows: I64) -> F64:
        cpu = (self.there.cpu_free[rows] - pod.cpu_milli) / MOST_CPU_MILLI
        cards = (self.there.free[rows].clip(0).sum(axis=1) - pod.demand) / (CARDS * WHOLE)
        return np.floor(100 * (1 - 0.5 * cpu - 0.5 * cards))

    def mask(self, pod: Pod, row: int) -> int:
        free = self.there.free[row]
        if pod.shared:
            return 1 << int(np.where(free >= pod.milli, free, 2 * WHOLE).argmin())
        return _lowest(free, pod)


class Fgd(_Scored):
    """Fragmentation gradient descent: where the expected amount of cards that the mix cannot use grows least."""

    def __init__(self, there: Cluster, mix: Sequence[Pod]) -> None:
        super().__init__(there)
        counts = Counter(mix).most_common()
        kinds: list[tuple[Pod, int]] = []
        total = 0
        for kind, n in counts:
            if total >= POPULAR * len(mix):
                break
            kinds.append((kind, n))
            total += n
        # Work without a card sees all that is idle as unusable, wherever it is: it moves no choice.
        kinds = [(kind, n) for kind, n in kinds if kind.cards]
        self._share = np.array([n / total for _, n in kinds])
        self._cpu = np.array([k.cpu_milli for k, _ in kinds])
        self._milli = np.array([k.milli for k, _ in kinds])
        self._cards = np.array([k.cards for k, _ in kinds])
        self._models = [k.models for k, _ in kinds]
        self._allowed = np.array([[not m or str(model) in m for m in self._models] for model in there.models])

    def _fragments(self, cpu_free: I64, free: I64, allowed: npt.NDArray[np.bool_]) -> F64:
        """Expected milli-cards that a pod of the mix cannot use, of each of these states: [n], [n, 8], [n, kinds]."""
        idle = free.clip(0)
        usable = free[:, None, :] >= self._milli[:, None]
        fits = allowed & (cpu_free[:, None] >= self._cpu) & (usable.sum(axis=2) >= self._cards)
        useful = np.where(usable, idle[:, None, :], 0).sum(axis=2)
        lost: F64 = (self._share * (idle.sum(axis=1)[:, None] - np.where(fits, useful, 0))).sum(axis=1)
        return lost

    def _after(self, pod: Pod, rows: I64) -> tuple[F64, I64]:
        """Of each row: growth of its fragments in whole cards with the best choice of cards there, and that card (shares)."""
        there = self.there
        free, cpu, allowed = there.free[rows], there.cpu_free[rows], self._allowed[rows]
        before = self._fragments(cpu, free, allowed)
        if pod.shared:
            choices = np.repeat(free[:, None, :], CARDS, axis=1)
            choices[:, range(CARDS), range(CARDS)] -= pod.milli
            lost = self._fragments(
                np.repeat(cpu - pod.cpu_milli, CARDS), choices.reshape(-1, CARDS), np.repeat(allowed, CARDS, axis=0)
            ).reshape(-1, CARDS)
            lost[free < pod.milli] = np.inf
            best = lost.argmin(axis=1)
            return (lost[range(len(rows)), best] - before) / WHOLE, best
        left = free.copy()
        if pod.cards:
            room = free >= pod.milli
            left[room & (room.cumsum(axis=1) <= pod.cards)] -= pod.milli
        return (self._fragments(cpu - pod.cpu_milli, left, allowed) - before) / WHOLE, np.zeros(len(rows), np.int64)

    def scores(self, pod: Pod, rows: I64) -> F64:
        growth, _ = self._after(pod, rows)
        return np.floor(100 / (1 + np.exp(growth)))

    def mask(self, pod: Pod, row: int) -> int:
        if pod.shared:
            return 1 << int(self._after(pod, np.array([row], np.int64))[1][0])
        return _lowest(self.there.free[row], pod)
