"""The `lockstep` command. Modules beside this one hold the commands; this one puts them together."""

import os
import sys
from importlib import import_module
from typing import Annotated, Final

import typer

from infra.about import VERSION

# A role is one thread: a pool beside it, for blocks as small as ours, costs half of the decoding (measured on two cores), and more
# where others want the cores, too. Read when polars is imported.
os.environ.setdefault("POLARS_MAX_THREADS", "1")

# Which module has which commands: only the one that is asked for is imported, so that commands are quick.
MODULES: Final = {
    "operate": ("up", "run", "provision", "migrate", "rebuild"),
    "about": ("settings", "version"),
    "query": ("nodes", "links", "jobs", "why", "topics", "sql", "queries", "report"),
    "jobs": ("submit", "cancel"),
    "deadletter": ("dead-letter",),
    "import_": ("import",),
    "demo": ("demo",),
}


def make_app(word: str = "") -> typer.Typer:
    """The application: with the module of the command `word` only, or with all of them for any other word."""
    app = typer.Typer(
        no_args_is_help=True,
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Schedules accelerator cards and network bandwidth as one decision, on an event stream.",
    )

    @app.callback()
    def _group(
        version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
    ) -> None:  # a callback, so that a single command is still named
        if version:
            typer.echo(VERSION)
            raise typer.Exit

    for module, words in MODULES.items():
        if word in words or not any(word in w for w in MODULES.values()):
            import_module(f"infra.cli.{module}").register(app)
    return app


def main() -> None:
    """Console script."""
    make_app(sys.argv[1] if len(sys.argv) > 1 else "")()
