"""The `lockstep` command. Modules beside this one hold the commands; this one puts them together."""

import typer

from infra.cli import deadletter, jobs, operate, query
from infra.cli import demo as _demo
from infra.cli import import_ as _import
from infra.cli._common import command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Schedules accelerator cards and network bandwidth as one decision, on an event stream.",
)
for _module in (operate, query, jobs, deadletter):
    _module.register(app)
app.add_typer(_import.app, name="import")
app.command("demo")(command(_demo.demo))


def main() -> None:
    """Console script."""
    app()
