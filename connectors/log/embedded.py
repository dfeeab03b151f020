"""The embedded log: durable, one file, no broker. For one machine and for first contact."""

from pathlib import Path
from typing import Final

from connectors.log._group import SESSION_MS
from connectors.log._local import LocalLog, bell_of
from connectors.log._store import Durability, FileStore

FILE_NAME: Final = "log.sqlite"


UPKEEP_EVERY_MS: Final = 60_000


class EmbeddedLog(LocalLog):
    """A log in `folder/log.sqlite`. Any number of threads and processes may use it at once.

    `durability`: `full` survives a power cut, `normal` survives the death of any process but may lose the last
    commits in a power cut. `max_pages` bounds the file (pages of 4 KiB); beyond it commits raise `StorageFull`.
    `session_ms`: a member of a group that was not polled for so long loses its partitions. `upkeep_every_ms`: how
    often retention and compaction run while the log is open (0: never).
    """

    def __init__(
        self,
        folder: Path,
        durability: Durability = "full",
        max_pages: int | None = None,
        *,
        session_ms: int = SESSION_MS,
        upkeep_every_ms: int = UPKEEP_EVERY_MS,
    ) -> None:
        path = folder / FILE_NAME
        store = FileStore(path, durability, max_pages)
        super().__init__(store, bell_of(str(path.resolve())), session_ms=session_ms, upkeep_every_ms=upkeep_every_ms)
