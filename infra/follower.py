"""A state that follows the ledger, for answering questions: it never decides and writes nothing. Used by `infra.questions`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.snapshots import FolderSnapshots
from infra.settings import Settings
from schemas.log import Log
from streams.engine import State
from streams.replay import catch_up, restore_state

PARTITION = 0


class Follower:
    """The domain's state as of the end of the ledger when asked. Thread-safe: one question at a time."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._log = log
        self._domain = settings.domain
        self._snapshots = FolderSnapshots(settings.snapshots_dir)
        self._lock = threading.Lock()
        self._state: State | None = None
        self._position = 0

    @contextmanager
    def state(self) -> Iterator[State]:
        """The state now; it may be read inside the block only."""
        with self._lock:
            if self._state is None:
                restored = restore_state(self._log, self._domain, PARTITION, self._snapshots)
                self._state, self._position = restored.state, restored.position
            else:
                end = self._log.span("ledger")[PARTITION].end
                self._position = catch_up(self._log, self._state, PARTITION, self._position, end)
            yield self._state
