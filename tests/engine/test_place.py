"""Where gangs go on small maps, against plain counting; and what a round must not do again."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.records import JobAccepted, JobPending, JobPlaced, NodeChanged
from streams.engine import State, _decide, accept, decide
from streams.engine import inspect as look
from streams.engine._place import Fit, NoFit, find
from streams.engine._request import Request
from tests.engine.oracle import LEVELS, Books
from tests.engine.rows import DOMAIN, NOW, job, node, receipt

small_nodes = st.lists(
    st.builds(
        node,
        st.just("name"),
        cards=st.integers(0, 4),
        cpu=st.integers(0, 6),
        memory=st.integers(0, 6),
        site=st.sampled_from(("s1", "s2")),
        row=st.sampled_from(("", "w1")),
        rack=st.sampled_from(("", "r1", "r2")),
        state=st.sampled_from(("up", "up", "up", "draining")),
    ),
    min_size=1,
    max_size=7,
)


def a_map(rows: list[NodeChanged]) -> tuple[State, Books]:
    state, books = State.empty(DOMAIN), Books()
    for i, row in enumerate(rows):
        for e in accept(state, row._replace(node=f"n{i}"), "", NOW):
            books.post(e)
    return state, books


def brute_fits(books: Books, request: Request) -> bool:
    """Any set of nodes, inside one place of the level or a narrower one, tried by hand: does the gang fit in it?"""
    (ask,) = accept(State.empty(DOMAIN), job("x")._replace(**request._asdict()), "", NOW)
    assert isinstance(ask, JobAccepted)
    names = list(books.nodes)
    upto = LEVELS[: LEVELS.index(request.adjacency or "domain") + 1]
    for size in range(1, len(names) + 1):
        for some in combinations(names, size):
            in_one_place = any(len({books.place(n, level) for n in some}) == 1 for level in upto)
            if in_one_place and sum(books.room(n, ask) for n in some) >= request.members:
                return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    small_nodes,
    st.builds(
        Request,
        members=st.integers(1, 6),
        cards_milli=st.sampled_from((0, 300, 500, 1000, 2000, 3000)),
        card_models=st.just(()),
        card_memory_bytes=st.just(0),
        cpu_milli=st.integers(0, 3).map(lambda c: c * 1000),
        memory_bytes=st.integers(0, 3).map(lambda g: g << 30),
        adjacency=st.sampled_from(("", *LEVELS[:-1])),
    ),
)
def test_placed_if_and_only_if_it_fits(rows: list[NodeChanged], request: Request) -> None:
    state, books = a_map(rows)
    found = find(state.settle(), request)
    assert isinstance(found, Fit) == brute_fits(books, request)
    if isinstance(found, Fit):
        assert sum(found.members) == request.members
        # As few nodes as the place allows: without the emptiest of them the others would not hold the gang.
        assert len(found.rows) == 1 or min(found.members) > 0


def test_the_tightest_place_of_the_narrowest_level_is_taken() -> None:
    """Racks with 3, 2 and 5 whole nodes free; a gang of two: the rack with 2. Counted by hand."""
    rows = [node("", rack=rack) for rack in ("r1", "r1", "r1", "r2", "r2", "r3", "r3", "r3", "r3", "r3")]
    state, _ = a_map(rows)
    for members, place in ((2, "r2"), (3, "r1"), (4, "r3")):
        accept(state, job(f"g{members}", members=members, cards=8), "", NOW)
        (placed,) = decide(state, NOW)
        assert isinstance(placed, JobPlaced)
        assert (placed.level, placed.place, len(placed.nodes)) == ("rack", place, members)


def test_the_last_node_of_a_gang_is_the_tightest_that_holds_the_rest() -> None:
    """Free cards 8, 8, 5, 3; a gang of 11 one-card members takes 8 and then the node with 3, whole."""
    rows = [node("", cards=c, rack="r") for c in (8, 5, 8, 3)]
    state, _ = a_map(rows)
    accept(state, job("g", members=11), "", NOW)
    (placed,) = decide(state, NOW)
    assert isinstance(placed, JobPlaced)
    assert sorted(placed.members_on_node) == [3, 8]
    assert len(placed.nodes) == 2


def test_one_card_jobs_fill_a_node_before_they_open_the_next() -> None:
    state, _ = a_map([node("", cards=4), node("", cards=4), node("", cards=4)])
    for i in range(9):
        accept(state, job(f"j{i}"), "", NOW)
    decide(state, NOW)
    assert [v.cards_free_milli for v in look.nodes(state)] == [0, 0, 3000]


@pytest.mark.parametrize(("members", "code"), [(3, "short_of_cards"), (9, "larger_than_the_map")])
def test_a_long_hopeless_line_is_searched_once_for_each_kind(
    members: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits costs nothing: one search for the kind, none while nothing is freed, one more after something was."""
    searches = []

    def counted(*args: object) -> Fit | NoFit:
        searches.append(args[1])
        return find(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(_decide, "find", counted)
    state, _ = a_map([node("", cards=2), node("", cards=2)])
    accept(state, job("runs", cards=2), "", NOW)
    decide(state, NOW)
    searches.clear()
    for i in range(500):
        accept(state, job(f"j{i}", members=members), "", NOW)
    told = decide(state, NOW)
    assert len(searches) == 1
    why = [e.code for e in told if isinstance(e, JobPending)]
    assert why == 500 * [code]
    for step in range(1, 20):
        assert decide(state, NOW + step) == []
    assert len(searches) == 1
    accept(state, job("other", cards=2), "", NOW)
    decide(state, NOW)
    assert len(searches) == 2, "another kind does not try the long line again"
    accept(state, receipt("runs", "n0", "finished"), "", NOW)
    decide(state, NOW)
    assert len(searches) == 2, "an end frees nothing yet"


def test_a_changed_reason_is_told_to_the_first_in_line_and_read_by_all() -> None:
    state, _ = a_map([node("", cards=2, rack="r1"), node("", cards=2, rack="r2")])
    accept(state, job("runs", cards=2), "", NOW)
    decide(state, NOW)
    for i in range(100):
        accept(state, job(f"j{i}", members=2, cards=2, adjacency="site"), "", NOW)
    decide(state, NOW)
    accept(state, node("n1", cards=2, rack="r2", state="draining"), "", NOW)
    told = decide(state, NOW)
    assert len(told) == _decide.TELL_FIRST == 64
    views = [look.job(state, f"j{i}") for i in range(100)]
    assert {v.code for v in views if v is not None} == {"nodes_away"}
    why = look.why(state, "j99")
    assert why is not None
    assert why.code == "nodes_away"
