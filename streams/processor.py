"""What a processor is: it gets blocks and gives records. Whoever drives it (`streams.runner`) owns the log.

A processor is single-threaded. Its state must follow from what was committed: when a commit fails, the runner makes a new
processor through its factory and the log's `assigned` restores it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from schemas.log import Log
from schemas.messages import Block, Committed, Record, TopicPartition


class Processor(Protocol):
    """A stream processor on any log."""

    name: str
    group: str
    topics: tuple[str, ...]
    # Stable name of its slot: it writes in transactions, and a newer one with the same name fences it.
    owner: str
    assign_all: bool
    max_records: int

    def assigned(self, log: Log, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        """Take partitions; restore what is known of them. Returns where to read from, for those that differ from
        the committed position."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions."""
        ...

    def started(self, now: int) -> list[Record]:
        """Records to write once after a restore, before anything else."""
        ...

    def process(self, blocks: Sequence[Block], now: int, *, drained: bool) -> list[Record]:
        """Messages in, records out. `drained`: nothing more was waiting. Never raises for a bad message."""
        ...

    def tick(self, now: int) -> list[Record]:
        """Time passed without messages."""
        ...

    def committed(self) -> None:
        """What was given back last is durable."""
        ...

    def closing(self) -> None:
        """The process ends in good order and everything is committed: store what makes the next start quick."""
        ...

    def next_wake(self) -> int | None:
        """When `tick` will have something to do, milliseconds."""
        ...
