"""`accept`: what is taken, what is ignored, what is refused, what is poison."""

import math

import pytest

from schemas.errors import Poison
from schemas.records import (
    JobAccepted,
    JobRefused,
    JobSubmitted,
    LinkChanged,
    LinkRecorded,
    NodeRecorded,
    NodeTelemetry,
    Receipt,
    Row,
)
from streams.engine import State, accept, decide, snapshot
from streams.engine.reasons import POISON, REFUSED
from tests.engine.rows import DOMAIN, GIB, NOW, cancel, job, node, progress, receipt

DAY_MS = 86_400_000
YEAR_2087_MS = 3_692_217_600_000


LINK = LinkChanged("a-b", NOW, DOMAIN, "a", "b", 100.0, 10.0, 0.02, "up", 5.0, 10.0, "registered", 0)
link = LINK._replace


@pytest.fixture
def state() -> State:
    """Two nodes, and a gang of two placed on them."""
    state = State.empty(DOMAIN)
    for row in (node("n1", cards=1), node("n2", cards=1), job("gang", members=2)):
        accept(state, row, "test", NOW)
    decide(state, NOW)
    return state


IMPOSSIBLE = [
    node("", cards=1),
    node("n3", cards=-1),
    node("n3", cards=64),
    node("n3", healthy=-1),
    node("n3", cpu=-1),
    node("n3", memory=-1),
    node("n3", card_memory=-1),
    node("n3")._replace(memory_bytes=2**63 - 1),
    node("n3")._replace(disk_bytes=-1),
    node("n3")._replace(card_model=""),
    node("n3", state="asleep"),
    link(link=""),
    link(state="asleep"),
    link(capacity_gbps=-1.0),
    link(capacity_gbps=math.nan),
    link(latency_ms=math.inf),
    link(used_gbps=-0.1),
    link(cost_usd_per_gb=-1.0),
    node("n" * 1_001),
    node("n3", rack="r" * 1_001),
    link(link="l" * 1_001),
    job(""),
    job("j" * 1_001),
    job("x", user="u" * 1_001),
    job("x")._replace(queue="q" * 1_001),
    cancel("gang", user="u" * 1_001),
    receipt("gang", "n1", "exploded"),
    receipt("gang", "n1", "started", attempt=0),
    progress("gang", -0.1),
    progress("gang", 1.1),
    progress("gang", math.nan),
    progress("gang", 0.5, checkpoint_at=-1),
]


@pytest.mark.parametrize("row", IMPOSSIBLE, ids=lambda row: f"{type(row).__name__}-{IMPOSSIBLE.index(row)}")
def test_impossible_values_are_poison_and_change_nothing(state: State, row: Row) -> None:
    before = snapshot(state)
    with pytest.raises(Poison) as e:
        accept(state, row, "test", NOW)
    assert e.value.code == "impossible_value"
    assert e.value.reason
    assert snapshot(state) == before


def test_a_record_that_is_no_input_is_poison(state: State) -> None:
    with pytest.raises(Poison) as e:
        accept(state, NodeTelemetry("n1", NOW, 1, 8, 0.0, 0, 0, 0, 0.0), "test", NOW)
    assert e.value.code == "wrong_record"


def test_poison_codes_are_declared() -> None:
    assert set(POISON) == {"from_the_future", "before_1970", "impossible_value", "wrong_record"}


@pytest.mark.parametrize(
    "row",
    [
        job("x", at=YEAR_2087_MS),
        node("n9", at=YEAR_2087_MS),
        receipt("gang", "n1", "started", at=NOW + DAY_MS + 1),
        link(at=YEAR_2087_MS),
        cancel("gang", at=YEAR_2087_MS),
        progress("gang", 0.5, at=YEAR_2087_MS),
    ],
    ids=lambda row: type(row).__name__,
)
def test_an_event_from_the_future_is_poison(state: State, row: Row) -> None:
    before = snapshot(state)
    with pytest.raises(Poison) as e:
        accept(state, row, "test", NOW)
    assert e.value.code == "from_the_future"
    assert snapshot(state) == before


def test_a_day_ahead_and_any_age_are_taken(state: State) -> None:
    assert accept(state, job("soon", at=NOW + DAY_MS), "test", NOW)
    assert accept(state, job("old", at=0), "test", NOW)


def test_the_day_ahead_counts_from_the_ledger_when_the_clock_steps_back(state: State) -> None:
    assert accept(state, job("soon", at=NOW + DAY_MS), "test", NOW - 30 * DAY_MS)
    assert state.at == NOW


@pytest.mark.parametrize(
    ("code", "row"),
    [
        ("bad_gang", job("x", members=0)),
        ("bad_gang", job("x", members=-3)),
        ("bad_gang", job("x", members=100_001)),
        ("bad_cards", job("x", cards=-1)),
        ("bad_cards", job("x", cards=1.5)),
        ("bad_cards", job("x", cards=64)),
        ("bad_adjacency", job("x", adjacency="shelf")),
        ("bad_adjacency", job("x", adjacency="domain")),
        ("bad_amount", job("x", cpu=-1)),
        ("bad_amount", job("x", memory=-1)),
        ("bad_amount", job("x", card_memory=-1)),
        ("bad_amount", job("x")._replace(memory_bytes=2**63 - 1)),
        ("bad_amount", job("x", limit=-1)),
        ("bad_amount", job("x")._replace(run_limit_ms=2**62)),
        ("bad_amount", job("x")._replace(run_estimate_ms=-1)),
    ],
)
def test_a_job_that_no_map_could_run_is_refused(state: State, code: str, row: JobSubmitted) -> None:
    (entry,) = accept(state, row, "test", NOW)
    assert isinstance(entry, JobRefused)
    assert (entry.job, entry.code) == ("x", code)
    assert code in REFUSED
    assert "x" not in state.jobs


@pytest.mark.parametrize("cards", [0, 0.001, 0.999, 1, 2, 63])
def test_cards_that_can_be(state: State, cards: float) -> None:
    (entry,) = accept(state, job("x", cards=cards), "jobs/0@7", NOW)
    assert isinstance(entry, JobAccepted)
    assert (entry.source, entry.submitted_at, entry.cards_milli) == ("jobs/0@7", NOW, round(cards * 1000))


@pytest.mark.parametrize(("said", "believed"), [(NOW + 60_000, NOW), (NOW - 86_400_000, NOW - 86_400_000)])
def test_age_is_never_in_the_future_but_comes_along_from_another_queue(state: State, said: int, believed: int) -> None:
    (entry,) = accept(state, job("x")._replace(at=said), "test", NOW)
    assert isinstance(entry, JobAccepted)
    assert entry.submitted_at == believed


def test_the_largest_amounts_do_not_overflow(state: State) -> None:
    """2^50 bytes asked and had: products with 1000 in the search stay inside 64 bits, the answer stays right."""
    most = 1 << 50
    giant = node("giant", cards=63)._replace(memory_bytes=most, cpu_milli=most, card_memory_bytes=most)
    accept(state, giant, "test", NOW)
    accept(state, job("all")._replace(memory_bytes=most, cpu_milli=most, card_memory_bytes=most), "test", NOW)
    accept(state, job("thin", cards=0.001)._replace(card_memory_bytes=most), "test", NOW)
    accept(state, job("many", members=100_000, cards=0, cpu=0, memory=0), "test", NOW)
    decide(state, NOW)
    assert state.jobs["all"].nodes == ("giant",)
    assert state.jobs["thin"].code == "no_such_model"  # a thousandth of a card has a thousandth of 2^50
    assert sum(state.jobs["many"].members_on_node) == 100_000


def test_other_domains_and_doubles_change_nothing(state: State) -> None:
    before = snapshot(state)
    for row in (
        node("n1", cards=1),
        node("n1", cards=1, at=NOW + 5)._replace(reason="seen again", counter=9),
        node("gone", state="removed"),
        job("gang", members=2),
        job("gang", members=2, at=NOW + 1),
        job("other")._replace(domain="elsewhere"),
        cancel("unknown"),
        receipt("unknown", "n1", "started"),
        receipt("gang", "n1", "started", attempt=2),
        receipt("gang", "n7", "started"),
        receipt("gang", "n1", "released"),
        progress("gang", 0.5, attempt=2),
        progress("unknown", 0.5),
    ):
        assert accept(state, row, "test", NOW) == [], row
    assert snapshot(state) == before


def test_links_are_kept_and_doubles_ignored(state: State) -> None:
    (entry,) = accept(state, link(), "test", NOW)
    assert isinstance(entry, LinkRecorded)
    assert accept(state, link(at=NOW + 1, reason="again"), "test", NOW) == []
    assert accept(state, link(used_gbps=50.0), "test", NOW)
    assert accept(state, link(state="removed"), "test", NOW)
    assert accept(state, link(state="removed"), "test", NOW) == []
    assert state.links == {}


@pytest.mark.parametrize("kind", ["started", "finished", "failed", "start_failed"])
def test_a_doubled_receipt_counts_once(state: State, kind: str) -> None:
    row: Receipt = receipt("gang", "n1", kind)
    assert len(accept(state, row, "test", NOW)) == 1
    assert accept(state, row, "test", NOW) == []


def test_a_node_takes_over_the_whole_description(state: State) -> None:
    row = node("n3", cards=4, model="H800", card_memory=80, cpu=8, memory=64, region="north", city="c", rack="r9")
    (entry,) = accept(state, row, "changes/2@5", NOW)
    assert isinstance(entry, NodeRecorded)
    fields = [f for f in NodeRecorded._fields if f not in ("domain", "seq", "at", "source")]
    assert [getattr(entry, f) for f in fields] == [getattr(row, f) for f in fields]
    assert entry.memory_bytes == 64 * GIB
