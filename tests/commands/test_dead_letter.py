"""Dead letters and their way back: after a fix, with dry-run, with a guard against loops. On a real embedded log."""

import struct
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.log._local import Bell, LocalReader
from connectors.log._store import Store
from connectors.log.embedded import EmbeddedLog
from connectors.snapshots import FolderSnapshots
from infra.questions import Questions
from infra.settings import load
from infra.wire import now_ms
from infra.wiring import SharedDatabase
from schemas.codec import PACKAGED, Writer, encode, use
from schemas.errors import NotFound, Refused
from schemas.messages import Block, Record, TopicPartition
from schemas.records import DeadLetter, JobSubmitted, Row
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.runner import ProcessorWorker

UNKNOWN = 77_777


class _Newer:
    """Ids of a version that knows one schema more: the fix."""

    def writer(self, schema_id: int) -> Writer:
        return PACKAGED.writer(PACKAGED.newest(JobSubmitted) if schema_id == UNKNOWN else schema_id)

    def newest(self, record: type[Row]) -> int:
        return PACKAGED.newest(record)


class House:
    """A log, an engine and answers."""

    def __init__(self, folder: Path) -> None:
        self.settings = load({"data_dir": folder}).settings
        self.log = EmbeddedLog(folder)
        self.log.provision(TOPICS, dry_run=False)
        self.ask = Questions(self.settings, self.log, SharedDatabase(self.settings), running=False)
        snapshots = FolderSnapshots(folder / "snapshots")
        self.engine = ProcessorWorker(self.log, lambda: Decide("default", snapshots, version="test"))

    def send(self, *values: bytes) -> None:
        appender = self.log.appender("test")
        for value in values:
            appender.send(Record("jobs", b"key", value))
        appender.flush(10_000)
        appender.close(10_000)

    def turn(self) -> None:
        while self.engine.step(now_ms(), 50):
            pass


def job(name: str, schema_id: int | None = None) -> bytes:
    row = JobSubmitted(name, 5, "default", "ada", "q", 0, 1, 1000, (), 0, 0, 0, "", 0, 0, (), (), ())
    body = encode(row)
    return body if schema_id is None else struct.pack(">bI", 0, schema_id) + body[5:]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "data")
    yield made
    use(PACKAGED)
    made.engine.close(1_000)
    made.log.close()


def test_a_message_of_a_newer_version_comes_back_after_the_fix(house: House) -> None:
    house.send(job("before"), job("newer", UNKNOWN), b"text instead of Avro", job("after"))
    house.turn()
    assert {j["job"] for j in house.ask.jobs()["jobs"]} == {"before", "after"}  # type: ignore[attr-defined]
    listed = house.ask.dead_letters()
    codes = {d["code"]: d for d in listed["letters"]}  # type: ignore[attr-defined]
    assert set(codes) == {"unknown_schema", "wrong_magic"}
    letter = codes["unknown_schema"]
    assert (letter["topic"], letter["offset"], letter["stage"], letter["replays"]) == ("jobs", 1, "decide", 0)
    whole = house.ask.dead_letter(letter["id"])
    assert bytes.fromhex(str(whole["value_hex"])) == job("newer", UNKNOWN)
    assert whole["readable_now"] is False
    # A dry run sends nothing.
    (told,) = house.ask.dead_letter_replay(ids=[letter["id"]], dry_run=True)
    assert told["action"] == "would be replayed"
    house.turn()
    assert house.ask.dead_letters()["total"] == 2
    # The fix, and then the replay.
    use(_Newer())
    (told,) = house.ask.dead_letter_replay(code="unknown_schema")
    assert (told["action"], told["readable_now"]) == ("replayed", True)
    house.turn()
    assert {j["job"] for j in house.ask.jobs()["jobs"]} == {"before", "after", "newer"}  # type: ignore[attr-defined]
    assert house.ask.dead_letters()["total"] == 2


def test_what_is_refused_again_and_again_is_left_alone(house: House) -> None:
    house.send(job("newer", UNKNOWN))
    house.turn()
    for replays in range(3):
        letters = house.ask.dead_letters()["letters"]
        assert letters[0]["replays"] == replays  # type: ignore[index]
        told = house.ask.dead_letter_replay(topic="jobs")
        assert [t["action"] for t in told] == ["replayed"], "only the newest letter of a message stands for it"
        house.turn()
    (told,) = house.ask.dead_letter_replay(topic="jobs")
    assert told["action"] == "left alone"
    assert "was replayed 3 times and refused each time" in str(told["why"])
    assert house.ask.dead_letters()["total"] == 4
    (told,) = house.ask.dead_letter_replay(topic="jobs", limit=5)  # a person may insist
    assert told["action"] == "replayed"


def test_wrong_asking(house: House) -> None:
    with pytest.raises(NotFound, match="no dead letter 5"):
        house.ask.dead_letter(5)
    with pytest.raises(NotFound, match="no dead letter 5"):
        house.ask.dead_letter_replay(ids=[5])
    with pytest.raises(Refused, match="say which"):
        house.ask.dead_letter_replay()
    with pytest.raises(NotFound, match="no job 'x'"):
        house.ask.why("x")


def test_a_cancelled_and_an_unknown_job(house: House) -> None:
    house.send(job("one"), job("two"))
    house.turn()
    assert house.ask.cancel("one", "ada")["sent"] is True
    house.turn()
    states = {str(j["job"]): j["state"] for j in house.ask.jobs()["jobs"]}  # type: ignore[attr-defined]
    assert states == {"one": "cancelled", "two": "pending"}
    with pytest.raises(Refused, match="is over already: cancelled"):
        house.ask.cancel("one", "ada")
    with pytest.raises(NotFound, match="did you mean two"):
        house.ask.cancel("twoo", "ada")
    with pytest.raises(Refused, match="there is a job 'two' already"):
        house.ask.submit({"job": "two"})
    assert house.ask.jobs(state="open")["total"] == 1


def refused(log: EmbeddedLog, *letters: DeadLetter) -> None:
    """Put dead letters there, each in a transaction of its own."""
    appender = log.appender("test")
    for letter in letters:
        appender.send(Record("dead-letter", letter.topic.encode(), encode(letter)))
        appender.flush(10_000)
    appender.close(10_000)


def letter(n: int, value: bytes, code: str = "bad_body", replays: int = 0) -> DeadLetter:
    return DeadLetter("jobs", 0, n, now_ms(), "decide", code, "why", None, b"key", value, replays)


@contextmanager
def no_more_than(peak: int) -> Iterator[None]:
    """That Python never held more than so many bytes beyond what it held before."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()


def test_large_dead_letters_are_not_all_in_memory(house: House) -> None:
    """100 MB of them: to list, show and replay them takes what a few of them take."""
    large, many = 1_000_000, 100
    for n in range(many):
        refused(house.log, letter(n, n.to_bytes(2, "big") * (large // 2)))
    with no_more_than(30 * large):
        listed = house.ask.dead_letters(limit=3)
    assert listed["total"] == many
    assert [d["id"] for d in listed["letters"]] == [99, 98, 97]  # type: ignore[attr-defined]
    with no_more_than(20 * large):
        assert str(house.ask.dead_letter(7)["value_hex"]).startswith("00070007")
    with no_more_than(60 * large):
        told = house.ask.dead_letter_replay(code="bad_body")
    assert [t["id"] for t in told] == list(range(many))
    came = [v for block in house.log.reader({TopicPartition("jobs", 0): 0}).poll(1_000, 0) for v in block.values]
    assert [v[:2] for v in came if v is not None] == [n.to_bytes(2, "big") for n in range(len(came))]
    assert house.log.span("jobs")[0].end == many


def test_one_letter_is_read_from_its_place(house: House) -> None:
    """Not from the beginning: what stands before it is of no interest, and may be much."""
    refused(house.log, *(letter(n, b"body %d" % n) for n in range(200)))
    read: list[tuple[int, int]] = []

    class Counting(LocalReader):
        def __init__(self, store: Store, bell: Bell, positions: Mapping[TopicPartition, int]) -> None:
            super().__init__(store, bell, positions)
            (self.begin,) = positions.values()

        def poll(self, max_records: int, timeout_ms: int) -> list[Block]:
            blocks = super().poll(max_records, timeout_ms)
            read.append((self.begin, sum(len(b) for b in blocks)))
            return blocks

    house.log.reader = lambda positions: Counting(house.log._store, house.log._bell, positions)  # type: ignore[method-assign]
    assert house.ask.dead_letter(150)["value_text"] == "body 150"
    assert read == [(150, 1)]
    read.clear()
    told = house.ask.dead_letter_replay(ids=[10, 12, 199], dry_run=True)
    assert [t["id"] for t in told] == [10, 12, 199]
    assert sum(n for _, n in read) < 20


def test_limit_keeps_the_newest_that_fit(house: House) -> None:
    refused(house.log, *(letter(n, b"%d" % n, code="odd" if n % 2 else "even") for n in range(20)))
    listed = house.ask.dead_letters(code="even", limit=2)
    assert listed["total"] == 10
    assert [d["id"] for d in listed["letters"]] == [18, 16]  # type: ignore[attr-defined]
    assert len(house.ask.dead_letters(topic="jobs")["letters"]) == 20  # type: ignore[arg-type]
    assert house.ask.dead_letters(topic="links") == {"total": 0, "letters": []}


def test_ids_are_all_there_or_none_is_sent(house: House) -> None:
    refused(house.log, letter(0, b"a"), letter(1, b"b"))
    with pytest.raises(NotFound, match="no dead letter 2"):
        house.ask.dead_letter_replay(ids=[0, 2])
    assert house.log.span("jobs")[0].end == 0
    told = house.ask.dead_letter_replay(ids=[1, 0])
    assert [t["id"] for t in told] == [1, 0], "in the order that was asked for"
    assert house.log.span("jobs")[0].end == 2


def test_the_newest_letter_stands_for_a_message_of_any_code(house: House) -> None:
    """It came back once more and was refused for another reason: the older letter is not sent again with its code."""
    refused(house.log, letter(0, b"same"), letter(1, b"other"), letter(2, b"same", code="impossible_value", replays=1))
    assert [t["id"] for t in house.ask.dead_letter_replay(code="bad_body", dry_run=True)] == [1]
    assert [t["id"] for t in house.ask.dead_letter_replay(topic="jobs", dry_run=True)] == [1, 2]


def test_no_key_and_an_empty_key_are_two_messages(house: House) -> None:
    first, again = letter(0, b"same")._replace(key=None), letter(1, b"same", replays=1)._replace(key=b"")
    refused(house.log, first, again)
    assert [t["id"] for t in house.ask.dead_letter_replay(code="bad_body", dry_run=True)] == [0, 1]
