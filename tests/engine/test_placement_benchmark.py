"""The openb experiment and its peers: worked examples by hand, and that it does not take what cannot be."""

import numpy as np
import pytest

from benchmarks import _openb, placement
from benchmarks._openb import Cluster, Pod
from benchmarks.peers.packing import BestFit, Fgd


def _cluster(*cards: tuple[int, ...], cpu: int = 10_000) -> Cluster:
    """Nodes of model T4 with these milli of their cards free."""
    n = len(cards)
    made = Cluster(np.full(n, cpu), np.full(n, 1_000), np.array([len(c) for c in cards]), ["T4"] * n)
    for row, free in enumerate(cards):
        made.free[row, : len(free)] = free
    return made


WHOLE = Pod(1_000, 10, 1, 1000, ())
HALF = Pod(1_000, 10, 1, 500, ())
HUNGRY = Pod(20_000, 10, 1, 1000, ())


def test_the_trace_is_the_published_one() -> None:
    there, trace = _openb.cluster(), _openb.pods()
    assert (len(there.cards), there.capacity, len(trace)) == (1_213, 6_212_000, 8_152)
    order = _openb.arrivals(trace, there.capacity, seed=1)
    demand = sum(p.demand for p in order)
    assert demand - order[-1].demand < 1.3 * there.capacity <= demand
    assert sorted(order[: len(trace)]) == sorted(trace)
    assert [len(_openb.pods(v)) for v in _openb.VARIANTS] == [9_420, 8_152, 8_152, 9_061]


def test_expected_fragments_by_hand() -> None:
    """One card whole, one half, CPU for all but the hungry kind. Of 1,500 idle milli a whole pod (half of the mix) cannot use the
    half card: 500; a half one (a quarter) can use all: 0; the hungry one (a quarter) can use none: 1,500. 250 + 0 + 375."""
    there = _cluster((1000, 500))
    fgd = Fgd(there, [WHOLE, WHOLE, HALF, HUNGRY])
    assert fgd._fragments(there.cpu_free, there.free, fgd._allowed) == pytest.approx([625])


def test_fgd_fills_a_begun_card_where_best_fit_begins_another() -> None:
    """Least is left in sum on the last node, where a whole card would be begun; the half card of the second is what a share is for."""
    there = _cluster((1000, 1000), (1000, 500), (1000, 300))
    assert Fgd(there, [WHOLE, HALF]).place(HALF) == (1, 0b10)
    assert BestFit(there).place(HALF) == (2, 0b01)


def test_best_fit_scores_by_hand() -> None:
    """(10 - 1) of 128 cores and 0.5 of 8 cards are left: 100 · (1 - ½ · 9/128 - ½ · 0.5/8) = 93.36, truncated."""
    there = _cluster((1000,))
    assert BestFit(there).scores(HALF, np.array([0])).tolist() == [93]


def test_nobody_takes_what_is_not_there() -> None:
    there = _cluster((500,))
    with pytest.raises(AssertionError, match="cards are free"):
        there.take(WHOLE, 0, 1)
    with pytest.raises(AssertionError, match="CPU is there"):
        _cluster((1000,)).take(HUNGRY, 0, 1)
    with pytest.raises(AssertionError, match="as many cards"):
        _cluster((1000, 1000)).take(WHOLE, 0, 0b11)
    with pytest.raises(AssertionError, match="a model"):
        _cluster((1000,)).take(WHOLE._replace(models=("A10",)), 0, 1)


@pytest.mark.parametrize("variant", ["default", "gpuspec33"])
def test_the_engine_refuses_only_what_fits_nowhere(variant: str) -> None:
    """Whatever the engine does not place must not fit on any node of the experiment's own books."""
    there = _openb.cluster(20)
    engine = placement.Engine(there)
    refused = 0
    for pod in _openb.arrivals(_openb.pods(variant), there.capacity, 7)[:400]:
        found = engine.place(pod)
        if found is None:
            assert BestFit(there).place(pod) is None
            refused += 1
        else:
            there.take(pod, *found)
    assert refused
