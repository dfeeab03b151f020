"""The log in memory: tests, simulation, what-if. Same code as the embedded one, gone with the process."""

from connectors.log._group import SESSION_MS
from connectors.log._local import Bell, LocalLog
from connectors.log._store import MemoryStore


class MemoryLog(LocalLog):
    """A log that lives as long as this object. `open_again` is another client of the same log."""

    def __init__(self, _shared: "MemoryLog | None" = None, *, session_ms: int = SESSION_MS) -> None:
        self._memory: MemoryStore = MemoryStore() if _shared is None else _shared._memory
        self._memory_bell: Bell = Bell() if _shared is None else _shared._memory_bell
        super().__init__(self._memory, self._memory_bell, session_ms=session_ms)

    def open_again(self) -> "MemoryLog":
        return MemoryLog(self, session_ms=self._session_ms)
