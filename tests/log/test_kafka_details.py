"""What Kafka's home does beyond the contract: partitions as others choose them, markers, aborts, big messages, growing,
and listeners that fail. Against a real broker."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer

from connectors.log.kafka import KafkaLog
from schemas.errors import Fatal, Fenced, Refused, TransactionAborted, Transient
from schemas.messages import Committed, Record, TopicPartition, partition_of
from schemas.topics import MAX_DEAD_LETTER_BYTES
from tests.log.home import Ears, Home, drain, everything, numbered, quiet, settle, values, write
from tests.support.broker import Broker

pytestmark = pytest.mark.kafka
PREFIX = f"details-{os.getpid()}."
IMPATIENT = {"consumer.max.poll.interval.ms": "1500", "consumer.session.timeout.ms": "1500"}


@pytest.fixture
def home(broker: Broker) -> Iterator[Home]:
    made = Home(
        "kafka",
        lambda: KafkaLog(broker.bootstrap, PREFIX),
        settle_ms=40_000,
        quiet_ms=400,
        impatient=lambda: KafkaLog(broker.bootstrap, PREFIX, IMPATIENT),
    )
    yield made
    made.close()


def test_a_key_is_where_our_own_function_says(home: Home) -> None:
    """The client chooses by its own code; `partition_of` is what the other homes use."""
    topic = home.topic(5)
    keys = [b"node-%d" % i for i in range(200)] + ["schlüssel-键".encode(), b"", b"\x00\xff\x80"]
    write(home.open(), [Record(topic, key, key) for key in keys])
    reader = home.open().reader({TopicPartition(topic, p): 0 for p in range(5)})
    found = {v: b.partition for b in drain(reader, home, len(keys)) for v in b.values}
    assert found == {key: partition_of(key, 5) for key in keys}


def test_the_end_is_reached_though_markers_stand_there(home: Home) -> None:
    """A state is restored "up to the end": the last transaction's marker must not keep it waiting for ever."""
    source, out, group = home.topic(), home.topic(), home.group()
    log = home.open()
    member = log.member(group, [source], Ears(), owner=f"slot-{group}", assign_all=True)
    for i in range(3):
        member.commit({}, numbered(out, 1, start=i))
    end = log.span(out)[0].end
    assert end == 6  # each transaction is one record and its marker
    reader = log.reader({TopicPartition(out, 0): 0})
    blocks = drain(reader, home, 3)
    while blocks[-1].next_offset < end:
        more = reader.poll(100, 10_000)
        assert more, "the reader stopped short of the end"
        blocks += more
    assert values(blocks) == [b"0", b"1", b"2"]
    assert [o for b in blocks for o in b.offsets] == [0, 2, 4]
    assert quiet(reader, home) == []  # said once
    # A member is told nothing of it, so that it has nothing to commit; but it does not count markers as lag.
    follower = log.member(home.group(), [out], Ears())
    assert [len(b) for b in drain(follower, home, 3) + quiet(follower, home) if not len(b)] == []
    assert follower.lag() == {TopicPartition(out, 0): 0}
    follower.close(10_000)
    member.close(10_000)


def test_what_was_aborted_or_is_open_is_not_seen(home: Home, broker: Broker) -> None:
    """The writer here is not ours, so that it may stop half-way."""
    topic = home.topic()
    name = PREFIX + topic
    stranger = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"stranger-{topic}", "linger.ms": 0}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(name, b"aborted", b"k", 0)
    stranger.flush(10)
    stranger.abort_transaction(10)
    log = home.open()
    write(log, numbered(topic, 1))
    stranger.begin_transaction()
    stranger.produce(name, b"open", b"k", 0)
    stranger.flush(10)
    reader = log.reader({TopicPartition(topic, 0): 0})
    blocks = drain(reader, home, 1) + quiet(reader, home)
    assert values(blocks) == [b"0"]
    # The end is the one for readers, not the broker's.
    assert log.span(topic)[0].end == blocks[-1].next_offset == 3
    stranger.commit_transaction(10)
    assert values(drain(reader, home, 1)) == [b"open"]


def test_the_largest_dead_letter_passes(home: Home) -> None:
    topic = home.topic(max_message_bytes=MAX_DEAD_LETTER_BYTES)
    source, group = home.topic(), home.group()
    whole = os.urandom(MAX_DEAD_LETTER_BYTES - 200)  # noise does not compress; a batch has a header of some bytes
    log = home.open()
    member = log.member(group, [source], Ears(), owner=f"slot-{group}", assign_all=True)
    member.commit({}, [Record(topic, b"key", whole, 0)])
    assert everything(home, topic, 1) == [whole]
    with pytest.raises(Fatal, match=f"too large for topic {topic}"):
        member.commit({}, [Record(topic, b"key", whole + bytes(1_000), 0)])
    with pytest.raises(Refused, match=f"too large for topic {topic}"):
        log.appender("test").send(Record(topic, b"key", whole + bytes(1_000), 0))
    member.commit({}, numbered(topic, 1))  # the slot is none the worse
    member.close(10_000)


def test_an_empty_topic_grows_and_one_with_keys_does_not(home: Home) -> None:
    log = home.open()
    spec = home.spec(2)
    log.provision([spec], dry_run=False)
    (step,) = log.provision([replace(spec, partitions=4)], dry_run=True)
    assert (step.action, step.detail) == ("alter", "partitions 2 → 4")
    assert home.open().partitions(spec.name) == 2
    log.provision([replace(spec, partitions=4)], dry_run=False)
    assert log.partitions(spec.name) == 4
    write(log, numbered(spec.name, 1))
    (step,) = log.provision([replace(spec, partitions=8)], dry_run=False)
    assert step.action == "refuse"
    assert "keys would move" in step.detail
    assert home.open().partitions(spec.name) == 4


def test_deployments_do_not_meet(home: Home, broker: Broker) -> None:
    topic, group = home.topic(), home.group()
    other = KafkaLog(broker.bootstrap, f"other-{PREFIX}")
    other.provision([replace(home.spec(), name=topic)], dry_run=False)
    tp = TopicPartition(topic, 0)
    write(home.open(), numbered(topic, 2))
    mine = home.open().member(group, [topic], Ears(), owner="slot", assign_all=True)
    theirs = other.member(group, [topic], Ears(), owner="slot", assign_all=True)  # same names, and fences nobody
    block = drain(mine, home, 2)[-1]
    mine.commit({tp: Committed(block.next_offset)})
    assert other.committed(group, [tp]) == {tp: None}
    assert quiet(theirs, home) == []
    mine.close(10_000)
    theirs.close(10_000)
    other.close()


@pytest.mark.parametrize("assign_all", [True, False])
def test_a_listener_that_fails_is_asked_again(home: Home, *, assign_all: bool) -> None:
    topic, group = home.topic(), home.group()
    log = home.open()
    write(log, numbered(topic, 5))
    tp = TopicPartition(topic, 0)
    ears = Ears({tp: 2})
    failures = [Transient("the changelog does not answer"), Transient("and again")]

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    ears.on_assigned = fail
    member = log.member(group, [topic], ears, owner=f"slot-{group}", assign_all=assign_all)
    for words in ("does not answer", "and again"):
        with pytest.raises(Transient, match=words):
            drain(member, home, 1)
        assert member.assignment() == frozenset()
    assert values(drain(member, home, 3)) == [b"2", b"3", b"4"]
    member.close(10_000)
    assert [kind for kind, _ in ears.told] == ["assigned", "assigned", "assigned", "revoked"]


def test_a_shared_slot_that_lost_its_partitions_cannot_commit(home: Home) -> None:
    """Its slot is still its own, so only the group can refuse it: also when everybody else has left meanwhile."""
    impatient = home.open_impatient()
    assert impatient is not None
    topic, out, group = home.topic(), home.topic(), home.group()
    tp = TopicPartition(topic, 0)
    write(home.open(), numbered(topic, 10))
    silent = impatient.member(group, [topic], Ears(), owner=f"silent-{group}")
    block = drain(silent, home, 10)[-1]
    next_one = home.open().member(group, [topic], Ears(), owner=f"next-{group}")
    again = drain(next_one, home, 10)[0]
    with pytest.raises(TransactionAborted):
        silent.commit({tp: Committed(block.next_offset, "stale")}, numbered(out, 1, start=66))
    next_one.commit({tp: Committed(again.offsets[3], "mine")}, numbered(out, 1))
    next_one.close(10_000)
    with pytest.raises(TransactionAborted):
        silent.commit({tp: Committed(block.next_offset, "stale")}, numbered(out, 1, start=77))
    assert home.open().committed(group, [tp]) == {tp: Committed(again.offsets[3], "mine")}
    assert everything(home, out, 1) == [b"0"]
    silent.close(10_000)


def test_a_member_alone_in_its_group_and_thrown_out_cannot_commit(home: Home) -> None:
    """The broker takes positions for an empty group from anybody; the member itself must know better."""
    impatient = home.open_impatient()
    assert impatient is not None
    topic, group = home.topic(), home.group()
    tp = TopicPartition(topic, 0)
    log = home.open()
    write(log, numbered(topic, 10))
    silent = impatient.member(group, [topic], Ears())
    block = drain(silent, home, 10)[-1]
    passer_by = log.member(group, [topic], Ears())
    settle(home, [passer_by], lambda: passer_by.assignment() == {tp})
    passer_by.close(10_000)
    with pytest.raises(Fenced):
        silent.commit({tp: Committed(block.next_offset, "stale")})
    assert log.committed(group, [tp]) == {tp: None}
    silent.close(10_000)


def test_a_member_commits_only_what_it_has(home: Home) -> None:
    """Within a generation the coordinator takes any partition's position from any member."""
    topic, group = home.topic(2), home.group()
    a = home.open().member(group, [topic], Ears())
    b = home.open().member(group, [topic], Ears(), owner=f"slot-{group}")
    settle(home, [a, b], lambda: len(a.assignment()) == len(b.assignment()) == 1)
    (of_a,), (of_b,) = a.assignment(), b.assignment()
    with pytest.raises(Fenced):
        a.commit({of_b: Committed(1)})
    with pytest.raises(TransactionAborted):
        b.commit({of_a: Committed(1)})
    assert home.open().committed(group, [of_a, of_b]) == {of_a: None, of_b: None}
    a.close(10_000)
    b.close(10_000)


def test_a_plain_consumer_reads_what_we_wrote(home: Home, broker: Broker) -> None:
    """Other people's clients: same bytes, same key, same headers."""
    topic, source, group = home.topic(), home.topic(), home.group()
    member = home.open().member(group, [source], Ears(), owner=f"slot-{group}", assign_all=True)
    member.commit({}, [Record(topic, b"key", b"value", 0, (("trace", b"\x01"),))])
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([PREFIX + topic])
    message = consumer.poll(30)
    assert message is not None
    assert (message.key(), message.value(), message.headers()) == (b"key", b"value", [("trace", b"\x01")])
    consumer.close()
    member.close(10_000)
