"""Landing: each message once, with its values and its position; and what must stop it. On the engine in this process."""

import json
import time
from collections import Counter
from typing import cast

import pytest

from connectors.clickhouse.client import Database
from connectors.clickhouse.landing import TABLES, Lander, ready
from connectors.log._upkeep import expire
from connectors.log.memory import MemoryLog
from schemas.codec import PACKAGED, decode, encode, snake
from schemas.errors import Fatal, Fenced, Transient, Where
from schemas.messages import Committed, Record, TopicPartition
from schemas.records import LEDGER_TYPES, DeadLetter, JobPending, Row
from streams.metrics import Metrics
from tests.land.ledger import START_MS, entries, land_all, lander, pendings, seqs, write
from tests.schemas.values import from_clickhouse

LEDGER = TopicPartition("ledger", 0)
NAMES = list(TABLES["ledger"].values())
LETTER = DeadLetter("jobs", 1, 2, START_MS, "decide", "c", "r", None, b"k", b"x", 0)


def _as_row(record: type[Row], values: tuple[object, ...]) -> Row:
    """A row as ClickHouse gives it, in the types of the record."""
    return cast(Row, record._make(map(from_clickhouse, values)))


def test_every_entry_lands_with_its_values_and_its_position(log: MemoryLog, db: Database) -> None:
    wanted = entries(140)
    write(log, wanted)
    land_all(lander(log, lambda: db, max_rows=37))
    found: dict[int, Row] = {}
    for record in LEDGER_TYPES:
        columns = ", ".join(f"`{f}`" for f in record._fields)
        for row in db.query(
            f"SELECT {columns}, _topic, _partition, _offset, _schema_id FROM {snake(record.__name__)}"
        ).rows:
            *values, topic, partition, offset, schema_id = row
            entry = _as_row(record, tuple(values))
            assert (topic, partition, offset) == ("ledger", 0, entry.seq - 1)  # type: ignore[union-attr]
            assert schema_id == PACKAGED.newest(record)
            found[entry.seq] = entry  # type: ignore[union-attr]
    assert [found[e.seq] for e in wanted] == wanted


def test_dead_letters_land_whole(log: MemoryLog, db: Database) -> None:
    letter = DeadLetter(
        "jobs", 2, 77, START_MS, "decide", "no_header", "not Avro", None, b"k\x00\xff", b"\xff\xfe text", 1
    )
    write(log, [], Record("dead-letter", b"jobs", encode(letter)))
    land_all(lander(log, lambda: db))
    found = db.query(
        "SELECT topic, `partition`, `offset`, code, hex(key), hex(value), schema_id, replays FROM dead_letter"
    ).rows
    assert found == [("jobs", 2, 77, "no_header", "6B00FF", "FFFE2074657874", None, 1)]


def test_landing_again_adds_nothing(log: MemoryLog, db: Database) -> None:
    write(log, entries(50))
    first = lander(log, lambda: db)
    land_all(first)
    first.close(1_000)
    land_all(lander(log.open_again(), lambda: db))
    assert seqs(db, NAMES) == list(range(1, 51))


def test_a_plan_is_committed_before_and_confirmed_after(log: MemoryLog, db: Database) -> None:
    write(log, pendings(10))
    seen: list[tuple[str, Committed | None]] = []
    original = db.insert_arrow

    def insert(*args: object) -> None:
        seen.append(("insert", log.committed("land", [LEDGER])[LEDGER]))
        original(*args)  # type: ignore[arg-type]

    db.insert_arrow = insert  # type: ignore[method-assign]
    land_all(lander(log, lambda: db))
    ((_, planned),) = seen
    assert planned is not None
    assert planned.offset == 0
    assert planned.metadata.startswith("v1 9 ")
    assert log.committed("land", [LEDGER])[LEDGER] == Committed(10, "")


class _Dies:
    """A database whose insert number `n` fails: before it does anything, or after it did everything."""

    def __init__(self, db: Database, n: int, *, after: bool) -> None:
        self.left = n
        self.tokens: list[str] = []
        original = db.insert_arrow

        def insert(table: str, block: bytes, token: str, query_id: str = "") -> None:
            self.tokens.append(f"{table} {token}")
            self.left -= 1
            if self.left == 0 and not after:
                raise Transient("the server went away")
            original(table, block, token, query_id)
            if self.left == 0:
                raise Transient("no answer in time")

        db.insert_arrow = insert  # type: ignore[method-assign]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", [1, 5, 14])
@pytest.mark.parametrize("restart", [False, True])
def test_an_insert_of_unknown_end_is_done_again_with_its_token(
    log: MemoryLog, db: Database, n: int, after: bool, restart: bool
) -> None:
    write(log, entries(28))
    dies, metrics = _Dies(db, n, after=after), Metrics()
    worker = lander(log, lambda: db, metrics)
    with pytest.raises(Transient):
        land_all(worker)
    write(log, entries(28, 29))  # more has come by then: the planned range stays what it was
    if restart:
        worker = lander(log.open_again(), lambda: db, metrics)
    land_all(worker)
    assert seqs(db, NAMES) == list(range(1, 57))
    assert max(Counter(dies.tokens).values()) == 2
    assert metrics.values[("lockstep_insert_retries_total", ())] == 1


def test_rows_lost_behind_their_token_are_found_by_counting(log: MemoryLog, db: Database) -> None:
    """`ALTER TABLE … DELETE` removes rows and keeps the token: the state that a crash between token and part leaves."""
    write(log, pendings(20))
    _Dies(db, 1, after=True)
    metrics = Metrics()
    worker = lander(log, lambda: db, metrics)
    with pytest.raises(Transient):
        land_all(worker)
    db.command("ALTER TABLE job_pending DELETE WHERE seq IN (3, 4, 20) SETTINGS mutations_sync = 2")
    assert len(seqs(db, NAMES)) == 17
    land_all(worker)
    assert seqs(db, NAMES) == list(range(1, 21))
    assert metrics.values[("lockstep_gaps_filled_total", ())] == 3


def test_all_rows_lost_behind_their_token(log: MemoryLog, db: Database) -> None:
    write(log, entries(42))
    _Dies(db, 9, after=True)
    with pytest.raises(Transient):
        land_all(lander(log, lambda: db))
    for table in NAMES:
        db.command(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    land_all(lander(log.open_again(), lambda: db))
    assert seqs(db, NAMES) == list(range(1, 43))


def test_rows_too_many_stop_landing(log: MemoryLog, db: Database) -> None:
    write(log, pendings(5))
    _Dies(db, 1, after=True)
    worker = lander(log, lambda: db)
    with pytest.raises(Transient):
        land_all(worker)
    db.command("INSERT INTO job_pending SELECT * FROM job_pending WHERE seq = 2")
    with pytest.raises(Fatal, match=r"job_pending .* holds 6 rows of 5 messages"):
        land_all(worker)


def test_bad_messages_are_set_aside_and_their_neighbours_land(log: MemoryLog, db: Database) -> None:
    good = pendings(30)
    body = encode(good[0])
    records = [Record("ledger", b"default", encode(e)) for e in good]
    bad = {
        5: b"", 8: b"\x00", 11: None, 14: b"\x01" + body[1:], 17: b"\x00\x7f\xff\xff\xff" + body[5:], 20: body[:-3],
        23: b"plain text instead of Avro", 26: body + b"\x00", 28: body[:5] + b"\xff" * 40,
    }  # fmt: skip
    for place in sorted(bad):
        records.insert(place, Record("ledger", b"default", bad[place]))
    write(log, [], *records)
    metrics = Metrics()
    land_all(lander(log, lambda: db, metrics))
    assert seqs(db, NAMES) == [e.seq for e in good]  # type: ignore[union-attr]
    letters = db.query(
        "SELECT topic, `partition`, `offset`, stage, code, value, reason FROM dead_letter ORDER BY `offset`"
    ).rows
    assert [(r[0], r[1], r[2], r[3]) for r in letters] == [("ledger", 0, place, "land") for place in sorted(bad)]
    assert all(r[6] for r in letters)
    hexes = db.query("SELECT hex(value) FROM dead_letter ORDER BY `offset`").rows
    assert [r[0] for r in hexes] == [None if v is None else v.hex().upper() for _, v in sorted(bad.items())]
    total = sum(v for (name, _), v in metrics.values.items() if name == "lockstep_dead_letters_total")
    assert total == len(bad)


def test_a_row_of_another_topic_is_a_dead_letter(log: MemoryLog, db: Database) -> None:
    letter = DeadLetter("jobs", 0, 1, START_MS, "decide", "x", "y", None, None, None, 0)
    write(log, pendings(2), Record("ledger", b"default", encode(letter)))
    land_all(lander(log, lambda: db))
    assert db.query("SELECT code FROM dead_letter").rows == [("wrong_topic",)]
    assert seqs(db, NAMES) == [1, 2]


def test_a_lost_position_lands_only_what_is_missing(log: MemoryLog, db: Database) -> None:
    """A group that was away for long loses its position in Kafka; the rows it landed are still there."""
    write(log, entries(60))
    land_all(lander(log, lambda: db))
    other = MemoryLog()
    from schemas.topics import TOPICS

    other.provision(TOPICS, dry_run=False)
    write(other, entries(80))  # the same log, whose group remembers nothing
    land_all(lander(other, lambda: db, max_rows=25))
    assert seqs(db, NAMES) == list(range(1, 81))


class _Killed(BaseException):
    """Not an error: nothing catches it, as nothing catches kill -9."""


def _die(*_: object) -> None:
    raise _Killed


def test_whoever_dies_while_a_lost_position_is_landed_anew_doubles_nothing(
    log: MemoryLog, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between plan and confirmation of the first batch, and again after the second was confirmed."""
    write(log, entries(60))
    land_all(lander(log, lambda: db))
    from schemas.topics import TOPICS

    other = MemoryLog()
    other.provision(TOPICS, dry_run=False)
    write(other, entries(80))
    worker = lander(other, lambda: db, max_rows=25)
    with monkeypatch.context() as m:
        m.setattr(Lander, "_confirm", _die)
        with pytest.raises(_Killed):
            land_all(worker)
    again = lander(other.open_again(), lambda: db, max_rows=25)
    while (committed := other.committed("land", [LEDGER])[LEDGER]) is None or committed.offset < 25:
        again.step(START_MS, 0)
    assert committed.offset < 60
    land_all(lander(other.open_again(), lambda: db, max_rows=25))
    assert seqs(db, NAMES) == list(range(1, 81))
    done = other.committed("land", [LEDGER])[LEDGER]
    assert done is not None
    assert done.metadata == ""


def test_retention_under_a_plan_doubles_nothing(log: MemoryLog, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = TopicPartition("dead-letter", 0)
    for _ in range(2):
        split_ms = time.time_ns() // 1_000_000
        write(log, [], *[Record("dead-letter", b"jobs", encode(LETTER), 0) for _ in range(5)])
        time.sleep(0.02)
    worker = lander(log, lambda: db)
    with monkeypatch.context() as m:
        m.setattr(Lander, "_confirm", _die)
        with pytest.raises(_Killed):
            land_all(worker)
    expire(log._store, "dead-letter", 0, split_ms)
    assert log.span("dead-letter")[0].begin == 5
    land_all(lander(log.open_again(), lambda: db))
    assert db.query("SELECT count(), uniqExact(_offset) FROM dead_letter").rows == [(10, 10)]
    after = log.committed("land", [letters])[letters]
    assert after is not None
    assert after.offset == 10


def test_another_log_is_not_mixed_in(log: MemoryLog, db: Database) -> None:
    write(log, pendings(60))
    land_all(lander(log, lambda: db))
    from schemas.topics import TOPICS

    other = MemoryLog()
    other.provision(TOPICS, dry_run=False)
    write(other, [cast(JobPending, e)._replace(at=START_MS - 1) for e in pendings(80)])
    with pytest.raises(Fatal, match="holds rows of another log"):
        land_all(lander(other, lambda: db))
    assert len(seqs(db, NAMES)) == 60


def test_a_log_cut_short_under_a_plan_is_refused(log: MemoryLog, db: Database) -> None:
    write(log, pendings(3))
    member = log.member("land", ["ledger"], _Silent(), owner="land.0")
    member.poll(10, 100)
    member.commit({LEDGER: Committed(1, "v1 9 abcdefabcdef")})
    member.close(1_000)
    with pytest.raises(Fatal, match="ends at 3, but its landing was planned up to 9"):
        land_all(lander(log, lambda: db))


def test_a_plan_of_another_version_is_refused(log: MemoryLog, db: Database) -> None:
    write(log, pendings(3))
    member = log.member("land", ["ledger"], _Silent(), owner="land.0")
    member.poll(10, 100)
    member.commit({LEDGER: Committed(1, "v9 whatever")})
    member.close(1_000)
    with pytest.raises(Fatal, match="of another version"):
        land_all(lander(log, lambda: db))


class _Silent:
    def assigned(self, committed: object) -> dict[TopicPartition, int]:
        return {}

    def revoked(self, partitions: object, *, lost: bool) -> None: ...


def test_an_older_lander_is_fenced(log: MemoryLog, db: Database) -> None:
    write(log, pendings(5))
    older = lander(log, lambda: db)
    land_all(older)
    newer = lander(log.open_again(), lambda: db)
    land_all(newer)
    write(log, pendings(5, 6))
    with pytest.raises(Fenced):
        land_all(older)
    land_all(newer)
    assert seqs(db, NAMES) == list(range(1, 11))


def test_rows_are_gathered_until_they_waited_long_enough(log: MemoryLog, db: Database) -> None:
    worker = Lander(log, lambda: db, "test", Metrics(), linger_ms=1_000, max_rows=100)
    write(log, pendings(3))
    worker.step(START_MS, 100)
    write(log, pendings(3, 4))
    worker.step(START_MS + 999, 100)
    assert seqs(db, NAMES) == []
    worker.step(START_MS + 1_000, 0)
    assert seqs(db, NAMES) == list(range(1, 7))
    write(log, pendings(100, 7))
    worker.step(START_MS + 1_001, 100)  # enough for a batch: not gathered any longer
    assert len(seqs(db, NAMES)) == 106
    write(log, pendings(1, 107))
    worker.step(START_MS + 1_002, 100)
    worker.close(5_000)  # leaving, it lands what it holds
    assert len(seqs(db, NAMES)) == 107


def test_tables_that_are_missing_are_waited_for(log: MemoryLog, db: Database) -> None:
    db.command("ALTER TABLE job_ended DROP COLUMN exit_code")
    with pytest.raises(Transient, match=r"lacks exit_code in table job_ended; run `lockstep migrate`"):
        lander(log, lambda: db).step(START_MS, 0)
    db.command("DROP TABLE job_ended SYNC")
    with pytest.raises(Transient, match="has no table job_ended; run `lockstep migrate`"):
        lander(log, lambda: db).step(START_MS, 0)


def test_settings_that_exactly_once_needs_are_read_back(db: Database) -> None:
    ready(db)
    db._client.command("SET insert_deduplicate = 0")
    with pytest.raises(Fatal, match="insert_deduplicate must be 1 and is 0"):
        ready(db)
    db._client.command("SET insert_deduplicate = 1")
    db.command("ALTER TABLE job_placed MODIFY SETTING non_replicated_deduplication_window = 0")
    db.command("ALTER TABLE job_placed RESET SETTING non_replicated_deduplication_window")
    with pytest.raises(Fatal, match=r"table job_placed .* forgets insert tokens"):
        ready(db)


def test_tables_are_as_the_newest_schemas(db: Database) -> None:
    for record in (*LEDGER_TYPES, DeadLetter):
        fields = json.loads(PACKAGED.writer(PACKAGED.newest(record)).avsc)["fields"]
        found = db.query(
            "SELECT name, comment FROM system.columns WHERE database = 'lockstep' AND table = {t:String} ORDER BY position",
            {"t": snake(record.__name__)},
        ).rows
        assert [r[0] for r in found] == [f["name"] for f in fields] + ["_topic", "_partition", "_offset", "_schema_id"]
        assert [r[1] for r in found][: len(fields)] == [f["doc"] for f in fields]


def test_bytes_shifted_by_their_neighbour_are_noticed(log: MemoryLog, db: Database) -> None:
    """One byte short: the reader takes the next field's first byte, and everything after would be read from the wrong place."""
    good = encode(pendings(1)[0])
    write(log, [], Record("ledger", b"default", good[:-1]), Record("ledger", b"default", good))
    land_all(lander(log, lambda: db))
    assert seqs(db, NAMES) == [1]
    assert db.query("SELECT `offset` FROM dead_letter").rows == [(0,)]
    row = db.query("SELECT _offset, job FROM job_pending").rows
    assert row == [(1, decode(good, Where("ledger", 0, 1)).job)]  # type: ignore[union-attr]
