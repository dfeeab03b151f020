"""Runs roles in this process until it is told to end: a thread with a loop for each, health, and one deadline for the end.

`lockstep up` and `lockstep run` call it. What a role does is its worker's affair; what its errors mean is `streams.runner.Loop`'s.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Final, Protocol

from infra.follower import PARTITION
from infra.settings import Settings
from infra.wiring import Role, SharedDatabase, make_worker
from schemas.errors import Fatal, Fenced, LockstepError, Refused, Transient
from schemas.health import Health
from schemas.log import Log
from schemas.topics import TOPICS
from streams.clock import Deadline, SystemClock
from streams.collecting import collect_if_quiet, keep_pauses_short
from streams.metrics import Metrics
from streams.replay import check_domain
from streams.runner import STEP_WAIT_MS, Loop, Worker

_log = logging.getLogger("lockstep.roles")
# A loop that has not turned for so long hangs. A turn may hold a restore (a million entries in 10 s) or an insert that waits
# for ClickHouse (120 s at most): a liveness probe that ends either would only make it begin again.
STUCK_S: Final = 300.0
WATCH_S: Final = 0.2
PATIENCE_S: Final = 2.0
# A landing that gets nowhere while the process ends gets no longer than this: the rows land after the next start.
LAST_ROWS_MS: Final = 5_000


class Registry(Protocol):
    """What is asked of a schema registry before the start; `connectors.registry.RegistryIds` is one."""

    def check(self) -> None: ...


class Roles:
    """Some roles on one log, in threads of this process. Nothing is opened or asked before `run`."""

    def __init__(self, roles: Iterable[Role], settings: Settings, log: Log, database: SharedDatabase) -> None:
        self.metrics = Metrics()
        self._settings = settings
        self._log = log
        self._stop = threading.Event()
        self._started = False
        self._waiting = "starts"
        # Whether everything ended in time; if not, something still holds the log or ClickHouse.
        self.clean = True
        self._clock = SystemClock()
        self._loops = {
            role: Loop(make_worker(role, settings, log, database, self.metrics), self._clock, self._stop)
            for role in roles
        }
        self._threads = {
            role: threading.Thread(target=loop.run, name=role, daemon=True) for role, loop in self._loops.items()
        }

    def healths(self) -> Mapping[str, Health]:
        if not self._started:
            return dict.fromkeys(self._loops, Health(True, False, self._waiting))
        found: dict[str, Health] = {}
        for role, loop in self._loops.items():
            health = loop.health()
            silent_s = time.monotonic() - loop.turned_at
            if health.live and silent_s > STUCK_S:
                health = Health(False, False, f"its loop has not turned for {silent_s:.0f} s")
            found[role] = health
        return found

    def run(self, registry: Registry | None = None, started: Callable[[], None] = lambda: None) -> LockstepError | None:
        """Wait for what the roles need, call `started`, and run them until somebody calls `end` (None) or one of them ends by
        itself (its error). Raises what waiting cannot cure."""
        if not self._wait_for_surroundings(registry):
            return None
        for loop in self._loops.values():
            loop.turned_at = time.monotonic()
        self._started = True
        keep_pauses_short()
        for thread in self._threads.values():
            thread.start()
        started()
        error = self._watch()
        if error is None:
            _log.info("stopping: finishing what was begun")
        self._close()
        return error

    def end(self) -> None:
        """Ask all roles to finish what they are at. Called from signal handlers, too."""
        self._stop.set()

    def _wait_for_surroundings(self, registry: Registry | None) -> bool:
        """Until registry and log answer and all topics are there, saying once what is missing. False when told to end before."""
        while not self._stop.is_set():
            try:
                if registry is not None:
                    registry.check()
                missing = [step.topic for step in self._log.provision(TOPICS, dry_run=True) if step.action == "create"]
                if not missing:
                    # Before anything runs: others would have written this domain's news to that log by the time decide restores.
                    check_domain(self._log, self._settings.domain, PARTITION)
                    return not self._stop.is_set()
                what = f"topics are missing: {_some(missing)}; run `lockstep provision`"
            except Transient as e:
                what = str(e)
            if what != self._waiting:
                _log.warning("waiting: %s", what)
                self._waiting = what
            self._stop.wait(PATIENCE_S)
        return False

    def _watch(self) -> LockstepError | None:
        collected_at = time.monotonic()
        while not self._stop.wait(WATCH_S):
            collected_at = collect_if_quiet(collected_at, max(loop.busy_at for loop in self._loops.values()))
            for loop in self._loops.values():
                if loop.error is not None:
                    return loop.error
            for role, thread in self._threads.items():
                if not thread.is_alive():
                    return self._loops[role].error or Fatal(f"{role} ended by an unforeseen error; its log says which")
        return None

    def _close(self) -> None:
        """Let each leave its group, all within one deadline. What cannot be finished is done after the next start."""
        self._stop.set()
        deadline = Deadline(self._settings.shutdown_ms)
        for thread in self._threads.values():
            thread.join(deadline.left_ms() / 1000)
        ended = {role: loop for role, loop in self._loops.items() if not self._threads[role].is_alive()}
        late = [str(role) for role in self._loops if role not in ended]
        # In a thread of its own: whatever hangs in there, this process ends in time.
        leaving = threading.Thread(target=self._leave, args=(ended, deadline), name="leaving", daemon=True)
        leaving.start()
        leaving.join(deadline.left_ms() / 1000)
        if leaving.is_alive() and not late:
            late = ["what was begun last"]
        self.clean = not late
        if late:
            _log.warning(
                "%s: no end in time; what was not committed is done again after the next start", ", ".join(late)
            )

    def _leave(self, ended: Mapping[Role, Loop], deadline: Deadline) -> None:
        # Landing last: what the others wrote at the end lands, too.
        for role in sorted(ended, key=lambda r: r == "land"):
            if role == "land" and ended[role].error is None:
                self._land_the_last(ended[role].worker, deadline)
            ended[role].close(deadline)

    def _land_the_last(self, worker: Worker, deadline: Deadline) -> None:
        """Step landing while it gets on, so that SQL knows what the ledger knows when the process has ended."""
        own = Deadline(min(LAST_ROWS_MS, deadline.left_ms() // 2))
        try:
            while own.left_ms() > 0 and worker.health().ready:
                if worker.step(self._clock.now_ms(), STEP_WAIT_MS) == 0:
                    return
        except LockstepError as e:
            _log.warning("land: %s; the last rows land after the next start", e)


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


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def exit_code(error: LockstepError | None) -> int:
    """0: ended when told to; 2: wrong settings; 4: a newer process took over; 1: anything else."""
    if error is None:
        return 0
    if isinstance(error, Refused):
        return 2
    return 4 if isinstance(error, Fenced) else 1
