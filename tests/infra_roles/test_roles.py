"""Roles in one process: how they end, in what order, and within which time."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from infra import roles as under_test
from infra.roles import Roles, exit_code, on_signals
from infra.settings import Settings
from infra.wiring import Role, SharedDatabase
from schemas.codec import encode
from schemas.errors import Fatal, Fenced, LockstepError, Refused, Transient
from schemas.health import Health
from schemas.messages import Record
from schemas.records import EngineStarted
from schemas.topics import TOPICS


class Scripted:
    """A worker that does what it is told."""

    def __init__(self, name: str, told: list[str], step: Callable[[], int] = lambda: 0) -> None:
        self.name = name
        self._told = told
        self._step = step

    def step(self, now: int, timeout_ms: int) -> int:
        return self._step()

    def reset(self) -> None: ...

    def health(self) -> Health:
        return Health(True, True, "scripted")

    def close(self, timeout_ms: int) -> None:
        self._told.append(f"{self.name} left")


class Stage:
    """Roles whose workers are scripted, on a log in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, provisioned: bool = True) -> None:
        self._monkeypatch = monkeypatch
        self.log = MemoryLog()
        self.told: list[str] = []
        if provisioned:
            self.log.provision(TOPICS, dry_run=False)

    def roles(self, steps: dict[Role, Callable[[], int]], shutdown_ms: int = 5_000) -> Roles:
        def make(role: Role, *_: object) -> Scripted:
            return Scripted(role, self.told, steps[role])

        self._monkeypatch.setattr(under_test, "make_worker", make)
        settings = Settings.model_validate({"shutdown_ms": shutdown_ms, "data_dir": Path("unused")})
        return Roles(steps, settings, self.log, SharedDatabase(settings))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def fail_with(error: Exception) -> Callable[[], int]:
    def step() -> int:
        raise error

    return step


def idle() -> int:
    time.sleep(0.001)  # a step that waits for messages
    return 0


def test_they_run_until_told_to_end(stage: Stage) -> None:
    working = stage.roles({"observe": idle, "decide": idle})
    assert {role: h.ready for role, h in working.healths().items()} == {"observe": False, "decide": False}
    seen: list[dict[str, bool]] = []

    def started() -> None:
        seen.append({role: h.ready for role, h in working.healths().items()})
        working.end()

    assert working.run(None, started) is None
    assert seen == [{"observe": True, "decide": True}]
    assert working.clean
    assert sorted(stage.told) == ["decide left", "observe left"]
    assert exit_code(None) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [(Fatal("the disk is gone"), 1), (Fenced("a newer one"), 4), (Fatal("unforeseen"), 1), (Refused("a setting"), 2)],
)
def test_a_role_that_ends_by_itself_ends_all(stage: Stage, error: LockstepError, code: int) -> None:
    working = stage.roles({"observe": idle, "decide": fail_with(error)})
    assert working.run() is error
    assert exit_code(error) == code
    assert sorted(stage.told) == ["decide left", "observe left"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_ends_all(stage: Stage) -> None:
    working = stage.roles({"observe": idle, "decide": fail_with(ZeroDivisionError("a mistake"))})
    error = working.run()
    assert isinstance(error, Fatal)
    assert "decide ended by an unforeseen error" in str(error)


def test_landing_lands_what_the_others_wrote_last(stage: Stage) -> None:
    """Everything that others write until they have ended is landed, whenever landing's own loop looked last."""
    wrote, landed = 0, 0
    ending = threading.Event()

    def write() -> int:
        nonlocal wrote
        if not ending.wait(0.02):
            working.end()
            ending.set()
        time.sleep(0.15)  # longer than landing's loop takes to end
        wrote += 3
        return 3

    def land() -> int:
        nonlocal landed
        now = wrote - landed
        landed += min(2, now)
        if not now:
            time.sleep(0.001)
        return min(2, now)

    working = stage.roles({"land": land, "decide": write})
    assert working.run() is None
    assert wrote >= 3
    assert landed == wrote
    assert stage.told == ["decide left", "land left"]


@pytest.mark.parametrize("where", ["decide", "land"])
def test_what_hangs_does_not_outlast_the_deadline(stage: Stage, where: Role, caplog: pytest.LogCaptureFixture) -> None:
    free, hanging = threading.Event(), threading.Event()

    def hang() -> int:
        """`decide` in a step of its loop, `land` in its last steps after that, in another thread than its loop's."""
        if where == "decide" or threading.current_thread() is not threads[where]:
            hanging.set()
            free.wait(30)
        return idle()

    working = stage.roles({"observe": idle, where: hang}, shutdown_ms=300)
    threads = working._threads

    def end() -> None:
        if where == "decide":
            hanging.wait(5)
        working.end()

    ender = threading.Timer(0.1, end)
    begun = time.monotonic()
    ender.start()
    assert working.run() is None
    took_s = time.monotonic() - begun
    free.set()
    ender.join()
    assert hanging.is_set()
    assert not working.clean
    assert took_s < 5
    assert "no end in time" in caplog.text


def test_missing_topics_are_said_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(monkeypatch, provisioned=False)
    monkeypatch.setattr(under_test, "PATIENCE_S", 0.01)
    working = stage.roles({"decide": idle})
    asked = 0

    class Registry:
        def check(self) -> None:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise Transient("the registry is out of reach")
            if asked == 9:
                assert working.healths()["decide"].live
                assert "run `lockstep provision`" in working.healths()["decide"].detail
                stage.log.provision(TOPICS, dry_run=False)

    assert working.run(Registry(), working.end) is None
    waited = [r.getMessage() for r in caplog.records if r.getMessage().startswith("waiting")]
    assert waited == [
        "waiting: the registry is out of reach",
        "waiting: topics are missing: resources, resource-telemetry, links and 7 more; run `lockstep provision`",
    ]


def test_nothing_runs_on_the_log_of_another_domain(stage: Stage) -> None:
    """Not even those that know no domain: they would carry this one's news into that one's map."""
    appender = stage.log.appender("test")
    appender.send(Record("ledger", b"a", encode(EngineStarted("a", 1, 1, "", "test", 0)), 0))
    appender.flush(1_000)
    working = stage.roles({"observe": lambda: pytest.fail("it ran"), "simulate": lambda: pytest.fail("it ran")})
    with pytest.raises(Refused, match="this ledger belongs to domain 'a'"):
        working.run(None, lambda: pytest.fail("it started"))


def test_what_waiting_cannot_cure_ends_it(stage: Stage) -> None:
    class Registry:
        def check(self) -> None:
            raise Fatal("that is no registry")

    with pytest.raises(Fatal, match="that is no registry"):
        stage.roles({"decide": idle}).run(Registry())
    assert stage.told == []


def test_the_second_signal_is_another() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    told: list[str] = []
    try:
        on_signals(lambda: told.append("end"), lambda: told.append("now"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert told == ["end", "now", "now"]


def test_a_loop_that_does_not_turn_is_not_live(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "STUCK_S", 0.05)
    free = threading.Event()
    working = stage.roles({"decide": lambda: int(free.wait(30))})

    def started() -> None:
        end = time.monotonic() + 5
        while working.healths()["decide"].live and time.monotonic() < end:
            time.sleep(0.01)
        assert not working.healths()["decide"].live
        assert "has not turned" in working.healths()["decide"].detail
        free.set()
        working.end()

    assert working.run(None, started) is None
