"""The two local homes: the whole contract, and what only they promise."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.log import _local as local_module
from connectors.log import _upkeep
from connectors.log._local import LocalLog
from connectors.log._pack import Stored
from connectors.log.embedded import EmbeddedLog
from connectors.log.memory import MemoryLog
from schemas.errors import Fatal, Refused, StorageFull
from schemas.messages import Block, Committed, Record, TopicPartition
from tests.log.contract import LogContract
from tests.log.home import Ears, Home, drain, everything, numbered, settle, values, write

HOUR_MS = 3_600_000


def _memory() -> Home:
    log = MemoryLog()
    return Home(
        "memory", log.open_again, settle_ms=10_000, quiet_ms=30, impatient=lambda: MemoryLog(log, session_ms=600)
    )


def _embedded(folder: Path) -> Home:
    return Home(
        "embedded",
        lambda: EmbeddedLog(folder, upkeep_every_ms=0),
        settle_ms=10_000,
        quiet_ms=30,
        impatient=lambda: EmbeddedLog(folder, session_ms=600, upkeep_every_ms=0),
    )


@pytest.fixture(params=["memory", "embedded"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    made = _memory() if request.param == "memory" else _embedded(tmp_path / "log")
    yield made
    made.close()


class TestLocal(LogContract):
    """Every sentence of the protocol."""


def _times(blocks: Sequence[Block]) -> list[int]:
    assert all(isinstance(b, Stored) for b in blocks)
    return [t for b in blocks if isinstance(b, Stored) for t in b.timestamps_ms]


def _local(home: Home) -> LocalLog:
    log = home.open()
    assert isinstance(log, LocalLog)
    return log


def test_without_a_key_partitions_take_turns(home: Home) -> None:
    topic = home.topic(4)
    log = home.open()
    write(log, [Record(topic, None, b"%d" % i) for i in range(40)])
    assert {p: s.end for p, s in log.span(topic).items()} == dict.fromkeys(range(4), 10)


def test_growing_a_keyed_topic_is_refused(home: Home) -> None:
    spec = home.spec(2)
    log = home.open()
    log.provision([spec], dry_run=False)
    (step,) = log.provision([replace(spec, partitions=4)], dry_run=False)
    assert step.action == "refuse"
    assert "keys would move" in step.detail
    assert log.partitions(spec.name) == 2


def test_too_large_and_out_of_range_are_said_at_send(home: Home) -> None:
    topic = home.topic(2, max_message_bytes=10)
    appender = home.open().appender("a")
    with pytest.raises(Refused, match=f"11 bytes is too large for topic {topic} .at most 10"):
        appender.send(Record(topic, b"k", bytes(10)))
    with pytest.raises(Fatal, match="no partition 2"):
        appender.send(Record(topic, b"k", b"v", 2))
    appender.send(Record(topic, b"k", bytes(9), 0))
    appender.close(1_000)
    with pytest.raises(Fatal, match="closed"):
        appender.send(Record(topic, b"k", b"v", 0))
    assert everything(home, topic, 1) == [bytes(9)]


def test_retention_drops_from_the_beginning(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _local(home)
    spec, for_ever = home.spec(1, retention_ms=HOUR_MS), home.spec(1)
    log.provision([spec, for_ever], dry_run=False)
    clock = itertools.count(1_000_000, 1_000)
    monkeypatch.setattr("connectors.log._store.now_ms", lambda: next(clock))
    tp = TopicPartition(spec.name, 0)
    for i in range(5):  # written at 1,000,000, 1,002,000, … ms (every other one goes to the topic that keeps all)
        write(log, numbered(spec.name, 2, start=2 * i))
        write(log, numbered(for_ever.name, 2, start=2 * i))
    member = log.member(home.group(), [spec.name], Ears())
    settle(home, [member], lambda: member.assignment() == {tp})
    member.seek(tp, 0)
    # Written at 1,000,000 and 1,002,000: an hour later those two batches are over, the third not yet.
    assert log.clean(1_004_000 + HOUR_MS) == 4
    assert (log.span(spec.name)[0].begin, log.span(spec.name)[0].end) == (4, 10)
    assert log.span(for_ever.name)[0].begin == 0
    assert everything(home, spec.name, 6) == [b"%d" % i for i in range(4, 10)]
    assert member.lag() == {tp: 6}  # what is gone is not waited for
    assert log.clean(1_004_000 + HOUR_MS) == 0
    assert log.clean(9_000_000 + HOUR_MS) == 6
    assert (log.span(spec.name)[0].begin, log.span(spec.name)[0].end) == (10, 10)
    write(log, numbered(spec.name, 1, start=10))
    assert everything(home, spec.name, 1) == [b"10"]


def test_compaction_keeps_the_newest_of_each_key_where_it_was(home: Home) -> None:
    log = _local(home)
    spec = home.spec(1, cleanup="compact")
    log.provision([spec], dry_run=False)
    topic, tp = spec.name, TopicPartition(spec.name, 0)
    # offset:        0     1     2     3     4     5     6     7
    script = [b"a1", b"b1", b"a2", b"c1", b"b2", None, b"d1", b"a3"]
    keys = [b"a", b"b", b"a", b"c", b"b", b"c", b"d", b"a"]
    for key, value in zip(keys, script, strict=True):
        headers = (("h", value),) if value == b"b2" else ()
        write(log, [Record(topic, key, value, 0, headers)])
    write(log, [Record(topic, None, b"keyless", 0)])
    assert log.clean() == 4
    (block,) = drain(log.reader({tp: 0}), home, 5)
    assert list(zip(block.offsets, block.keys, block.values, strict=True)) == [
        (4, b"b", b"b2"),
        (5, b"c", None),
        (6, b"d", b"d1"),
        (7, b"a", b"a3"),
        (8, None, b"keyless"),
    ]
    assert block.headers == {0: (("h", b"b2"),)}
    assert values(drain(log.reader({tp: 6}), home, 3)) == [b"d1", b"a3", b"keyless"]
    # A few at a time: the positions between are right although offsets have gaps.
    assert values(drain(log.reader({tp: 0}), home, 5, max_records=2)) == [b"b2", None, b"d1", b"a3", b"keyless"]
    assert log.span(topic)[0].end == 9
    # A day later readers have had their time to see the tombstone.
    write(log, [Record(topic, b"e", b"e1", 0)])
    assert log.clean(2**50) == 1
    assert everything(home, topic, 5) == [b"b2", b"d1", b"a3", b"keyless", b"e1"]


def test_small_batches_are_joined_and_read_the_same(home: Home) -> None:
    log = _local(home)
    topic = home.topic(1)
    tp = TopicPartition(topic, 0)
    for i in range(40):
        write(log, [Record(topic, b"k%d" % i, b"%d" % i, 0, (("i", b"%d" % i),) if i % 3 else ())])
    before = drain(log.reader({tp: 0}), home, 40)
    assert log.clean() == 0
    after = drain(log.reader({tp: 0}), home, 40)
    assert (len(before), len(after)) == (40, 1)
    assert values(after) == values(before)
    assert list(after[0].offsets) == list(range(40))
    assert after[0].keys == [b"k%d" % i for i in range(40)]
    assert after[0].headers == {i: (("i", b"%d" % i),) for i in range(40) if i % 3}
    assert _times(after) == _times(before)


def test_members_of_one_group_may_read_different_topics(home: Home) -> None:
    x, y, group = home.topic(2), home.topic(2), home.group()
    a = home.open().member(group, [x], Ears())
    b = home.open().member(group, [y], Ears())
    settle(home, [a, b], lambda: len(a.assignment()) == 2 and len(b.assignment()) == 2)
    assert {tp.topic for tp in a.assignment()} == {x}
    assert {tp.topic for tp in b.assignment()} == {y}
    a.close(1_000)
    b.close(1_000)


def test_partitions_are_offered_again_when_restoring_failed(home: Home) -> None:
    topic = home.topic(2)
    ears = Ears()
    failures = iter([ConnectionError("no state yet")])

    def fail_once() -> None:
        for failure in failures:
            raise failure

    ears.on_assigned = fail_once
    member = home.open().member(home.group(), [topic], ears)
    with pytest.raises(ConnectionError):
        member.poll(1, 0)
    assert member.assignment() == frozenset()
    settle(home, [member], lambda: len(member.assignment()) == 2)
    assert [kind for kind, _ in ears.told] == ["assigned", "assigned"]
    member.close(1_000)


def test_a_member_put_out_while_silent_comes_back_with_nothing_lost(home: Home) -> None:
    topic, group = home.topic(2), home.group()
    write(home.open(), numbered(topic, 4, partition=0) + numbered(topic, 4, partition=1))
    log, other = home.open_impatient(), home.open_impatient()
    assert log is not None
    assert other is not None
    ears = Ears()
    silent = log.member(group, [topic], ears, owner=f"silent-{group}")
    drain(silent, home, 8)
    next_one = other.member(group, [topic], Ears(), owner=f"next-{group}")
    settle(home, [next_one], lambda: len(next_one.assignment()) == 2)
    settle(home, [silent, next_one], lambda: len(silent.assignment()) == len(next_one.assignment()) == 1)
    assert ("lost", frozenset(TopicPartition(topic, p) for p in range(2))) in ears.told
    (tp,) = silent.assignment()
    silent.commit({tp: Committed(4)}, numbered(topic, 1, start=4, partition=tp.partition))
    silent.close(1_000)
    next_one.close(1_000)


def test_the_appender_bounds_its_buffer(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.log._local.APPEND_RECORDS", 10)
    topic = home.topic()
    log = home.open()
    appender = log.appender("a")
    for record in numbered(topic, 25):
        appender.send(record)
    assert log.span(topic)[0].end == 20  # two full buffers are written, the rest waits for `flush`
    appender.close(1_000)
    assert log.span(topic)[0].end == 25


def test_a_key_first_written_during_compaction_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = home.spec(1, cleanup="compact")
    log = home.open()
    assert isinstance(log, LocalLog)
    log.provision([spec], dry_run=False)
    write(log, [Record(spec.name, b"old", b"%d" % i, 0) for i in range(3)])
    inner = _upkeep._groups

    def meanwhile(*arguments: Any) -> Any:
        write(home.open(), [Record(spec.name, b"new", b"x", 0)])
        return inner(*arguments)

    monkeypatch.setattr(_upkeep, "_groups", meanwhile)
    _upkeep.compact(log._store, spec.name, 0, 0)
    assert everything(home, spec.name, 2) == [b"2", b"x"]


def test_upkeep_lives_through_its_own_mistakes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def fail(_self: LocalLog, _every_ms: int) -> None:
        tries.append(1)
        raise KeyError("a mistake")

    monkeypatch.setattr(LocalLog, "clean_if_due", fail)
    log = MemoryLog()
    upkeep = _upkeep.Upkeep(log, 5)
    deadline = time.monotonic() + 10
    while len(tries) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    upkeep.stop()
    log.close()
    assert "will try again" in caplog.text


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_could_not_be_written_behind_the_sender_is_raised_by_its_next_call(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = home.topic()
    log = _local(home)
    full, tries, inner = [True], [0], log.append

    def append(records: Sequence[Record], robin: list[int]) -> None:
        tries[0] += 1
        if full[0]:
            raise StorageFull("no room")
        inner(records, robin)

    monkeypatch.setattr(log, "append", append)
    appender = log.appender("test")
    appender.send(Record(topic, b"k", b"0", 0))
    _until(lambda: tries[0] == 1)
    with pytest.raises(StorageFull):
        appender.send(Record(topic, b"k", b"1", 0))
    with pytest.raises(StorageFull):
        appender.flush(1_000)
    full[0] = False
    appender.send(Record(topic, b"k", b"1", 0))  # what was refused was not kept, so it is sent again
    _until(lambda: log.span(topic)[0].end == 2)  # and the thread goes on
    appender.close(1_000)
    assert everything(home, topic, 2) == [b"0", b"1"]


def test_closing_an_appender_ends_its_thread(home: Home) -> None:
    topic = home.topic()
    appender = _local(home).appender("test")
    before = set(threading.enumerate())
    appender.send(Record(topic, b"k", b"0", 0))
    (lingering,) = set(threading.enumerate()) - before
    appender.close(1_000)
    lingering.join(1)
    assert not lingering.is_alive()


def test_what_follows_a_full_buffer_has_its_own_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick sends are committed by full buffers, not also by the clock."""
    topic = home.topic()
    log = _local(home)
    written: list[float] = []
    inner = log.append

    def append(records: Sequence[Record], robin: list[int]) -> None:
        written.append(time.monotonic())
        inner(records, robin)

    monkeypatch.setattr(log, "append", append)
    monkeypatch.setattr(local_module, "LINGER_S", 0.4)
    appender = log.appender("test")
    appender.send(Record(topic, b"k", b"0", 0))
    time.sleep(0.2)
    appender.flush(1_000)
    sent_at = time.monotonic()
    appender.send(Record(topic, b"k", b"1", 0))
    _until(lambda: len(written) == 2)
    assert written[1] - sent_at >= 0.4
    appender.close(1_000)


def test_a_poll_is_bounded_in_bytes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = home.topic(2)
    log = _local(home)
    sent = [[b"%d-%d" % (p, i) + bytes(1_000) for i in range(30)] for p in range(2)]
    for run in (range(7), range(7, 9), range(9, 30)):
        write(log, [Record(topic, None, sent[p][i], p) for p in range(2) for i in run])
    monkeypatch.setattr(local_module, "POLL_BYTES", 5_500)
    reader = log.reader({TopicPartition(topic, p): 0 for p in range(2)})
    got: list[list[bytes | None]] = [[], []]
    polls = 0
    while blocks := reader.poll(1_000, 0):
        assert sum(len(v or b"") for b in blocks for v in b.values) <= 5_500
        polls += 1
        for b in blocks:
            got[b.partition] += b.values
    assert got == sent
    assert polls <= 15  # and full, or nearly
    monkeypatch.setattr(local_module, "POLL_BYTES", 10)
    reader = log.reader({TopicPartition(topic, 0): 0})
    assert [len(b) for _ in range(3) for b in reader.poll(1_000, 0)] == [1, 1, 1]


def test_a_poll_for_many_large_messages_returns_64_mib_at_most(home: Home) -> None:
    topic = home.topic()
    log = _local(home)
    for _ in range(5):
        write(log, [Record(topic, None, bytes(2_000_000), 0) for _ in range(10)])
    reader = log.reader({TopicPartition(topic, 0): 0})
    assert [sum(map(len, reader.poll(200_000, 0))) for _ in range(3)] == [33, 17, 0]


@pytest.mark.parametrize(
    "keys", [[b"a"] * 5, [b"a", b"b"], [b""] * 3, [None] * 3, [b"ab", b"a"], [b"aa", b"aa", b"ab"], [b"aa", None, b"aa"]]
)  # fmt: skip
def test_keys_of_every_kind_come_back(home: Home, keys: list[bytes | None]) -> None:
    log, topic = _local(home), home.topic(1)
    write(log, [Record(topic, key, b"v%d" % i, 0) for i, key in enumerate(keys)])
    (block,) = drain(log.reader({TopicPartition(topic, 0): 0}), home, len(keys))
    assert block.keys == keys
    assert values([block]) == [b"v%d" % i for i in range(len(keys))]
