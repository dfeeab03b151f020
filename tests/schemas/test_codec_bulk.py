"""Blocks at once: the same rows as one by one, whatever stands between the good messages."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import PACKAGED, Writer, decode, decode_columns, decode_rows, encode, frame_bodies, zigzag
from schemas.codec._bulk import _FEW, _PIECE, _SHARE, _numbers_to, _read
from schemas.errors import Poison, Where
from schemas.messages import Block
from schemas.records import (
    ROW_TYPES,
    DeadLetter,
    JobInterrupted,
    JobPlaced,
    LinkRemoved,
    NodeRemoved,
    NodeTelemetry,
    Row,
)
from tests.schemas.values import many, newest, plain_values, rows_of_type, some

PLACED = JobPlaced(
    "d", 5, 6, "jobs/2@7", "j", 1, "u", "q", ("n1", "n2"), (1, 2), (255, -5), 1000, 8000, "rack", "é", 1, 17, "fits", 9
)
LETTER = DeadLetter("jobs", 1, 2, 3, "decide", "c", "r", None, b"k", b"\x00\xff", 0)
STOPPED = JobInterrupted("d", 7, 5, "s", "j", 1, "c", "r", 64, True)


def telemetry(i: int) -> NodeTelemetry:
    return NodeTelemetry(f"node-{i % 7}", 1_764_576_000_000 + i, i, 8, 93.5 + i, 75 << 30, 64_000, 1 << 38, 5200.0)


def block(values: list[bytes | None]) -> Block:
    """Offsets with gaps, as a transactional log has them."""
    return Block("resource-telemetry", 2, values, 3 * len(values) + 100, offsets=range(100, 100 + 3 * len(values), 3))


def one_by_one(values: list[bytes | None]) -> tuple[dict[int, Row], dict[int, str]]:
    rows: dict[int, Row] = {}
    poison: dict[int, str] = {}
    for i, value in enumerate(values):
        try:
            rows[i] = decode(value)
        except Poison as e:
            poison[i] = e.code
    return rows, poison


def typed(rows: list[tuple[int, Row]]) -> list[tuple[int, type[Row], Row]]:
    """Rows of different records with the same values are equal as tuples; they must not be taken for each other."""
    return [(i, type(row), row) for i, row in rows]


def check(values: list[bytes | None]) -> None:
    """Bulk says what one by one says, in order, with positions."""
    rows, poison = one_by_one(values)
    done = decode_rows(block(values))
    assert typed(done.rows) == typed(sorted(rows.items()))
    assert [(i, p.code) for i, p in done.poison] == sorted(poison.items())
    assert all(p.where == Where("resource-telemetry", 2, 100 + 3 * i) for i, p in done.poison)
    columns, also = decode_columns(block(values))
    assert [(i, p.code, p.reason) for i, p in also] == [(i, p.code, p.reason) for i, p in done.poison]
    found: dict[int, Row] = {}
    for c in columns:
        assert c.frame.columns == list(c.record._fields)
        assert list(c.index) == sorted(c.index)
        for i, values_ in zip(c.index.tolist(), c.frame.rows(), strict=True):
            found[i] = c.record._make(tuple(v) if isinstance(v, list) else v for v in values_)
    assert found == rows


@pytest.mark.parametrize("count", [0, 1, _FEW - 1, _FEW, 1_000, 20_000])
def test_a_block_of_one_record(count: int) -> None:
    rows = [telemetry(i) for i in range(count)]
    done = decode_rows(block([encode(r) for r in rows]))
    assert done.rows == list(enumerate(rows))
    assert not done.poison


@pytest.mark.parametrize("record", ROW_TYPES, ids=lambda r: r.__name__)
@some
@given(data=st.data())
def test_any_values_of_any_record(record: type[Row], data: st.DataObject) -> None:
    some = data.draw(st.lists(rows_of_type(record), min_size=1, max_size=4))
    rows = (some * _FEW)[: _FEW + 3]
    assert decode_rows(block([encode(r) for r in rows])).rows == list(enumerate(rows))


def test_records_mixed_in_one_block_keep_the_order_of_the_log() -> None:
    rows: list[Row] = [(PLACED, telemetry(i), LETTER, STOPPED)[i * i % 4] for i in range(500)]
    check([encode(r) for r in rows])


def test_columns_have_the_types_of_the_schema() -> None:
    (columns,), _ = decode_columns(block([encode(PLACED)] * 40))
    types = {name: str(dtype) for name, dtype in columns.frame.schema.items()}
    assert types["at"] == types["seq"] == "Int64"
    assert types["attempt"] == "Int32"
    assert types["nodes"] == "List(String)"
    assert types["members_on_node"] == "List(Int32)"
    assert types["card_masks"] == "List(Int64)"
    (columns,), _ = decode_columns(block([encode(STOPPED)] * 40))
    assert str(columns.frame.schema["requeued"]) == "Boolean"


def bad_day() -> list[bytes | None]:
    """Every kind of poison of the fourth bad day that bytes can show."""
    good = encode(telemetry(1))
    return [
        None, b"", b"\x00", good[:5], good[:-1], good[:20], good + b"\x00", b"\x00\x00\x00\x00\x07" + good[5:], b"\x01" + good[1:],
        b"plain text", b'{"node": "n1"}', random.Random(4).randbytes(2_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize("n_good", [3, 100, 2 * _PIECE + 9])
def test_good_messages_pass_between_poison_of_every_kind(n_good: int) -> None:
    values: list[bytes | None] = []
    for i, bad in enumerate(bad_day()):
        values += [encode(telemetry(i * n_good + k)) for k in range(n_good)] + [bad]
    check(values)
    assert len(decode_rows(block(values)).poison) == len(bad_day())


class Only:
    """A catalogue of one record under one id."""

    def __init__(self, record: type[Row], schema_id: int) -> None:
        self.record, self.schema_id = record, schema_id

    def writer(self, asked: int) -> Writer:
        assert asked == self.schema_id
        return newest(self.record)

    def newest(self, record: type[Row]) -> int:
        assert record is self.record
        return self.schema_id


def test_a_message_that_swallows_the_next_one_is_found_by_its_number() -> None:
    """Made so that as many records come out as messages went in, with good headers each, and everything decodes."""
    ids = Only(NodeRemoved, 1)  # an id whose bytes are also good text
    good = encode(NodeRemoved("n", 1, "d", "r"), ids)
    assert good == b"\x00\x00\x00\x00\x01" + b"\x02n" + b"\x02" + b"\x02d" + b"\x02r"
    # Its text takes its own number, and the header and the name of the next message; the rest of that is its own rest.
    greedy = good[:5] + zigzag(1 + 5 + 2)
    two_in_one = good + zigzag(21) + good
    values: list[bytes | None] = [good] * 40
    values[10], values[20] = greedy, two_in_one
    done = decode_rows(block(values), ids)
    assert [i for i, _ in done.poison] == [10, 20]
    assert [i for i, _ in done.rows] == [i for i in range(40) if i not in {10, 20}]


def test_one_other_header_anywhere_in_a_block_is_noticed() -> None:
    """Removals of nodes and of links have the same form of body: only the header tells them apart."""
    node, link = NodeRemoved("n", 1, "d", "r"), LinkRemoved("n", 1, "d", "r")
    assert encode(node)[5:] == encode(link)[5:]
    for other in (encode(link), b"\x01" + encode(node)[1:], b"\x80" + encode(node)[1:], encode(node)[5:]):
        for place in range(1, 99, 9):
            values: list[bytes | None] = [encode(node)] * 100
            values[place] = other
            rows, poison = one_by_one(values)
            done = decode_rows(block(values))
            assert typed(done.rows) == typed(sorted(rows.items()))
            assert [i for i, _ in done.poison] == list(poison)


def test_one_other_header_in_a_block_that_threads_share_is_noticed() -> None:
    node, link = encode(NodeRemoved("n", 1, "d", "r")), encode(LinkRemoved("n", 1, "d", "r"))
    n = 10 * _SHARE
    for place in (0, 1, n // 2 - 1, n // 2, n - 1):
        values: list[bytes | None] = [node] * n
        values[place] = link
        done = decode_rows(block(values))
        assert not done.poison
        assert [i for i, row in done.rows if isinstance(row, LinkRemoved)] == [place]


def test_tombstones_anywhere_in_a_block_that_threads_share() -> None:
    node = encode(NodeRemoved("n", 1, "d", "r"))
    n = 2 * _SHARE
    for place in (0, 1, _SHARE - 1, _SHARE, n - 1):
        values: list[bytes | None] = [node] * n
        values[place] = None
        done = decode_rows(block(values))
        assert [(i, p.code) for i, p in done.poison] == [(place, "tombstone")]
        assert len(done.rows) == n - 1


def test_shares_of_one_header_each_are_not_read_as_one() -> None:
    node, link = encode(NodeRemoved("n", 1, "d", "r")), encode(LinkRemoved("n", 1, "d", "r"))
    writer = PACKAGED.writer(PACKAGED.newest(NodeRemoved))
    n = 2 * _SHARE
    frame = _read([node] * n, writer)
    assert frame is not None
    assert len(frame) == n
    assert _read([node] * _SHARE + [link] * _SHARE, writer) is None


def test_threads_that_read_their_first_large_blocks_at_once_do_not_get_in_each_others_way() -> None:
    """If they did, messages would be read one by one: right, and thirty times slower."""
    n = 70_000
    values = [encode(telemetry(i)) for i in range(n)]
    writer = PACKAGED.writer(PACKAGED.newest(NodeTelemetry))
    _numbers_to.cache_clear()
    together = threading.Barrier(3)

    def read() -> int:
        together.wait()
        frame = _read(values, writer)
        return -1 if frame is None else len(frame)

    with ThreadPoolExecutor(3) as threads:
        found = [f.result() for f in [threads.submit(read) for _ in range(3)]]
    assert found == [n] * 3


@pytest.mark.parametrize("schema_id", [0, 1, 255, 0x000080FF, 0x000180FF, 0x7FFFFFFF, 0x80FFFFFF, 0xFFFFFFFF])
def test_any_id_a_registry_may_give(schema_id: int) -> None:
    """Some ids are no number when their bytes are looked at as a float."""

    values: list[bytes | None] = [encode(telemetry(i), Only(NodeTelemetry, schema_id)) for i in range(50)]
    (columns,), poison = decode_columns(block(values), Only(NodeTelemetry, schema_id))
    assert not poison
    assert columns.frame["counter"].to_list() == list(range(50))


def test_nothing_but_poison() -> None:
    check(bad_day() * 4)


def test_two_bad_messages_that_make_two_good_ones_are_both_refused() -> None:
    """Bytes moved from one message into the next: the joined bytes are those of two good messages, and would decode."""
    a, b = encode(telemetry(1))[5:], encode(telemetry(2))[5:]
    bodies = [a[:-3], a[-3:] + b]
    assert b"".join(bodies) == a + b
    head = encode(telemetry(1))[:5]
    values: list[bytes | None] = [encode(telemetry(0))] * 40
    values[10:12] = [head + bodies[0], head + bodies[1]]
    done = decode_rows(block(values))
    assert [i for i, _ in done.poison] == [10, 11]
    assert len(done.rows) == 38
    # Without the numbers between them nobody would notice: the same bytes in a bare container are two rows.
    import io

    import polars as pl

    assert len(pl.read_avro(io.BytesIO(frame_bodies(bodies, newest(NodeTelemetry).avsc)))) == 2


def test_two_halves_of_a_message_are_not_one() -> None:
    value = encode(telemetry(3))
    values: list[bytes | None] = [encode(telemetry(0))] * 50
    values[20:22] = [value[:30], value[:5] + value[30:]]
    done = decode_rows(block(values))
    assert [i for i, _ in done.poison] == [20, 21]


@many
@given(st.data())
def test_damaged_bytes_read_alike_in_bulk_and_alone(data: st.DataObject) -> None:
    row: Row = data.draw(st.sampled_from([telemetry(1), PLACED, LETTER, STOPPED]))
    damaged = bytearray(encode(row))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(5, max(5, len(damaged) - 1)))
        how = data.draw(st.sampled_from(["set", "cut", "insert", "end"]))
        if how == "set" and at < len(damaged):
            damaged[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del damaged[at : at + data.draw(st.integers(1, 4))]
        elif how == "insert":
            damaged[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            del damaged[at:]
    value = bytes(damaged)
    alone = repr(one_by_one([value]))  # repr: NaN is not equal to itself
    done = decode_rows(block([encode(row)] * 20 + [value] + [encode(row)] * 20))
    rows, poison = dict(done.rows), dict(done.poison)
    in_bulk = ({0: rows[20]}, {}) if 20 in rows else ({}, {0: poison[20].code})
    assert repr(in_bulk) == alone
    assert [r for i, r in done.rows if i != 20] == [row] * 40


def blocks_of_items(items: list[bytes]) -> bytes:
    """An array in Avro's other form: a negative count and a size in bytes, then the items."""
    body = b"".join(items)
    return zigzag(-len(items)) + zigzag(len(body)) + body + b"\x00"


def test_other_legal_forms_of_the_same_values_are_read() -> None:
    """Other languages write arrays in several blocks or with their size: legal, and the same row."""
    plain = encode(PLACED)
    nodes = b"\x04" + b"\x04n1" + b"\x04n2" + b"\x00"
    assert nodes in plain
    sized = plain.replace(nodes, blocks_of_items([b"\x04n1", b"\x04n2"]))
    split = plain.replace(nodes, b"\x02\x04n1\x02\x04n2\x00")
    values: list[bytes | None] = [plain] * 20 + [sized] + [plain] * 20 + [split] + [plain] * 20
    check(values)
    assert {r for _, r in decode_rows(block(values)).rows} == {PLACED}


def test_positions_are_left_out_when_a_block_has_no_offsets() -> None:
    done = decode_rows(Block("jobs", 1, [b"bad"], 1))
    assert done.poison[0][1].where == Where("jobs", 1, -1)


def test_index_is_the_place_in_the_block() -> None:
    values: list[bytes | None] = [b"bad", encode(telemetry(1)), None, encode(PLACED), encode(telemetry(2))]
    columns, poison = decode_columns(block(values))
    assert {c.record: c.index.tolist() for c in columns} == {NodeTelemetry: [1, 4], JobPlaced: [3]}
    assert all(c.index.dtype == np.int64 for c in columns)
    assert [i for i, _ in poison] == [0, 2]


def test_every_packaged_schema_reads_in_bulk() -> None:
    for schema_id, writer in PACKAGED.all().items():
        row = writer.record._make(plain_values(newest(writer.record).avsc).values())
        assert schema_id > 0
        assert decode_rows(block([encode(row)] * _FEW)).rows == [(i, row) for i in range(_FEW)]
