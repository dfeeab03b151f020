"""Runs roles in this process until it is told to end: a thread with a loop for each, health, and one deadline for the end.

`lockstep up` and `lockstep run` call it. What a role does is its worker's affair; what its errors mean is `streams.runner.Loop`'s.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Final

from infra.settings import Settings
from infra.wiring import Role, SharedDatabase, make_worker
from schemas.errors import Fatal, Fenced, LockstepError, Transient
from schemas.health import Health
from schemas.log import Log
from schemas.topics import TOPICS
from streams.clock import Deadline, SystemClock
from streams.metrics import Metrics
from streams.runner import Loop

_log = logging.getLogger("lockstep.roles")
# A loop that has not turned for so long hangs.
STUCK_S: Final = 120.0
WATCH_S: Final = 0.2
PATIENCE_S: Final = 2.0


class Roles:
    """Some roles on one log, in threads of this process."""

    def __init__(self, roles: Iterable[Role], settings: Settings, log: Log, database: SharedDatabase) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._loops = {
            role: Loop(make_worker(role, settings, log, database, self.metrics), SystemClock(), self._stop)
            for role in roles
        }
        self._threads = [
            threading.Thread(target=loop.run, name=role, daemon=True) for role, loop in self._loops.items()
        ]

    def healths(self) -> Mapping[str, Health]:
        found: dict[str, Health] = {}
        for role, loop in self._loops.items():
            health = loop.health()
            silent_s = time.monotonic() - loop.turned_at
            if health.live and silent_s > STUCK_S:
                health = Health(False, False, f"its loop has not turned for {silent_s:.0f} s")
            found[role] = health
        return found

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait(self) -> LockstepError | None:
        """Until somebody calls `end`, or a role ends by itself: its error."""
        while not self._stop.wait(WATCH_S):
            for loop in self._loops.values():
                if loop.error is not None:
                    return loop.error
            for role, thread in zip(self._loops, self._threads, strict=True):
                if not thread.is_alive():
                    return self._loops[role].error or Fatal(f"{role} ended by an unforeseen error; its log says which")
        return None

    def end(self) -> None:
        """Ask all roles to finish what they are at. Called from signal handlers, too."""
        self._stop.set()

    def close(self) -> None:
        """Let each leave its group, all within one deadline. What cannot be finished is done after the next start."""
        self._stop.set()
        deadline = Deadline(self._settings.shutdown_ms)
        for thread in self._threads:
            thread.join(deadline.left_ms() / 1000)
        for role, loop, thread in zip(self._loops, self._loops.values(), self._threads, strict=True):
            if thread.is_alive():
                _log.warning(
                    "%s does not end in time; what it had not committed is done again after the next start", role
                )
            else:
                loop.close(deadline)


def on_signals(end: Callable[[], None], now: Callable[[], None]) -> None:
    """SIGTERM and Ctrl-C call `end`; the second one calls `now`."""
    seen = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            end()
        else:
            now()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def wait_for_topics(log: Log, stop: threading.Event) -> bool:
    """Until the log answers and has all topics, saying once what is missing. False when told to stop before."""
    said = ""
    while not stop.is_set():
        try:
            missing = [step.topic for step in log.provision(TOPICS, dry_run=True) if step.action == "create"]
            if not missing:
                return True
            what = f"topics are missing: {_some(missing)}; run `lockstep provision`"
        except Transient as e:
            what = str(e)
        if what != said:
            _log.warning("waiting: %s", what)
            said = what
        stop.wait(PATIENCE_S)
    return False


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def exit_code(error: LockstepError | None) -> int:
    """0: ended when told to; 4: a newer process took over; 1: anything else."""
    if error is None:
        return 0
    return 4 if isinstance(error, Fenced) else 1
