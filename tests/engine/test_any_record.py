"""The law of inputs: any record that decodes is accepted, refused, ignored or `Poison`. Nothing else is raised, neither by `accept`
nor by what follows from it, up to the bytes that are written; and `Poison` leaves the state as it was, byte for byte. An exception
of another kind would end the engine, and meet it again after each restart, because its record is still there."""

import contextlib
import json
import math
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.codec import decode, decode_rows, encode
from schemas.errors import Poison
from schemas.messages import Block
from schemas.records import ROW_TYPES, LedgerEntry, LinkChanged, Row
from schemas.topics import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES
from streams.engine import EngineConfig, State, accept, commands, decide, evolve, inspect, next_wake, restore, snapshot
from tests.engine.rows import DOMAIN, NOW, cancel, job, node, progress, receipt
from tests.schemas.values import newest, rows_of_type

CONFIG = EngineConfig(start_timeout_ms=1, release_timeout_ms=1, lost_after_ms=1, max_attempts=3)
DAY_MS = 86_400_000
YEARS_100_MS = 100 * 366 * DAY_MS
JOBS, NODES = st.sampled_from(("gang", "one", "wide", "new")), st.sampled_from(("n1", "n2", "n3"))
# Where a comparison or a sum changes its mind, or no longer fits.
EDGES = (
    -(2**63), -(2**53), -1, 0, 1, 2, 63, 64, 999, 1000, 1001, 63_000, 64_000, 100_000, 100_001, 2**31 - 1, 2**50, 2**50 + 1, 2**53 + 1,
    2**62, 2**63 - 1, YEARS_100_MS, YEARS_100_MS + 1, NOW, NOW + DAY_MS, NOW + DAY_MS + 1,
)  # fmt: skip
ANY = {
    "string": st.sampled_from(("", "\0", "gang", "n1", "up", "removed", "silent", "released", "failed", "rack", "domain", "\U0010ffff" * 99))
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    "int": st.sampled_from([e for e in EDGES if -(2**31) <= e < 2**31] + [-(2**31)]) | st.integers(-(2**31), 2**31 - 1),
    "long": st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1),
    "double": st.floats() | st.sampled_from((-0.0, 5e-324, 1.0, 1.0000000000000002)),
}  # fmt: skip
# Rows that can be; `bent` makes others of them.
SOUND = (
    st.builds(node, NODES, cards=st.integers(0, 3), state=st.sampled_from(("up", "silent", "removed", "draining")), site=st.sampled_from("ab")),
    st.builds(job, JOBS, members=st.integers(1, 5), cards=st.sampled_from((0, 0.5, 1, 2)), limit=st.sampled_from((0, 1))),
    st.builds(cancel, JOBS),
    st.builds(receipt, JOBS, NODES, st.sampled_from(("started", "finished", "failed", "start_failed", "released")), attempt=st.integers(1, 3)),
    st.builds(progress, JOBS, st.floats(0, 1), attempt=st.integers(1, 3)),
    st.just(LinkChanged("a-b", NOW, DOMAIN, "a", "b", 100.0, 10.0, 0.02, "up", 5.0, 10.0, "registered", 0)),
)  # fmt: skip


def _any(kind: object) -> st.SearchStrategy[object]:
    if isinstance(kind, dict):
        return st.lists(_any(kind["items"]), max_size=3).map(tuple) if kind["type"] == "array" else _any(kind["type"])
    return ANY[cast(str, kind)]


def _fields(record: type[Row]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(newest(record).avsc)["fields"]
    return found


@st.composite
def bent(draw: st.DrawFn) -> Row:
    """A sound row with any values in up to three of its fields: a row of random values alone is refused at its first one."""
    row = draw(st.one_of(SOUND))
    some = draw(st.lists(st.sampled_from(_fields(type(row))), max_size=3, unique_by=lambda f: str(f["name"])))
    return row._replace(**{str(f["name"]): draw(_any(f["type"])) for f in some})


RECORDS = bent() | st.sampled_from(ROW_TYPES).flatmap(rows_of_type)


class Engine:
    """A state, and its twin that only ever sees what was written."""

    def __init__(self) -> None:
        self.state, self.twin = State.empty(DOMAIN), State.empty(DOMAIN)
        # A gang at work, then room for more, and a job that would take as many cards as a mask can name.
        for row in (node("n1", cards=2), node("n2", cards=2), job("gang", members=2, cards=2)):
            self.take(row, NOW)
        self.decide(NOW)
        for row in (node("free"), job("one"), job("wide", members=64, cpu=0, memory=0)):
            self.take(row, NOW)
        self.decide(NOW)
        assert self.state.jobs["gang"].nodes == ("n1", "n2")
        assert self.state.jobs["one"].nodes == ("free",)

    def take(self, row: Row, now: int) -> None:
        before = snapshot(self.state)
        entries: list[LedgerEntry] = []
        with contextlib.suppress(Poison):
            entries = accept(self.state, row, "jobs/3@123456789", now)
        assert entries or snapshot(self.state) == before
        self.write(entries)

    def decide(self, now: int) -> None:
        self.write(decide(self.state, now, CONFIG))
        next_wake(self.state, CONFIG)

    def write(self, entries: list[LedgerEntry]) -> None:
        for entry in entries:
            written = decode(encode(entry))
            assert written == entry
            evolve(self.twin, cast(LedgerEntry, written))
            for command in commands(self.state, entry):
                assert decode(encode(command)) == command

    def end(self, now: int) -> None:
        """What was decided can be kept, read again, and told."""
        for _ in range(3):
            now += 1_000
            self.decide(now)
        assert snapshot(restore(snapshot(self.state))) == snapshot(self.state) == snapshot(self.twin)
        json.dumps([inspect.nodes(self.state), inspect.links(self.state), inspect.jobs(self.state)])
        for name in self.state.jobs:
            inspect.why(self.state, name)


def _read_back(rows: list[Row]) -> list[Row]:
    values = [encode(row) for row in rows]
    decoded = decode_rows(Block("jobs", 3, values, len(values), offsets=range(len(values))))
    assert not decoded.poison
    return [row for _, row in decoded.rows]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(RECORDS, min_size=15, max_size=40), often=st.booleans())
def test_any_record_is_accepted_refused_ignored_or_poison(rows: list[Row], often: bool) -> None:
    engine = Engine()
    now = NOW
    for row in _read_back(rows):
        engine.take(row, now)
        if often:
            now += 1
            engine.decide(now)
    engine.end(now)


# Each is accepted by a new `Engine`.
GOOD = (
    node("n3", healthy=1 << 30), job("new", cards=0.5), job("new", limit=1), cancel("gang"), receipt("gang", "n1", "started"), receipt("gang", "n1", "failed"),
    progress("gang", 0.5), LinkChanged("a-b", NOW, DOMAIN, "a", "b", 100.0, 10.0, 0.02, "up", 5.0, 10.0, "registered", 0),
)  # fmt: skip
SWEPT: dict[str, tuple[object, ...]] = {
    "string": (
        "",
        "\0",
        "gang",
        "one",
        "n1",
        "up",
        "removed",
        "silent",
        "released",
        "start_failed",
        "rack",
        "\U0010ffff" * 9_000,
    ),
    "int": tuple(e for e in (*EDGES, -(2**31)) if -(2**31) <= e < 2**31),
    "long": EDGES,
    "double": (-math.inf, -1.0, -0.0, 5e-324, 1.0, 1.0000000000000002, 1.8e308, 1.7e308, math.nan),
}


def _edges(kind: object) -> Iterable[object]:
    if isinstance(kind, dict):
        return ((), ("",), ("X",) * 5_000) if kind["type"] == "array" else _edges(kind["type"])
    return SWEPT[cast(str, kind)]


@pytest.mark.parametrize("good", GOOD, ids=lambda row: f"{type(row).__name__}-{GOOD.index(row)}")
def test_every_edge_of_every_field(good: Row) -> None:
    """Chance seldom hits the one field and the one value: here each has its turn, with all else as it should be."""
    assert accept(Engine().state, good, "test", NOW)
    for field in _fields(type(good)):
        for value in _edges(field["type"]):
            engine = Engine()
            (row,) = _read_back([good._replace(**{str(field["name"]): value})])
            engine.take(row, NOW)
            engine.end(NOW)


# A job's whole way, with a second attempt, a refusal and a cancellation. What is repeated by entries and commands is in here.
COURSE = (
    node("n1"), node("n2"), job("gang", members=2, cards=8), receipt("gang", "n1", "start_failed", reason="no image"),
    job("gang", members=3), progress("gang", 0.5), receipt("gang", "n1", "released"), receipt("gang", "n2", "released"),
    receipt("gang", "n1", "failed", attempt=2, exit_code=1, reason="killed"), job("two", adjacency="shelf"), job("three", models=("X",)),
    cancel("three", reason="too late"),
)  # fmt: skip
TEXTS = sorted({f for row in COURSE for f, v in row._asdict().items() if isinstance(v, str | tuple) and f != "domain"})


@pytest.mark.parametrize("end", ["\0", "\U000e0001"])
@pytest.mark.parametrize("field", TEXTS)
def test_no_input_is_so_large_that_what_comes_of_it_cannot_be_written(field: str, end: str) -> None:
    """With one text as large as an input may be, in every row that has it. Some characters are several when they are quoted."""
    large = end * ((MAX_INPUT_BYTES - 1_000) // len(end.encode()))
    state = State.empty(DOMAIN)
    for plain in COURSE:
        row = plain
        if field in row._fields:
            own = getattr(row, field)
            # Names stay different, so that two large ones meet in one entry.
            row = row._replace(**{field: own + large if isinstance(own, str) else (large,)})
        assert len(encode(row)) <= MAX_INPUT_BYTES
        entries: list[LedgerEntry] = []
        with contextlib.suppress(Poison):
            entries = accept(state, row, "jobs/3@123456789", NOW)
        entries += decide(state, NOW, CONFIG)
        for entry in entries:
            for written in (entry, *commands(state, entry)):
                assert len(encode(written)) <= MAX_OUTPUT_BYTES, type(written).__name__
