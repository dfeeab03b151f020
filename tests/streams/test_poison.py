"""Bad day 4: poison of every kind between good records of one block, through observe and decide, on every home."""

import random
from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from connectors.snapshots import FolderSnapshots
from schemas.codec import encode
from schemas.dead_letters import MAX_REPLAYS, REPLAYS_HEADER, dead_letter, replay
from schemas.errors import Poison, Refused
from schemas.log import Log
from schemas.messages import Block, Record
from schemas.records import DeadLetter, JobAccepted, JobPlaced, JobRefused, NodeChanged, Row
from schemas.topics import TOPICS
from streams.decide import Decide
from streams.observe import Observe
from streams.runner import ProcessorWorker
from tests.streams.conftest import Home
from tests.streams.facts import NOW, changed, drive, ends, job, read, receipt, registered, sample, write

PARTITION = 2
NOISE = random.Random(4).randbytes(2_000_000)


def poison_for(good: Row, impossible: Row) -> dict[str, tuple[bytes | None, str]]:
    """Kind of poison → bytes, and the code its dead letter must have."""
    body = encode(good)
    return {
        "empty": (b"", "too_short"),
        "one byte": (b"\x00", "too_short"),
        "unknown schema id": (b"\x00\x00\x0f\x42\x3f" + body[5:], "unknown_schema"),
        "truncated body": (body[:-3], "bad_body"),
        "bytes left over": (body + b"\x00\x00", "bad_body"),
        "wrong magic": (b"\x01" + body[1:], "wrong_magic"),
        "tombstone": (None, "tombstone"),
        "impossible values": (encode(impossible), "impossible_value"),
        "text": (b'{"node": "n1", "cards": 8}', "wrong_magic"),
        "2 MB of noise": (NOISE, "wrong_magic"),
        "2 MB of noise behind a good header": (body[:5] + NOISE, "bad_body"),
    }


def mix(topic: str, good: list[Row], poison: dict[str, tuple[bytes | None, str]]) -> list[Record]:
    """Good records with each poison between two of them, all on one partition."""
    out: list[Record] = []
    bad = list(poison.items())
    for i, row in enumerate(good):
        out.append(Record(topic, str(row[0]).encode(), encode(row), PARTITION))
        if i < len(bad):
            out.append(Record(topic, bad[i][0].encode(), bad[i][1][0], PARTITION))
    assert len(out) == len(good) + len(bad)
    return out


def letters(log: Log) -> list[DeadLetter]:
    return [r for r in read(log, "dead-letter") if isinstance(r, DeadLetter)]


def check_letters(
    log: Log, topic: str, sent: list[Record], poison: dict[str, tuple[bytes | None, str]], stage: str
) -> None:
    found = letters(log)
    assert {(r.key or b"").decode(): (r.value, r.code) for r in found} == poison
    assert len(found) == len(poison)
    for r in found:
        assert (r.topic, r.partition, r.stage, r.replays) == (topic, PARTITION, stage, 0)
        assert r.reason
        # The position is that of the message: what stands there is what was sent.
        assert sent[r.offset].key == r.key, f"{r.key!r} is said to be at {r.offset}"


@pytest.mark.parametrize("topic", ["resources", "resource-telemetry"])
def test_through_observe(home: Home, topic: str) -> None:
    log = home.open()
    worker = ProcessorWorker(log, Observe)
    nodes = [f"n{i}" for i in range(60)]
    base = [Record("resources", n.encode(), encode(registered(n)), PARTITION) for n in nodes]
    if topic == "resource-telemetry":
        write(log, base)
        drive(worker, wait_ms=home.wait_ms)
        good: list[Row] = [sample(n, 1, healthy=7) for n in nodes]
        poison = poison_for(good[0], sample(utilization=-4.0))
    else:
        good = [registered(n, cards=7) for n in nodes]
        poison = poison_for(good[0], registered("n1", cards=-4))
    mark = ends(log, "changes")
    sent = mix(topic, good, poison)
    write(log, sent)
    drive(worker, wait_ms=home.wait_ms)
    told = [r for r in read(log, "changes", mark) if isinstance(r, NodeChanged)]
    assert sorted((r.node, r.cards_healthy) for r in told) == sorted((n, 7) for n in nodes)
    check_letters(log, topic, sent, poison, "observe")


def test_through_decide(home: Home, tmp_path: Path) -> None:
    log = home.open()
    good: list[Row] = [job(f"j{i}") for i in range(60)]
    poison = poison_for(good[0], good[0])
    # An impossible submission is refused in the ledger; an impossible receipt is poison, and so is a change.
    del poison["impossible values"]
    sent = mix("jobs", good, poison)
    write(log, sent)
    worker = ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(tmp_path), version="test"))
    drive(worker, wait_ms=home.wait_ms)
    assert sorted(e.job for e in read(log, "ledger") if isinstance(e, JobAccepted)) == sorted(
        f"j{i}" for i in range(60)
    )
    check_letters(log, "jobs", sent, poison, "decide")


@pytest.mark.parametrize(
    "row", [receipt("j1", "n1", "exploded"), receipt("j1", "n1", "started", attempt=0), changed(cards=-1)]
)
def test_impossible_values_in_decide(home: Home, tmp_path: Path, row: Row) -> None:
    log = home.open()
    write(log, [row, job("j1")])
    worker = ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(tmp_path), version="test"))
    drive(worker, wait_ms=home.wait_ms)
    (letter,) = letters(log)
    assert (letter.code, letter.value) == ("impossible_value", encode(row))
    assert [e.job for e in read(log, "ledger") if isinstance(e, JobAccepted)] == ["j1"]


def test_a_dead_letter_is_replayed_and_a_loop_ends(home: Home) -> None:
    """The same bad message, replayed each time its dead letter comes: after three times replay refuses."""
    log = home.open()
    worker = ProcessorWorker(log, Observe)
    write(log, [Record("resources", b"n1", b"never good", PARTITION)])
    for round_ in range(MAX_REPLAYS):
        drive(worker, wait_ms=home.wait_ms)
        newest = letters(log)[-1]
        assert newest.replays == round_
        again = replay(newest)
        assert (again.topic, again.partition, again.key, again.value) == ("resources", PARTITION, b"n1", b"never good")
        assert again.headers == ((REPLAYS_HEADER, str(round_ + 1).encode()),)
        write(log, [again])
    drive(worker, wait_ms=home.wait_ms)
    newest = letters(log)[-1]
    assert newest.replays == MAX_REPLAYS
    with pytest.raises(Refused, match="replayed 3 times"):
        replay(newest)


def test_a_replay_after_the_fix_is_accepted(home: Home) -> None:
    """A sample that contradicted its node's registration passes once the registration is right."""
    log = home.open()
    worker = ProcessorWorker(log, Observe)
    write(log, [registered("n1", cards=4)])
    drive(worker, wait_ms=home.wait_ms)
    write(log, [sample("n1", 1, healthy=8)])
    drive(worker, wait_ms=home.wait_ms)
    (letter,) = letters(log)
    write(log, [registered("n1", cards=8, at=NOW + 1)])
    drive(worker, wait_ms=home.wait_ms)
    write(log, [replay(letter)])
    drive(worker, wait_ms=home.wait_ms)
    assert len(letters(log)) == 1
    newest = [r for r in read(log, "changes") if isinstance(r, NodeChanged)][-1]
    assert (newest.cards, newest.cards_healthy) == (8, 8)


def test_a_time_before_1970_is_poison(tmp_path: Path) -> None:
    """Its wait would be longer than a ledger entry can say."""
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    worker = ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(tmp_path), version="test"))
    write(log, [changed("n1"), job("bad")._replace(at=-(2**63)), job("good")])
    drive(worker)
    assert [e.job for e in read(log, "ledger") if isinstance(e, JobPlaced)] == ["good"]
    (letter,) = [r for r in read(log, "dead-letter") if isinstance(r, DeadLetter)]
    assert letter.code == "before_1970"


def test_a_refusal_that_would_quote_megabytes_is_written(tmp_path: Path) -> None:
    """Four times as long when quoted, it was too large for the ledger, and its submission ended every engine that read it."""
    log = MemoryLog()
    log.provision(TOPICS, dry_run=False)
    worker = ProcessorWorker(log, lambda: Decide("default", FolderSnapshots(tmp_path), version="test"))
    write(log, [job("bad")._replace(adjacency="\0" * 4_000_000), job("good")])
    drive(worker)
    (refused,) = [e for e in read(log, "ledger") if isinstance(e, JobRefused)]
    assert (refused.job, refused.code) == ("bad", "bad_adjacency")
    assert [e.job for e in read(log, "ledger") if isinstance(e, JobAccepted)] == ["good"]


def test_a_reason_that_quotes_megabytes_is_cut() -> None:
    block = Block("jobs", 0, [b"x"], 1, offsets=[0], keys=[None])
    letter = dead_letter(block, 0, Poison("odd", "no " + "\x00" * 4_000_000), "decide", 1)
    assert letter.value is not None
    assert len(letter.value) < 10_000
