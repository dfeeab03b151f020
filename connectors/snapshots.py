"""Snapshots as files in a folder: written under another name, synced, renamed, so that each is whole or absent. The newest few stay.

The engine's state takes a second to write for 100,000 jobs, and decisions must not wait for that. `fork` gives a child process the
state as it is, at the cost of its page tables, and the child writes it (as Redis does). It touches nothing but the state and
the file: no client, no lock of another thread, no log, no interpreter exit.
"""

import contextlib
import gc
import logging
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from schemas.errors import StorageFull
from schemas.snapshots import Stored

_log = logging.getLogger("lockstep.snapshots")
KEEP: Final = 3
_HEAD: Final = struct.Struct(">qq")
# A child that takes longer hangs, or the disk does.
LATE_S: Final = 300.0
# The child's exit code when it did not fail by the disk (then the code is that error's number).
_UNFORESEEN: Final = 255
_NICE: Final = 10


class FolderSnapshots:
    """`SnapshotStore` in a folder. One writer; readers at any time. Without `fork`, `save_beside` is `save`."""

    def __init__(self, folder: Path, keep: int = KEEP, *, fork: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._fork = fork
        self._child = 0
        self._late_at = 0.0

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("snapshot-*.bin"), reverse=True)

    def save(self, snapshot: Stored) -> None:
        try:
            self._save(snapshot)
        except OSError as e:
            raise StorageFull(f"{self._folder}: {e.strerror or e}") from e

    def save_beside(self, make: Callable[[], Stored]) -> None:
        if not self._fork:
            self.save(make())
            return
        pid = os.fork()
        if pid == 0:
            self._write_and_exit(make)
        self._child, self._late_at = pid, time.monotonic() + LATE_S

    def _write_and_exit(self, make: Callable[[], Stored]) -> NoReturn:
        """In the child."""
        code = _UNFORESEEN
        try:
            # Ctrl-C goes to the whole group; the parent ends a child that is not wanted any more.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            gc.disable()  # a look at every object would copy every page
            os.nice(_NICE)
            self._save(make())
            code = 0
        except OSError as e:
            code = e.errno or _UNFORESEEN
        finally:
            os._exit(code)

    def finished(self) -> bool:
        if not self._child:
            return True
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if not pid:
            if time.monotonic() < self._late_at:
                return False
            os.kill(self._child, signal.SIGKILL)
            _, status = os.waitpid(self._child, 0)
        self._child = 0
        code = os.waitstatus_to_exitcode(status)
        if code:
            why = f"the process that wrote it was ended by signal {-code}" if code < 0 else os.strerror(code)
            raise StorageFull(f"{self._folder}: {why if code != _UNFORESEEN else 'the process that wrote it failed'}")
        return True

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
        # Of writers that were killed.
        for left in self._folder.glob("snapshot-*.tmp"):
            left.unlink(missing_ok=True)

    def newest_first(self) -> Iterator[Stored]:
        for path in self._files():
            try:
                data = path.read_bytes()
                seq, position = _HEAD.unpack_from(data)
            except (OSError, struct.error) as e:
                _log.warning("%s is not readable (%s)", path.name, e)
                continue
            yield Stored(seq, position, data[_HEAD.size :])
