"""Commands that run and prepare: up, run, provision, migrate, settings, version."""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Final

import typer

import analytics
from connectors.clickhouse.client import connect
from connectors.clickhouse.migrate import migrate as apply_migrations
from connectors.clickhouse.migrate import plan as plan_migrations
from infra import api, probes
from infra.cli._common import FAILED, Data, Json, as_json, command, fail, log_to_stderr, say, settings_of, table
from infra.roles import Roles, exit_code, on_signals, wait_for_topics
from infra.settings import Settings
from infra.wiring import ROLES, VERSION, Role, SharedDatabase, open_log, use_registry
from schemas.errors import Refused
from schemas.topics import TOPICS

_log = logging.getLogger("lockstep.up")
LOCK: Final = "up.lock"
Simulate = Annotated[bool, typer.Option("--simulate", help="Also play nodes that obey commands, to try things out.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
RoleName = Annotated[str, typer.Argument(help=f"One of {', '.join(ROLES)}.", metavar="ROLE")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for name, work in (
        ("up", up), ("run", run), ("provision", provision), ("migrate", migrate), ("settings", settings),
        ("version", version),
    ):  # fmt: skip
        app.command(name)(command(work))


def up(data: Data = None, simulate: Simulate = False) -> None:
    """Run all roles in this process, on the embedded log or on Kafka. Ctrl-C drains and stops."""
    chosen = settings_of(data).settings
    roles = tuple(role for role in ROLES if simulate or role != "simulate")
    with _alone(chosen):
        _run(chosen, roles, whole=True)


def run(role: RoleName, data: Data = None) -> None:
    """Run one role in this process, with probes and metrics over HTTP. On Kafka each role may have many."""
    chosen = [r for r in ROLES if r == role]
    if not chosen:
        raise Refused(f"there is no role {role!r}; it is one of {', '.join(ROLES)}")
    _run(settings_of(data).settings, tuple(chosen), whole=False)


def _run(chosen: Settings, roles: tuple[Role, ...], *, whole: bool) -> None:
    log_to_stderr(chosen.log_level)
    stop = threading.Event()
    on_signals(stop.set, lambda: os._exit(130))
    use_registry(chosen)
    log = open_log(chosen)
    database = SharedDatabase(chosen)
    try:
        if not wait_for_topics(log, stop):
            return
        working = Roles(roles, chosen, log, database)
        on_signals(working.end, lambda: os._exit(130))
        served = (
            api.serve(chosen, log, database, working.metrics, working.healths)
            if whole
            else probes.serve(working.metrics, working.healths, chosen.http_host, chosen.http_port)
        )
        try:
            if stop.is_set():
                return
            working.start()
            _log.info(
                "%s on the log %s; ClickHouse: %s; %s",
                ", ".join(roles),
                chosen.log_name,
                _clickhouse(chosen),
                served.url,
            )
            if whole:
                say(f"Lockstep {VERSION} is up. Log: {chosen.log_name}. ClickHouse: {_clickhouse(chosen)}.")
                say(
                    f"API, probes and metrics: {served.url}. Try `lockstep nodes`, `lockstep submit --cards 1 -- true`. Ctrl-C stops."
                )
            error = working.wait()
            if error is None:
                _log.info("stopping: finishing what was begun")
            working.close()
        finally:
            served.stop()
    finally:
        database.close()
        log.close()
    if error is not None:
        raise fail(str(error), exit_code(error))
    _log.info("stopped")


def _clickhouse(chosen: Settings) -> str:
    return chosen.clickhouse.split("@")[-1] if chosen.clickhouse else f"engine in {chosen.data_dir / 'clickhouse'}"


@contextmanager
def _alone(chosen: Settings) -> Iterator[None]:
    """One `up` for a data folder: a second one would fence the first. The lock goes with the process, however it ends."""
    chosen.data_dir.mkdir(parents=True, exist_ok=True)
    with (chosen.data_dir / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            file.seek(0)
            pid = file.read().strip() or "another process"
            raise Refused(
                f"`lockstep up` is running already on {chosen.data_dir} (process {pid}); stop it first, or name another "
                "folder with --data"
            ) from e
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def provision(data: Data = None, dry_run: DryRun = False, json: Json = False) -> None:
    """Create and adjust topics, and register schemas where a registry is set. Never deletes; safe to repeat."""
    chosen = settings_of(data).settings
    registry = use_registry(chosen)
    log = open_log(chosen)
    try:
        steps = log.provision(TOPICS, dry_run=dry_run)
    finally:
        log.close()
    told = [asdict(s) for s in steps]
    if registry is not None:
        try:
            if not dry_run:
                registry.check()
        finally:
            registry.close()
    if json:
        as_json(told)
    else:
        table(("topic", "", "detail"), [(s.topic, s.action, s.detail) for s in steps])
        if registry is not None:
            say(f"Schemas: {'would be registered' if dry_run else 'registered'} at {chosen.registry.split('@')[-1]}.")
    refused = [s.topic for s in steps if s.action == "refuse"]
    if refused:
        raise fail(f"{', '.join(refused)} cannot be brought to what is declared; see the detail", FAILED)


def migrate(data: Data = None, dry_run: DryRun = False, json: Json = False) -> None:
    """Bring ClickHouse's tables and views up to date. Safe to repeat."""
    chosen = settings_of(data).settings
    database = connect(chosen.clickhouse_target)
    try:
        known = analytics.migrations()
        steps = plan_migrations(database, known) if dry_run else apply_migrations(database, known)
    finally:
        database.close()
    if json:
        as_json([asdict(s) for s in steps])
        return
    words = {"apply": "would be applied" if dry_run else "applied", "keep": "was there"}
    table(("migration", "name", ""), [(f"{s.number:03}", s.name, words[s.action]) for s in steps])


def settings(data: Data = None, json: Json = False) -> None:
    """Show every setting, its value and where it comes from. Secrets are hidden."""
    loaded = settings_of(data)
    if json:
        as_json([asdict(e) for e in loaded.effective()])
        return
    rows = [(e.name, e.value, e.origin, e.variable, e.description) for e in loaded.effective()]
    table(("setting", "value", "from", "variable", "what it is"), rows)
    if loaded.file is not None:
        say(f"Settings file: {loaded.file}")


def version(json: Json = False) -> None:
    """Show the version."""
    if json:
        as_json({"lockstep": VERSION})
    else:
        say(VERSION)
