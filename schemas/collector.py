"""Python's cycle collector asleep for a while, for all threads of the process.

Who makes many objects of which none is garbage saves the collector from looking through them again and again. Several may do so at
once: the first puts it to sleep, the last wakes it, if it was awake. Used where messages are read and where a ledger is replayed.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_sleepers = 0
_was_awake = False


@contextmanager
def asleep() -> Iterator[None]:
    """Inside, nothing is collected."""
    global _sleepers, _was_awake  # noqa: PLW0603 - the collector is the process's
    with _lock:
        if _sleepers == 0:
            _was_awake = gc.isenabled()
            gc.disable()
        _sleepers += 1
    try:
        yield
    finally:
        with _lock:
            _sleepers -= 1
            if _sleepers == 0 and _was_awake:
                gc.enable()
