"""The snapshot store's protocol: where the engine keeps its state between ledger entries it need not read again."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol


class Stored(NamedTuple):
    """A stored snapshot: its ledger seq, the ledger position to read on from (early is safe), and its bytes."""

    seq: int
    position: int
    data: bytes


class SnapshotStore(Protocol):
    """Keeps a few snapshots. A save is whole or not at all."""

    def save(self, snapshot: Stored) -> None:
        """Durable when it returns. Raises `StorageFull` when it cannot be stored; those before stay."""
        ...

    def save_beside(self, make: Callable[[], Stored]) -> None:
        """Save what `make` gives for the state of this moment while the caller goes on. One at a time: ask `finished` before. A
        store that cannot do so saves before it returns; raises as `save`."""
        ...

    def finished(self) -> bool:
        """Whether no `save_beside` is at work. Raises `StorageFull`, once, when the last one failed."""
        ...

    def newest_first(self) -> Iterator[Stored]:
        """Stored snapshots; unreadable ones are left out with a warning."""
        ...
