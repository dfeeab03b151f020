"""Dead letters and their way back: after a fix, with dry-run, with a guard against loops. On a real embedded log."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.log.embedded import EmbeddedLog
from connectors.snapshots import FolderSnapshots
from infra.questions import Questions
from infra.settings import load
from infra.wire import now_ms
from infra.wiring import SharedDatabase
from schemas.codec import PACKAGED, Writer, encode, use
from schemas.errors import NotFound, Refused
from schemas.messages import Record
from schemas.records import JobSubmitted, Row
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
