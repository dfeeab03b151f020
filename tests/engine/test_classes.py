"""Classes of nodes, patched change by change, say of every node what its description and its holdings say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import JobPlaced
from streams.engine import State, _classes, accept, decide
from streams.engine._nodes import MANY, Nodes
from tests.engine.rows import DOMAIN, NOW, job, node, receipt


def conditions(nodes: Nodes) -> list[object]:
    """Of each row: its type and what is free there."""
    found = [nodes.classes.conditions[c] for c in nodes.class_of.tolist()]
    return [(nodes.classes.types[c.type], *c[1:]) for c in found]


def check(state: State) -> None:
    """As laid out anew; and each class knows its nodes and the lowest of them."""
    nodes, anew = state.settle(), Nodes()
    anew.lay_out(state.descriptions, state.holdings)
    assert conditions(nodes) == conditions(anew)
    rows: dict[int, list[int]] = {}
    for row, c in enumerate(nodes.class_of.tolist()):
        rows.setdefault(c, []).append(row)
    assert [int(n) for n in nodes.classes.nodes] == [len(rows.get(c, ())) for c in range(len(nodes.classes))]
    for c, there in rows.items():
        assert nodes.classes.lowest(c, nodes.class_of) == there[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3 * MANY), st.sampled_from((300, 1000, 2000)), st.booleans()), max_size=12))
def test_patched_as_laid_out_anew(gangs: list[tuple[int, int, bool]]) -> None:
    """Gangs on few and on many nodes, of which some end; classes without nodes are forgotten at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_classes, "SPARE", 0)
        state = State.empty(DOMAIN)
        for i in range(2 * MANY):
            accept(state, node(f"n{i:02d}", cards=4, cpu=100, rack=f"r{i // 4}"), "", NOW)
        for i, (members, milli, ends) in enumerate(gangs):
            name = f"g{i}"
            accept(state, job(name, members=members)._replace(cards_milli=milli), "", NOW)
            placed = [e for e in decide(state, NOW) if isinstance(e, JobPlaced)]
            check(state)
            for e in placed if ends else []:
                for kind in ("finished", "released"):
                    for n in e.nodes:
                        accept(state, receipt(name, n, kind), "", NOW)
                    decide(state, NOW)
                check(state)


def test_a_gang_on_many_nodes_is_booked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state = State.empty(DOMAIN)
    for i in range(2 * MANY):
        accept(state, node(f"n{i:02d}", cards=8), "", NOW)
    state.settle()
    taken: list[str] = []
    monkeypatch.setattr(Nodes, "take", lambda self, name, h: taken.append(name))
    accept(state, job("g", members=MANY, cards=8), "", NOW)
    decide(state, NOW)
    assert not taken
    check(state)


def test_a_card_that_is_owed_is_free_when_all_of_it_came_back() -> None:
    """A node with two cards in use shrinks to one; both are given back: one is free. Counted by hand."""
    state = State.empty(DOMAIN)
    accept(state, node("n", cards=2), "", NOW)
    accept(state, job("g", cards=2), "", NOW)
    decide(state, NOW)
    accept(state, node("n", cards=1), "", NOW)
    assert state.settle().classes.conditions[int(state.nodes.class_of[0])].card_free == (0, -1000)
    for kind in ("finished", "released"):
        accept(state, receipt("g", "n", kind), "", NOW)
        decide(state, NOW)
    check(state)
    assert state.nodes.classes.conditions[int(state.nodes.class_of[0])].card_free[0] == 1000
