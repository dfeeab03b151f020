"""`lockstep settings` and `lockstep version`: what this installation is, without touching a log or a database."""

from dataclasses import asdict

import typer

from infra.about import VERSION
from infra.cli._common import Data, Json, as_json, command, say, settings_of, table


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("settings")(command(settings))
    app.command("version")(command(version))


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
