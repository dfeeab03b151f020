"""Commands that run and prepare: up, run, provision, migrate, rebuild, settings, version."""

import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

import analytics
from connectors.clickhouse.client import connect
from connectors.clickhouse.migrate import migrate as apply_migrations
from connectors.clickhouse.migrate import plan as plan_migrations
from infra import api, probes
from infra.about import VERSION
from infra.cli._common import FAILED, Data, Json, as_json, command, fail, log_to_stderr, say, settings_of, table
from infra.rebuild import rebuild as from_the_log
from infra.roles import Roles, exit_code, on_signals
from infra.settings import Settings, hidden
from infra.wiring import ROLES, Role, SharedDatabase, data_folder, open_log, use_registry
from schemas.errors import LockstepError, Refused
from schemas.topics import TOPICS

if TYPE_CHECKING:
    from infra.registering import Registered

_log = logging.getLogger("lockstep.up")
LOCK: Final = "up.lock"
# What a shell says of a process that ended by Ctrl-C.
AT_ONCE: Final = 130
Simulate = Annotated[bool, typer.Option("--simulate", help="Also play nodes that obey commands, to try things out.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
RoleName = Annotated[str, typer.Argument(help=f"One of {', '.join(ROLES)}.", metavar="ROLE")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for name, work in (
        ("up", up), ("run", run), ("provision", provision), ("migrate", migrate), ("rebuild", rebuild),
    ):  # fmt: skip
        app.command(name)(command(work))


def up(data: Data = None, simulate: Simulate = False) -> None:
    """Run all roles in this process, on the embedded log or on Kafka. Ctrl-C drains and stops."""
    chosen = settings_of(data).settings
    roles = tuple(role for role in ROLES if simulate or role != "simulate")
    with _holding(chosen, alone=True):
        _run(chosen, roles, whole=True, flag=f" --data {data}" if data else "")


def run(role: RoleName, data: Data = None) -> None:
    """Run one role in this process, with probes and metrics over HTTP. On Kafka each role may have many."""
    chosen = [r for r in ROLES if r == role]
    if not chosen:
        raise Refused(f"there is no role {role!r}; it is one of {', '.join(ROLES)}")
    settings = settings_of(data).settings
    # Roles of one embedded log may be processes of their own, but not beside an `up`, which has them all.
    with _holding(settings, alone=False) if not settings.kafka else nullcontext():
        _run(settings, tuple(chosen), whole=False)


def _run(chosen: Settings, roles: tuple[Role, ...], *, whole: bool, flag: str = "") -> None:
    """`whole`: with the local API. `flag`: what commands need to find this process."""
    log_to_stderr(chosen.log_level)
    registry = use_registry(chosen)
    log = open_log(chosen)
    database = SharedDatabase(chosen)
    working = Roles(roles, chosen, log, database)
    on_signals(working.end, lambda: os._exit(AT_ONCE))
    error: LockstepError | None = None
    try:
        served = (
            api.serve(chosen, log, database, working.metrics, working.healths)
            if whole
            else probes.serve(working.metrics, working.healths, chosen.http_host, chosen.http_port)
        )

        def tell() -> None:
            _log.info("%s on the log %s; ClickHouse: %s; %s", ", ".join(roles), chosen.log_name, _clickhouse(chosen), served.url)  # fmt: skip
            if whole:
                for line in _hello(chosen, served.url, flag):
                    say(line)

        try:
            error = working.run(registry, tell)
        finally:
            served.stop()
    finally:
        if working.clean:
            database.close()
            log.close()
    if error is not None:
        told = fail(str(error), exit_code(error))
    if not working.clean:
        # Something hangs in the log or in ClickHouse, and an orderly exit would wait for it.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(exit_code(error))
    if error is not None:
        raise told
    _log.info("stopped")


def _hello(chosen: Settings, url: str, flag: str) -> Iterator[str]:
    yield f"Lockstep {VERSION} is up."
    yield f"  data folder  {chosen.data_dir}"
    yield f"  log          {chosen.log_name}"
    yield f"  ClickHouse   {_clickhouse(chosen)}"
    yield f"  API, probes  {url}"
    yield f"Try `lockstep nodes{flag}`, or `lockstep submit{flag} --cards 1 -- true`. Ctrl-C stops."


def _clickhouse(chosen: Settings) -> str:
    return (
        hidden("clickhouse", chosen.clickhouse) if chosen.clickhouse else f"engine in {chosen.data_dir / 'clickhouse'}"
    )


@contextmanager
def _holding(chosen: Settings, *, alone: bool) -> Iterator[None]:
    """One `up` for a data folder, or some `run`s: more would fence each other. The lock goes with the process, however it ends."""
    with (data_folder(chosen) / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as e:
            file.seek(0)
            who = file.read().strip() or "`lockstep run` in another process"
            raise Refused(
                f"{who} is running already on {chosen.data_dir}; stop it first, or name another folder with --data"
            ) from e
        file.truncate(0)
        if alone:
            file.write(f"`lockstep up` (process {os.getpid()})")
            file.flush()
        yield


def provision(data: Data = None, dry_run: DryRun = False, json: Json = False) -> None:
    """Create and adjust topics, and register schemas where a registry is set. Never deletes; safe to repeat."""
    chosen = settings_of(data).settings
    log = open_log(chosen)
    try:
        steps = log.provision(TOPICS, dry_run=dry_run)
    finally:
        log.close()
    schemas: list[Registered] = []
    if chosen.registry:
        from infra.registering import register_schemas  # noqa: PLC0415 - a third of a second that most do without

        schemas = register_schemas(chosen, dry_run=dry_run)
    if json:
        as_json([asdict(s) for s in steps] + [asdict(s) for s in schemas])
    else:
        table(("topic", "", "detail"), [(s.topic, s.action, s.detail) for s in steps])
        if schemas:
            table(("schema", "", "id"), [(s.subject, s.action, s.id or "") for s in schemas], ("id",))
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


def rebuild(data: Data = None, dry_run: DryRun = False, json: Json = False) -> None:
    """Fill an empty ClickHouse from the log again: what has ever been decided lands anew when `land` runs next."""
    chosen = settings_of(data).settings
    with _holding(chosen, alone=True) if not chosen.kafka else nullcontext():
        log = open_log(chosen, create=False)
        database = SharedDatabase(chosen)
        try:
            found = from_the_log(chosen, log, database(), dry_run=dry_run)
        finally:
            database.close()
            log.close()
    if json:
        as_json(found)
        return
    will = "would land" if dry_run else "land when `lockstep up` or `lockstep run land` runs next"
    for topic, n in found.items():
        say(f"{topic}: {n:,} messages {will}.")
