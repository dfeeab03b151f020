"""Commands that tell: submit and cancel."""

import getpass
import sys
import time
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from infra.cli._common import (
    PARTLY,
    WRONG,
    Data,
    Json,
    as_json,
    command,
    fail,
    mapping_of,
    note,
    say,
    settings_of,
    table,
)
from infra.client import Asked, ask
from infra.submission import read_spec
from schemas.errors import Refused
from schemas.units import parse_duration_ms

WAIT_MS = 3_000
# One question of the local API may wait that long for the engine's first answer; its client gives up later.
FIRST_ANSWER_MS = 120_000
LOOK_S = 0.2


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("submit", context_settings={"ignore_unknown_options": False})(command(submit))
    app.command("cancel")(command(cancel))


def submit(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE | -- COMMAND...]", help="A job file (YAML), or after -- the command."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Id of the job.")] = None,
    cards: Annotated[str | None, typer.Option(help="Cards of each member: 8, 0.5, 500m; 0 for none.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Card model; repeat for several of which any will do.")
    ] = None,
    card_memory: Annotated[str | None, typer.Option(help="Least device memory of each card: 80GB.")] = None,
    members: Annotated[int | None, typer.Option(min=1, help="Members of the gang; all start together or none.")] = None,
    cpu: Annotated[str | None, typer.Option(help="Cores of each member: 16, 500m.")] = None,
    memory: Annotated[str | None, typer.Option(help="Main memory of each member: 128Gi.")] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="Narrowest level for the whole gang: site, data_centre, rack, node.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Queue it waits in.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first.")] = None,
    user: Annotated[str | None, typer.Option(help="Who submits.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Longest run: 90s, 1h30m, 2d.")] = None,
    estimate: Annotated[str | None, typer.Option(help="Expected run: 90s, 1h30m, 2d.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label, key=value; repeat for more.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be submitted.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is placed; exit code 3 when it is not in time.")
    ] = False,
    timeout: Annotated[str, typer.Option(help="How long --wait waits at most: 90s, 10m, 1h.")] = "10m",
    data: Data = None,
    json: Json = False,
) -> None:
    """Submit a job. Everything that is not given is inferred and shown."""
    fields: dict[str, object] = {}
    command_given = list(given or [])
    if command_given and _is_file(command_given):
        path = Path(command_given[0])
        text = sys.stdin.read() if str(path) == "-" else _read(path)
        fields = read_spec(path, text).model_dump(exclude_none=True)
        command_given = []
    flags = {
        "job": job, "cards": cards, "model": model or None, "card_memory": card_memory, "members": members, "cpu": cpu,
        "memory": memory, "adjacency": adjacency, "queue": queue, "priority": priority, "user": user, "time_limit": time_limit,
        "estimate": estimate, "command": command_given or None,
    }  # fmt: skip
    fields |= {k: v for k, v in flags.items() if v is not None}
    if not fields.get("command") and not given:
        raise Refused("what is to run is missing: give a job file, or the command after `--`")
    fields.setdefault("user", getpass.getuser())
    if label:
        fields["labels"] = {**cast(dict[str, str], fields.get("labels", {})), **mapping_of(label, "label")}
    timeout_ms = _timeout(timeout)
    until = time.monotonic() + timeout_ms / 1000
    with ask(settings_of(data).settings) as asked:
        running = asked.running
        wait_ms = min(timeout_ms, FIRST_ANSWER_MS) if wait else WAIT_MS if running else 0
        answer = cast(dict[str, Any], asked("submit", fields=fields, wait_ms=wait_ms, dry_run=dry_run))
        if wait and not dry_run:
            _wait(asked, answer, until)
    if json:
        as_json(answer)
    else:
        _tell(answer, dry_run=dry_run, running=running)
    if answer["state"] == "refused":
        raise fail(f"{answer['job']} was refused: {answer['reason']}", WRONG)
    if wait and not dry_run and answer["state"] in ("", "pending"):
        raise fail(f"{answer['job']} was not placed within {timeout}; it goes on waiting in its queue", PARTLY)


def _timeout(text: str) -> int:
    """Milliseconds. Raises `Refused`."""
    try:
        return parse_duration_ms(text)
    except Refused as e:
        raise Refused(f"--timeout: {e}") from e


def _wait(asked: Asked, answer: dict[str, Any], until: float) -> None:
    """Bring the answer up to date until the job waits no more, or until that moment of the monotonic clock."""
    said = ""
    while answer["state"] == "pending" and time.monotonic() < until:
        if answer["reason"] != said:
            said = answer["reason"]
            note(f"{answer['job']} waits: {said}")
        time.sleep(LOOK_S)
        now = cast(dict[str, Any], asked("job", job=answer["job"]))
        answer |= {field: now[field] for field in ("state", "code", "reason", "nodes")}


def _is_file(given: list[str]) -> bool:
    """One word that names a YAML file, or `-`. A command is told apart by `--`, or by not being a file."""
    name = given[0]
    return (
        len(given) == 1
        and "--" not in sys.argv
        and (name == "-" or name.endswith((".yaml", ".yml")) or Path(name).is_file())
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(f"the job file {path} cannot be read: {getattr(e, 'strerror', None) or e}") from e


def _tell(answer: dict[str, Any], *, dry_run: bool, running: bool) -> None:
    if answer["inferred"]:
        table(("inferred", "value", "why"), [(i["field"], i["value"], i["why"]) for i in answer["inferred"]])
    if dry_run:
        say(f"{answer['job']} would be submitted.")
        return
    match answer["state"]:
        case "" | "refused":
            say(f"{answer['job']} is submitted.")
            if not answer["state"]:
                note(
                    "The engine has not answered yet."
                    if running
                    else "Nothing runs on this data folder: `lockstep up` will take it up."
                )
        case "pending":
            say(f"{answer['job']} waits: {answer['reason'] or 'the engine has not looked at it yet'}.")
        case state:
            say(f"{answer['job']} is {state} on {' '.join(answer['nodes']) or 'no node any more'}.")
    note(f"Ask with: lockstep why {answer['job']}")


def cancel(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    data: Data = None,
    json: Json = False,
) -> None:
    """Ask for the end of a job: waiting ones end at once, running ones when their nodes have stopped them."""
    with ask(settings_of(data).settings) as asked:
        wait_ms = WAIT_MS if asked.running else 0
        answer = cast(dict[str, Any], asked("cancel", job=job, user=getpass.getuser(), reason=reason, wait_ms=wait_ms))
        running = asked.running
    if json:
        as_json(answer)
    elif answer["state"] == "cancelled":
        say(f"{job} is cancelled.")
    else:
        say(f"The end of {job} is asked for; it is still {answer['state']}.")
        if not running:
            note("Nothing runs on this data folder: `lockstep up` will take it up.")
    if answer["state"] == "finished":
        raise fail(f"{job} finished before it could be cancelled", PARTLY)
