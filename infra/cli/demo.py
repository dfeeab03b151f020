"""`lockstep demo`: replay the openb trace and show what came of it. Wired into the command line by `infra.cli`.

It only arranges and prints; `infra.demo` does the work.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from infra import demo as the_demo
from infra.about import VERSION
from infra.cli._common import command
from infra.demo import Outcome, Plan
from infra.demo_pipeline import Progress as Played
from infra.warehouse import ChdbWarehouse
from schemas.errors import LockstepError, Refused

DEFAULT_FOLDER = Path("lockstep-demo")


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("demo")(command(demo))


def demo(
    data: Annotated[Path, typer.Option("--data", help="Folder for what the demo leaves behind.")] = DEFAULT_FOLDER,
    jobs: Annotated[int, typer.Option(min=0, help="Only the first N jobs; 0: all 8,152.")] = 0,
    nodes: Annotated[int, typer.Option(min=0, help="Only the first N nodes, to see jobs wait; 0: all 1,213.")] = 0,
    faults: Annotated[
        bool, typer.Option("--faults", help="Lose, delay, double and reorder messages; let nodes die.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn at random.")] = 0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep an earlier demo's folder and make another beside it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, nothing else.")] = False,
) -> None:
    """Replay 149 days of a real GPU cluster through the whole pipeline, in minutes."""
    console = Console(stderr=as_json)
    folder = _beside(data) if keep else data
    if (folder / the_demo.MARK).is_file():
        console.print(f"[dim]The earlier demo in {folder} is replaced (--keep makes another beside it).[/dim]")
    plan = Plan(jobs=jobs, nodes=nodes, seed=seed, faults=faults)
    begun = time.monotonic()
    try:
        with _bar(console) as show:
            outcome = the_demo.run(folder, plan, show, version=VERSION, warehouse=ChdbWarehouse)
    except Refused as e:
        console.print(f"[red]{e}[/red]")
        raise typer.Exit(2) from e
    except LockstepError as e:
        console.print(f"[red]The demo stopped: {e}[/red]")
        raise typer.Exit(1) from e
    took_s = time.monotonic() - begun
    if as_json:
        typer.echo(json.dumps(_as_json(outcome, took_s)))
    else:
        _tell(console, outcome, took_s)
    if outcome.account.faults():
        raise typer.Exit(1)


def _beside(folder: Path) -> Path:
    """`folder`, or `folder-2`, `folder-3`, …: the first that is not there."""
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Played], None]]:
    columns = (
        TextColumn("{task.fields[date]}"),
        BarColumn(),
        TextColumn(
            "{task.fields[submitted]:>5,} submitted  {task.fields[placed]:>5,} placed  {task.fields[ended]:>5,} ended"
        ),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task: TaskID | None = None

        def show(played: Played) -> None:
            nonlocal task
            date = datetime.fromtimestamp(played.now / 1000, UTC).strftime("%d %b %Y")
            if task is None:
                task = progress.add_task("", total=played.jobs, date=date, submitted=0, placed=0, ended=0)
            progress.update(
                task,
                completed=played.ended,
                date=date,
                submitted=played.submitted,
                placed=played.placed,
                ended=played.ended,
            )

        yield show


def _tell(console: Console, outcome: Outcome, took_s: float) -> None:
    console.print(Text.from_ansi(outcome.report))
    days = (outcome.played.now - the_demo.TRACE_START_MS) / the_demo.DAY_MS
    console.print(
        f"\n{days:.0f} days in {took_s:.0f} s: {outcome.played.ended:,} of {outcome.played.submitted:,} jobs ended."
    )
    wrong = outcome.account.faults()
    if wrong:
        console.print("[red]The account does not add up:[/red]")
        for line in wrong:
            console.print(f"  [red]{line}[/red]")
    else:
        entries = sum(outcome.account.logged.values())
        landed = "" if outcome.account.landed is None else ", each in ClickHouse once"
        console.print(f"[green]Exactly once:[/green] {entries:,} ledger entries{landed}; every job answered once.")
    if outcome.page is not None:
        console.print(f"The same with plots: {outcome.page}")
    console.print("\nTry next:")
    for line in _next(outcome):
        console.print(f"  [bold]{line}[/bold]", highlight=False, soft_wrap=True)


def _next(outcome: Outcome) -> list[str]:
    """The commands to try next, as this shell finds them: `bin/demo` runs from an environment that is not on its path."""
    program = "lockstep" if shutil.which("lockstep") else sys.argv[0]
    return [program + line.removeprefix("lockstep") for line in outcome.next_commands]


def _as_json(outcome: Outcome, took_s: float) -> dict[str, object]:
    return {
        "folder": str(outcome.folder),
        "page": None if outcome.page is None else str(outcome.page),
        "seconds": round(took_s, 1),
        "submitted": outcome.played.submitted,
        "placed": outcome.played.placed,
        "ended": outcome.played.ended,
        "entries": dict(outcome.account.logged),
        "rows": None if outcome.account.landed is None else dict(outcome.account.landed),
        "faults": outcome.account.faults(),
        "next": _next(outcome),
    }
