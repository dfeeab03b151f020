"""Kafka's bad days: the broker killed and restarted around commits, answers that get lost, a broker that is not there."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.log._kafka_member import KafkaMember
from connectors.log.kafka import KafkaLog
from schemas.errors import Fatal, Fenced, TransactionAborted, Transient
from schemas.log import Log, Member
from schemas.messages import Committed, Record, TopicPartition
from tests.log.home import Ears, Home, drain, everything, numbered, values, write
from tests.support.broker import Broker, free_ports

pytestmark = pytest.mark.kafka
_prefixes = itertools.count()


@pytest.fixture
def home(mortal_broker: Broker) -> Iterator[Home]:
    prefix = f"outage-{os.getpid()}-{next(_prefixes)}."
    made = Home("kafka", lambda: KafkaLog(mortal_broker.bootstrap, prefix), settle_ms=60_000, quiet_ms=600)
    yield made
    made.close()


def _slot(log: Log, group: str, source: str, ears: Ears | None = None) -> Member:
    return log.member(group, [source], ears or Ears(), owner=f"slot-{group}", assign_all=True)


class _Copier:
    """What a processor does, at its smallest: copies a topic, one message per transaction, with the runner's policy."""

    def __init__(self, home: Home, source: str, out: str) -> None:
        self._home, self._source, self._out, self._group = home, source, out, home.group()
        self.tp = TopicPartition(source, 0)
        self.troubles: list[Transient] = []
        self.copied = 0
        self._member: Member | None = None

    def step(self) -> None:
        try:
            if self._member is None:
                self._member = _slot(self._home.open(), self._group, self._source)
            for block in self._member.poll(1, 200):
                self._commit(
                    self._member, Committed(block.next_offset, "so far"), Record(self._out, None, block.values[0], 0)
                )
                self.copied += 1
        except Transient as e:
            self.troubles.append(e)
            if self._member is not None:
                self._member.close(1_000)
            self._member = None

    def _commit(self, member: Member, at: Committed, record: Record) -> None:
        for _ in range(3):
            try:
                return member.commit({self.tp: at}, [record])
            except TransactionAborted:
                raise
            except Transient as e:
                self.troubles.append(e)
        raise Transient("given up")

    def close(self) -> None:
        if self._member is not None:
            self._member.close(1_000)


@pytest.mark.parametrize("politely", [False, True])
def test_a_broker_restarted_amid_transactions_loses_and_doubles_nothing(
    home: Home, mortal_broker: Broker, *, politely: bool
) -> None:
    source, out = home.topic(), home.topic()
    write(home.open(), numbered(source, 150))
    copier = _Copier(home, source, out)
    while copier.copied < 30:
        copier.step()

    def bounce() -> None:
        (mortal_broker.stop if politely else mortal_broker.kill)()
        mortal_broker.restart()

    bounced = threading.Thread(target=bounce)
    bounced.start()  # at some moment of some transaction
    after = copier.copied
    done, deadline = Committed(150, "so far"), time.monotonic() + 120
    while bounced.is_alive() or copier.copied < 150:
        copier.step()
        assert time.monotonic() < deadline, copier.troubles
    bounced.join()
    while home.open().committed(copier._group, [copier.tp])[copier.tp] != done:
        copier.step()  # a step whose end nobody heard of was counted, and has to be done again
        assert time.monotonic() < deadline, copier.troubles
    assert copier.copied > after
    assert everything(home, out, 150) == [b"%d" % i for i in range(150)]
    copier.close()


def test_a_commit_in_an_outage_is_transient_and_may_be_made_again(home: Home, mortal_broker: Broker) -> None:
    source, out, group = home.topic(), home.topic(), home.group()
    write(home.open(), numbered(source, 5))
    tp = TopicPartition(source, 0)
    member = _slot(home.open(), group, source)
    block = drain(member, home, 5)[-1]
    positions, records = {tp: Committed(block.next_offset, "note")}, numbered(out, 5)
    mortal_broker.kill()
    with pytest.raises(Transient, match="does not answer") as raised:
        member.commit(positions, records)
    assert mortal_broker.bootstrap in str(raised.value)
    mortal_broker.restart()
    deadline = time.monotonic() + 60
    while True:
        try:
            member.commit(positions, records)
            break
        except TransactionAborted:
            # Also a right answer: then the caller restores, and does the work anew.
            member.close(1_000)
            member = _slot(home.open(), group, source)
            assert values(drain(member, home, 5)) == [b"%d" % i for i in range(5)]
        except Transient:
            assert time.monotonic() < deadline
    assert everything(home, out, 5) == [b"%d" % i for i in range(5)]
    assert home.open().committed(group, [tp]) == positions
    member.close(10_000)


def test_no_broker_is_said_in_one_sentence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO)
    (port,) = free_ports(1)
    log = KafkaLog(f"127.0.0.1:{port}")
    with pytest.raises(Transient) as raised:
        log.partitions("jobs")
    assert "\n" not in str(raised.value)
    assert f"Kafka at 127.0.0.1:{port} does not answer" in str(raised.value)
    log.close()
    # The client's own complaints are for debugging; people get the sentence.
    assert caplog.text == ""
    assert capfd.readouterr().err == ""


def test_a_broker_going_away_is_noticed_by_readers_members_and_writers(home: Home, mortal_broker: Broker) -> None:
    topic, group = home.topic(), home.group()
    log = home.open()
    write(log, numbered(topic, 1))
    reader = log.reader({TopicPartition(topic, 0): 0})
    member = log.member(group, [topic], Ears())
    appender = log.appender("test")
    drain(reader, home, 1)
    drain(member, home, 1)
    mortal_broker.kill()

    def listen() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            member.poll(10, 200)

    with pytest.raises(Transient, match="does not answer"):
        listen()
    appender.send(numbered(topic, 1, start=1)[0])
    with pytest.raises(Transient, match="1 messages are not durable yet"):
        appender.flush(1_000)
    begun = time.monotonic()
    member.close(1_000)
    assert time.monotonic() - begun < 20  # leaving a group whose coordinator is away must not hang
    mortal_broker.restart()
    appender.flush(60_000)  # it was still in the buffer
    assert values(drain(reader, home, 1)) == [b"1"]
    appender.close(10_000)
    reader.close()


@pytest.mark.parametrize("politely", [False, True])
def test_a_log_that_outlives_its_broker_knows_the_ends_again(
    home: Home, mortal_broker: Broker, *, politely: bool
) -> None:
    """Each start of a broker is a new leader epoch; whoever asks with an old one is refused."""
    topic, log = home.topic(), home.open()
    write(log, numbered(topic, 3))
    for n in range(2):
        assert log.span(topic)[0].end == 3
        (mortal_broker.stop if politely else mortal_broker.kill)()
        mortal_broker.restart()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert log.span(topic)[0].end == 3
                break
            except Transient:
                assert time.monotonic() < deadline, n


class _Lossy:
    """A producer whose answers get lost until `found`: `commit_transaction` happens (or not), and then says that it may be
    asked again. Everything else is the real one."""

    def __init__(self, producer: Producer, *, happens: bool) -> None:
        self._producer = producer
        self._happens = happens
        self._happened = False
        self.found = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        if self._happened and self.found:
            self._happened = False  # the answer came in the meantime; the client gives it when asked again
            return
        if self.found:
            self._producer.commit_transaction(timeout)
            return
        if self._happens and not self._happened:
            self._producer.commit_transaction(timeout)
            self._happened = True
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost", False, True, False))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits that give up soon."""
    monkeypatch.setattr("connectors.log._kafka_slot.COMMIT_S", 1.0)


def _lossy(member: Member, *, happens: bool) -> _Lossy:
    assert isinstance(member, KafkaMember)
    assert member._slot is not None
    made = _Lossy(member._slot._producer, happens=happens)
    member._slot._producer = made  # type: ignore[assignment]
    return made


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("happens", [False, True])
def test_the_same_commit_again_happens_once(home: Home, *, happens: bool) -> None:
    source, out, group = home.topic(), home.topic(), home.group()
    write(home.open(), numbered(source, 5))
    member = _slot(home.open(), group, source)
    block = drain(member, home, 5)[-1]
    lossy = _lossy(member, happens=happens)
    tp = TopicPartition(source, 0)
    with pytest.raises(Transient) as raised:
        member.commit({tp: Committed(block.next_offset)}, numbered(out, 3))
    assert not isinstance(raised.value, TransactionAborted)
    lossy.found = True
    member.commit({tp: Committed(block.next_offset)}, numbered(out, 3))
    member.commit({}, numbered(out, 1, start=3))
    assert everything(home, out, 4) == [b"0", b"1", b"2", b"3"]
    member.close(10_000)


@pytest.mark.usefixtures("hasty")
def test_another_commit_after_a_lost_answer_makes_the_caller_restore(home: Home) -> None:
    """The first one may have happened, so the work in hand may have been done already."""
    source, out, group = home.topic(), home.topic(), home.group()
    member = _slot(home.open(), group, source)
    lossy = _lossy(member, happens=True)
    with pytest.raises(Transient):
        member.commit({}, numbered(out, 1))
    lossy.found = True
    with pytest.raises(TransactionAborted):
        member.commit({}, numbered(out, 1, start=1))
    member.commit({}, numbered(out, 1, start=2))
    assert everything(home, out, 2) == [b"0", b"2"]
    member.close(10_000)


@pytest.mark.usefixtures("hasty")
def test_a_new_owner_settles_what_the_old_one_did_not_hear(home: Home) -> None:
    source, out, group = home.topic(), home.topic(), home.group()
    write(home.open(), numbered(source, 5))
    old = _slot(home.open(), group, source)
    block = drain(old, home, 5)[-1]
    lossy = _lossy(old, happens=False)
    tp = TopicPartition(source, 0)
    with pytest.raises(Transient):
        old.commit({tp: Committed(block.next_offset, "old")}, numbered(out, 1, start=9))
    ears = Ears()
    new = _slot(home.open(), group, source, ears)
    drain(new, home, 5)
    assert ears.committed == {tp: None}  # the transaction was open, so it is aborted
    lossy.found = True
    with pytest.raises((Fenced, TransactionAborted, Fatal)):
        old.commit({tp: Committed(block.next_offset, "old")}, numbered(out, 1, start=9))
    new.commit({tp: Committed(block.next_offset, "new")}, numbered(out, 1))
    assert everything(home, out, 1) == [b"0"]
    old.close(1_000)
    new.close(10_000)
