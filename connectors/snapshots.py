"""Snapshots as files in a folder: written beside, synced, renamed, so that each is whole or absent. The newest few stay."""

import contextlib
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from schemas.errors import StorageFull
from schemas.snapshots import Stored

_log = logging.getLogger("lockstep.snapshots")
KEEP: Final = 3
_HEAD: Final = struct.Struct(">qq")


class FolderSnapshots:
    """`SnapshotStore` in a folder. One writer; readers at any time."""

    def __init__(self, folder: Path, keep: int = KEEP) -> None:
        self._folder = folder
        self._keep = keep

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("snapshot-*.bin"), reverse=True)

    def save(self, snapshot: Stored) -> None:
        try:
            self._save(snapshot)
        except OSError as e:
            raise StorageFull(f"{self._folder}: {e.strerror or e}") from e

    def _save(self, snapshot: Stored) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"snapshot-{snapshot.seq:020}.bin"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as f:
            f.write(_HEAD.pack(snapshot.seq, snapshot.position))
            f.write(snapshot.data)
            f.flush()
            os.fsync(f.fileno())
        temporary.rename(path)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        for old in self._files()[self._keep :]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()

    def newest_first(self) -> Iterator[Stored]:
        for path in self._files():
            try:
                data = path.read_bytes()
                seq, position = _HEAD.unpack_from(data)
            except (OSError, struct.error) as e:
                _log.warning("%s is not readable (%s)", path.name, e)
                continue
            yield Stored(seq, position, data[_HEAD.size :])
