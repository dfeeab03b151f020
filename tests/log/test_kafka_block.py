"""Kafka's messages taken apart into blocks: every field of every message where it belongs, in whatever chunks they come."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from connectors.log import _kafka_block
from connectors.log._kafka_block import Gathered, Raw
from schemas.collector import asleep
from schemas.messages import Headers


@dataclass(frozen=True)
class Sent:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at_ms: int

    def message(self) -> Raw:
        return Message(
            topic=self.topic, partition=self.partition, offset=self.offset, key=self.key, value=self.value,
            headers=list(self.headers) or None, timestamp=(1, self.at_ms),
        )  # fmt: skip


@st.composite
def sent(draw: st.DrawFn) -> list[Sent]:
    """Messages of few partitions, in runs, offsets rising with and without gaps, some with headers, keys missing, tombstones."""
    at: dict[tuple[str, int], int] = {}
    found: list[Sent] = []
    for _ in range(draw(st.integers(0, 8))):
        place = draw(st.sampled_from([("a", 0), ("a", 1), ("b", 0), ("b", 1)]))
        for _ in range(draw(st.integers(1, 5))):
            offset = at.get(place, draw(st.integers(0, 3))) + draw(st.sampled_from([1, 1, 1, 2, 7]))
            at[place] = offset
            n = len(found)
            headers = draw(st.sampled_from([(), (), (("h", b"%d" % n),), (("h", b"1"), ("i", b""))]))
            key, value = draw(st.sampled_from([b"k%d" % n, None])), draw(st.sampled_from([b"v%d" % n, None]))
            found.append(Sent(*place, offset, key, value, headers, 1_000 + n))
    return found


@given(sent(), st.integers(1, 7), st.integers(0, 40))
def test_every_field_is_where_it_belongs(messages: list[Sent], chunk: int, most: int) -> None:
    left: Iterator[Sent] = iter(messages)
    asked = []

    def ask(n: int) -> list[Raw]:
        asked.append(n)
        return [s.message() for _, s in zip(range(min(n, chunk)), left, strict=False)]

    gathered = Gathered()
    gathered.gather(ask, most)
    taken = messages[:most]
    assert bool(gathered) == bool(taken)
    found = {}
    for b in gathered.blocks(lambda name: name.upper()):
        want = [s for s in taken if (s.topic.upper(), s.partition) == (b.topic, b.partition)]
        assert list(b.offsets) == [s.offset for s in want]
        assert list(b.keys) == [s.key for s in want]
        assert list(b.values) == [s.value for s in want]
        assert b.headers == {i: s.headers for i, s in enumerate(want) if s.headers}
        assert b.oldest_ms == want[0].at_ms
        assert b.next_offset == want[-1].offset + 1
        found[b.tp] = len(b)
    assert sum(found.values()) == len(taken)
    assert all(n <= _kafka_block.CHUNK for n in asked)


def test_the_collector_goes_on_as_before() -> None:
    def fails(_n: int) -> list[Raw]:
        assert not gc.isenabled()
        raise OSError

    with contextlib.suppress(OSError):
        Gathered().gather(fails, 10)
    assert gc.isenabled()
    gc.disable()
    try:
        Gathered().gather(lambda _n: [], 10)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_two_that_put_the_collector_to_sleep_at_once_leave_it_awake() -> None:
    """The second comes while the first is at it, and goes after it."""
    first, second = asleep(), asleep()
    with first:
        second.__enter__()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
