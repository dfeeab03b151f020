"""What the contract suite needs of a home of the log, and the small tools its tests share.

A home plugs in by a fixture named `home` that yields a `Home` (see `tests/log/test_local.py`), in a class derived from
`tests.log.contract.LogContract`.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from schemas.log import Log, Member
from schemas.messages import Block, Committed, Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec

_numbers = itertools.count(time.time_ns() // 1_000_000 % 1_000_000_000)


class Home:
    """A place where a log is. `opened` makes a client of it; `impatient` one whose silent members lose their
    partitions within seconds (None: this home cannot)."""

    def __init__(
        self,
        name: str,
        opened: Callable[[], Log],
        *,
        settle_ms: int,
        quiet_ms: int,
        impatient: Callable[[], Log] | None = None,
    ) -> None:
        self.name = name
        # The longest that something written, or a rebalance, may take to be seen.
        self.settle_ms = settle_ms
        # How long nothing must come before a test believes that nothing will.
        self.quiet_ms = quiet_ms
        self._opened = opened
        self._impatient = impatient
        self._logs: list[Log] = []

    def open(self) -> Log:
        """Another client of the same log, as another process would have."""
        self._logs.append(self._opened())
        return self._logs[-1]

    def open_impatient(self) -> Log | None:
        if self._impatient is None:
            return None
        self._logs.append(self._impatient())
        return self._logs[-1]

    def spec(
        self,
        partitions: int = 1,
        *,
        cleanup: Literal["delete", "compact"] = "delete",
        retention_ms: int = -1,
        max_message_bytes: int = 4 << 20,
    ) -> TopicSpec:
        """A topic that nobody else uses, not yet made."""
        return TopicSpec(
            f"contract-{next(_numbers)}", (JobSubmitted,), "job", partitions, cleanup, retention_ms, (), (), "A test",
            max_message_bytes,
        )  # fmt: skip

    def topic(self, partitions: int = 1, *, max_message_bytes: int = 4 << 20) -> str:
        """A new topic that nobody else uses."""
        spec = self.spec(partitions, max_message_bytes=max_message_bytes)
        self.open().provision([spec], dry_run=False)
        return spec.name

    def group(self) -> str:
        return f"group-{next(_numbers)}"

    def close(self) -> None:
        for log in self._logs:
            log.close()


class _Polls(Protocol):
    def poll(self, max_records: int, timeout_ms: int) -> list[Block]: ...


class Ears:
    """A `Listener` that remembers what it was told. `start` is returned by `assigned`; the hooks run inside the calls."""

    def __init__(self, start: Mapping[TopicPartition, int] | None = None) -> None:
        self.start = start or {}
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []
        self.committed: dict[TopicPartition, Committed | None] = {}
        self.on_assigned: Callable[[], None] = lambda: None
        self.on_revoked: Callable[[], None] = lambda: None

    def held(self) -> frozenset[TopicPartition]:
        """What it has, by what it was told."""
        held: frozenset[TopicPartition] = frozenset()
        for kind, partitions in self.told:
            held = held | partitions if kind == "assigned" else held - partitions
        return held

    def assigned(self, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        self.told.append(("assigned", frozenset(committed)))
        self.committed.update(committed)
        self.on_assigned()
        return self.start

    def revoked(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        self.told.append(("lost" if lost else "revoked", frozenset(partitions)))
        self.on_revoked()


def write(log: Log, records: Iterable[Record]) -> None:
    """Append, durable at return."""
    appender = log.appender("contract")
    for record in records:
        appender.send(record)
    appender.flush(30_000)
    appender.close(10_000)


def numbered(topic: str, count: int, *, start: int = 0, partition: int | None = 0) -> list[Record]:
    """Records whose values are the numbers from `start` on."""
    return [Record(topic, b"k%d" % i, b"%d" % i, partition) for i in range(start, start + count)]


def drain(source: _Polls, home: Home, count: int, max_records: int = 1_000) -> list[Block]:
    """Blocks until `count` messages came, or until the home's time to settle is over."""
    found: list[Block] = []
    deadline = time.monotonic() + home.settle_ms / 1000
    while sum(map(len, found)) < count and time.monotonic() < deadline:
        found += source.poll(max_records, 200)
    return found


def quiet(source: _Polls, home: Home) -> list[Block]:
    """What comes although nothing should: looks for `home.quiet_ms`."""
    return source.poll(1_000, home.quiet_ms)


def values(blocks: Iterable[Block]) -> list[bytes | None]:
    return [v for block in blocks for v in block.values]


def everything(home: Home, topic: str, count: int, log: Log | None = None) -> list[bytes | None]:
    """All values of a topic, through a client of its own; waits for `count` and then looks for more."""
    log = log or home.open()
    reader = log.reader({TopicPartition(topic, p): 0 for p in range(log.partitions(topic))})
    try:
        found = drain(reader, home, count) if count else []
        return values(found + quiet(reader, home))
    finally:
        reader.close()


def settle(home: Home, members: Sequence[Member], done: Callable[[], bool]) -> None:
    """Poll all members in turn, as their processes would, until `done`; fails when it takes too long."""
    deadline = time.monotonic() + home.settle_ms / 1000
    while not done():
        assert time.monotonic() < deadline, [sorted(m.assignment()) for m in members]
        for member in members:
            member.poll(1, 20)
