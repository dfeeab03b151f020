"""Runs a function in a forked process, so that it can be killed, limited or left without a disk.

The tests that use it have no log open when they fork: SQLite's locks belong to one process.
"""

import contextlib
import os
import resource
import signal
import traceback
from collections.abc import Callable


class Child:
    """How the forked process ended, and what it said before."""

    def __init__(self, status: int, said: str) -> None:
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1
        self.said = said


def forked(work: Callable[[Callable[[str], None]], None]) -> Child:
    """Fork, run `work(say)`, wait. What `work` says is known even if it is killed right after."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # Such work takes a second at most: one that hangs ends by this signal. (Not by faulthandler's timer: pytest has set that
            # in the parent, and a child that sets it again waits for a thread that it has not.)
            signal.alarm(120)
            work(lambda text: (os.write(writing, text.encode()), None)[1])
            code = 0
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
            raise
        finally:
            os._exit(code)
    os.close(writing)
    said = b""
    with contextlib.closing(os.fdopen(reading, "rb")) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return Child(status, said.decode())


def limit_file_size(size: int, *, deadly: bool) -> None:
    """No file may grow beyond `size` bytes; a write that tries ends the process (`deadly`) or fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
