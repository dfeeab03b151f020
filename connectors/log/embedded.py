"""The embedded log: durable, one file, no broker. For one machine and for first contact."""

from pathlib import Path
from typing import Final

from connectors.log._local import LocalLog, bell_of
from connectors.log._store import Durability, FileStore

FILE_NAME: Final = "log.sqlite"


class EmbeddedLog(LocalLog):
    """A log in `folder/log.sqlite`. Any number of threads and processes may use it at once.

    `durability`: `full` survives a power cut, `normal` survives the death of any process but may lose the last
    commits in a power cut. `max_pages` bounds the file (pages of 4 KiB); beyond it commits raise `StorageFull`.
    """

    def __init__(self, folder: Path, durability: Durability = "full", max_pages: int | None = None) -> None:
        path = folder / FILE_NAME
        super().__init__(FileStore(path, durability, max_pages), bell_of(str(path.resolve())))
