"""The contract, part one: topics, writing, reading."""

import os
import threading
import time
from dataclasses import replace

import pytest

from schemas.errors import Fatal, LockstepError
from schemas.messages import Headers, Record, TopicPartition
from tests.log.home import Home, drain, everything, numbered, quiet, values, write

# Hashes by Kafka's own code (org.apache.kafka.common.utils.UtilsTest.testMurmur2), before the sign bit is cleared.
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


class MessageContract:
    """Topics, writing, reading."""

    def test_messages_of_a_partition_keep_their_order(self, home: Home) -> None:
        topic = home.topic(3)
        log = home.open()
        write(log, [r for i in range(400) for r in numbered(topic, 1, start=i, partition=i % 3)])
        reader = log.reader({TopicPartition(topic, p): 0 for p in range(3)})
        blocks = drain(reader, home, 400, max_records=70)
        for p in range(3):
            mine = [b for b in blocks if b.partition == p]
            assert values(mine) == [b"%d" % i for i in range(p, 400, 3)]
            offsets = [o for b in mine for o in b.offsets]
            assert offsets == sorted(set(offsets))
            assert all(b.next_offset > b.offsets[-1] for b in mine)

    def test_a_message_comes_back_as_it_was(self, home: Home) -> None:
        topic = home.topic()
        headers: Headers = (("trace", b"\x00\xff"), ("trace", b"second"), ("empty", b""), ("größe", "✓".encode()))
        sent = [
            Record(topic, b"key", b"value", 0),
            Record(topic, b"gone", None, 0),
            Record(topic, b"empty", b"", 0),
            Record(topic, b"", b"empty key", 0),
            Record(topic, None, b"no key", 0),
            Record(topic, "schlüssel-键".encode(), "wert-значение-值".encode(), 0),
            Record(topic, b"with headers", b"1", 0, headers),
            Record(topic, b"large", os.urandom(1 << 20), 0),
            Record(topic, None, None, 0),
        ]
        before_ms = time.time_ns() // 1_000_000
        write(home.open(), sent)
        blocks = drain(home.open().reader({TopicPartition(topic, 0): 0}), home, len(sent))
        got = [
            Record(b.topic, b.keys[i], b.values[i], b.partition, b.headers.get(i, ()))
            for b in blocks
            for i in range(len(b))
        ]
        assert got == sent
        assert all(before_ms <= b.oldest_ms <= time.time_ns() // 1_000_000 for b in blocks)

    def test_the_key_decides_the_partition_as_in_java(self, home: Home) -> None:
        topic = home.topic(7)
        log = home.open()
        write(log, [Record(topic, key, key) for key in JAVA_MURMUR2])
        blocks = drain(log.reader({TopicPartition(topic, p): 0 for p in range(7)}), home, len(JAVA_MURMUR2))
        found = {v: b.partition for b in blocks for v in b.values}
        assert found == {key: (h & 0x7FFFFFFF) % 7 for key, h in JAVA_MURMUR2.items()}

    def test_messages_without_a_key_are_all_there(self, home: Home) -> None:
        topic = home.topic(4)
        log = home.open()
        write(log, [Record(topic, None, b"%d" % i) for i in range(100)])
        found = everything(home, topic, 100, log)
        assert sorted(int(v or b"") for v in found) == list(range(100))

    def test_reading_from_any_position(self, home: Home) -> None:
        topic = home.topic()
        log = home.open()
        write(log, numbered(topic, 50))
        blocks = drain(log.reader({TopicPartition(topic, 0): 0}), home, 50)
        offsets = [o for b in blocks for o in b.offsets]
        for i in (0, 1, 24, 49):
            again = drain(log.reader({TopicPartition(topic, 0): offsets[i]}), home, 50 - i)
            assert values(again) == [b"%d" % n for n in range(i, 50)]
        # The position after everything waits for what comes next.
        reader = log.reader({TopicPartition(topic, 0): blocks[-1].next_offset})
        assert quiet(reader, home) == []
        write(log, numbered(topic, 1, start=50))
        assert values(drain(reader, home, 1)) == [b"50"]

    def test_at_most_max_records_and_none_lost_between_polls(self, home: Home) -> None:
        topic = home.topic(2)
        log = home.open()
        write(log, numbered(topic, 60, partition=0) + numbered(topic, 60, partition=1))
        reader = log.reader({TopicPartition(topic, p): 0 for p in range(2)})
        deadline = time.monotonic() + home.settle_ms / 1000
        got: dict[int, list[bytes | None]] = {0: [], 1: []}
        while sum(map(len, got.values())) < 120 and time.monotonic() < deadline:
            blocks = reader.poll(7, 200)
            assert sum(map(len, blocks)) <= 7
            for b in blocks:
                got[b.partition] += b.values
        assert got == {p: [b"%d" % i for i in range(60)] for p in range(2)}

    def test_what_was_sent_becomes_durable_without_a_flush(self, home: Home) -> None:
        """A sender that says something every hour is heard at once."""
        topic, log = home.topic(), home.open()
        appender = log.appender("test")
        appender.send(numbered(topic, 1)[0])
        reader = home.open().reader({TopicPartition(topic, 0): 0})
        assert values(drain(reader, home, 1)) == [b"0"]
        appender.close(10_000)
        reader.close()

    def test_a_busy_partition_does_not_starve_the_others(self, home: Home) -> None:
        topic = home.topic(2)
        log = home.open()
        write(log, numbered(topic, 500, partition=0) + numbered(topic, 1, partition=1))
        reader = log.reader({TopicPartition(topic, p): 0 for p in range(2)})
        blocks = drain(reader, home, 501, max_records=50)
        seen = [b.partition for b in blocks]
        # A broker's answer brings all it has room for of one partition before the next: 500 small ones are one answer.
        assert 1 in (seen if home.name == "kafka" else seen[: len(seen) // 2 + 2])

    def test_poll_returns_as_soon_as_one_message_is_there(self, home: Home) -> None:
        topic = home.topic()
        log = home.open()
        reader = home.open().reader({TopicPartition(topic, 0): 0})
        quiet(reader, home)
        seen: list[float] = []

        def wait() -> None:
            assert values(reader.poll(10_000, 20_000)) == [b"0"]
            seen.append(time.monotonic())

        waiting = threading.Thread(target=wait)
        waiting.start()
        write(log, numbered(topic, 1))
        written = time.monotonic()
        waiting.join(25)
        assert seen[0] - written < 2  # not the 20 s of the timeout, and not waiting for 10,000

    def test_poll_with_nothing_waits_its_time_and_returns_nothing(self, home: Home) -> None:
        reader = home.open().reader({TopicPartition(home.topic(), 0): 0})
        quiet(reader, home)
        start = time.monotonic()
        assert reader.poll(10, 150) == []
        assert 0.1 < time.monotonic() - start < 3

    def test_flush_makes_visible_to_every_client(self, home: Home) -> None:
        topic = home.topic()
        appender = home.open().appender("contract")
        for record in numbered(topic, 10):
            appender.send(record)
        appender.flush(30_000)
        assert everything(home, topic, 10) == [b"%d" % i for i in range(10)]
        for record in numbered(topic, 10, start=10):
            appender.send(record)
        appender.close(30_000)  # closing loses nothing either
        assert everything(home, topic, 20) == [b"%d" % i for i in range(20)]

    def test_threads_may_share_a_log(self, home: Home) -> None:
        topic = home.topic(4)
        log = home.open()

        def produce(p: int) -> None:
            for start in range(0, 60, 20):
                write(log, numbered(topic, 20, start=start, partition=p))

        threads = [threading.Thread(target=produce, args=(p,)) for p in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        blocks = drain(log.reader({TopicPartition(topic, p): 0 for p in range(4)}), home, 240)
        for p in range(4):
            assert values(b for b in blocks if b.partition == p) == [b"%d" % i for i in range(60)]

    def test_a_message_too_large_is_refused_and_its_neighbours_pass(self, home: Home) -> None:
        topic = home.topic(max_message_bytes=100_000)
        log = home.open()
        appender = log.appender("contract")
        appender.send(Record(topic, b"a", b"before", 0))

        def send_too_much() -> None:
            appender.send(Record(topic, b"b", bytes(200_000), 0))
            appender.flush(30_000)

        with pytest.raises(LockstepError, match=topic):
            send_too_much()
        write(log, [Record(topic, b"c", b"after", 0)])
        appender.close(30_000)
        assert sorted(v or b"" for v in everything(home, topic, 2)) == [b"after", b"before"]

    def test_an_unknown_topic_is_said_to_be_unknown(self, home: Home) -> None:
        log = home.open()
        with pytest.raises(Fatal, match="contract-nowhere"):
            log.partitions("contract-nowhere")
        with pytest.raises(LockstepError, match="contract-nowhere"):
            write(log, [Record("contract-nowhere", b"k", b"v")])

    def test_span(self, home: Home) -> None:
        topic = home.topic(2)
        log = home.open()
        assert {p: (s.begin, s.end) for p, s in log.span(topic).items()} == {0: (0, 0), 1: (0, 0)}
        write(log, numbered(topic, 5, partition=1))
        block = drain(log.reader({TopicPartition(topic, 1): 0}), home, 5)[-1]
        assert {p: (s.begin, s.end) for p, s in log.span(topic).items()} == {0: (0, 0), 1: (0, block.next_offset)}

    def test_provisioning_plans_then_applies(self, home: Home) -> None:
        log = home.open()
        a, b = home.spec(2, retention_ms=3_600_000), home.spec(1, cleanup="compact")
        plan = log.provision([a, b], dry_run=True)
        assert [(s.action, s.topic) for s in plan] == [("create", a.name), ("create", b.name)]
        with pytest.raises(Fatal):
            log.partitions(a.name)  # a plan changes nothing
        assert [s.action for s in log.provision([a, b], dry_run=False)] == ["create", "create"]
        assert (log.partitions(a.name), home.open().partitions(b.name)) == (2, 1)
        assert [s.action for s in home.open().provision([a, b], dry_run=False)] == ["keep", "keep"]

        longer = replace(a, retention_ms=7_200_000)
        (step,) = log.provision([longer], dry_run=True)
        assert (step.action, step.topic) == ("alter", a.name)
        assert "7200000" in step.detail.replace(",", "").replace("_", "")
        assert [s.action for s in log.provision([longer], dry_run=False)] == ["alter"]
        assert [s.action for s in log.provision([longer, b], dry_run=False)] == ["keep", "keep"]

    def test_provisioning_never_shrinks_and_never_deletes(self, home: Home) -> None:
        log = home.open()
        a, b = home.spec(3), home.spec(1)
        log.provision([a, b], dry_run=False)
        write(log, numbered(a.name, 5, partition=2))
        (step,) = log.provision([replace(a, partitions=1)], dry_run=False)
        assert (step.action, step.topic) == ("refuse", a.name)
        assert "3" in step.detail
        assert log.partitions(a.name) == 3
        assert everything(home, a.name, 5) == [b"%d" % i for i in range(5)]
        assert home.open().partitions(b.name) == 1  # not in the list, still there
