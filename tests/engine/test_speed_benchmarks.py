"""The benchmarks of the engine's speed and memory: their maps are what they say, and their quick forms run to the end."""

import pytest

from benchmarks import _frame
from benchmarks._maps import CARDS, Condition, a_map
from streams.engine.inspect import nodes


def test_maps_are_in_the_condition_they_are_named_for() -> None:
    free = {c: [n.cards_free_milli // 1000 for n in nodes(a_map(8 * 400, c))] for c in Condition}
    assert set(free[Condition.EMPTY]) == {CARDS}
    assert set(free[Condition.HALF]) == {0, CARDS}
    assert free[Condition.HALF].count(0) == pytest.approx(200, abs=50)
    assert set(free[Condition.FRAGMENTED]) == set(range(1, CARDS))


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("gang", {"gang_8_map_10000_ms", "gang_10000_map_10000_ms", "gang_4096_map_10000_half_ms"}),
        ("rate", {"map_10000_per_s", "map_10000_burst_per_s", "embedded_log_per_s"}),
        ("queue", {"round_100_ms"}),
        ("memory", {"process_gib", "state_gib"}),
    ],
)
def test_the_quick_form_tells_its_figures(name: str, figures: set[str]) -> None:
    found = _frame.load(name).run(quick=True)
    assert figures <= set(found)
    assert all(value > 0 for value in found.values())
