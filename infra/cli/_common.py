"""What all commands share: settings from flags, errors as one sentence with an exit code, tables or JSON.

Exit codes: 0 done; 1 failed, trying again may help; 2 wrong input, nothing was changed; 3 not found, or done in part; 4 a newer
process took over.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Final, ParamSpec, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from infra.settings import Loaded, load
from schemas.errors import Fenced, LockstepError, NotFound, Refused

P = ParamSpec("P")
R = TypeVar("R")
FAILED: Final = 1
WRONG: Final = 2
PARTLY: Final = 3
FENCED: Final = 4
GIBIBYTE: Final = 1 << 30

Data = Annotated[Path | None, typer.Option("--data", help="Lockstep's data folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output, nothing else.")]
_out = Console()
_err = Console(stderr=True)


def settings_of(data: Path | None = None, **flags: object) -> Loaded:
    """Settings with a command's flags on top."""
    return load({"data_dir": data, **flags})


def fail(message: str, code: int) -> typer.Exit:
    """One sentence on standard error, and the exit to raise."""
    sys.stdout.flush()
    _err.print(
        f"lockstep: {message}",
        style="red" if code != PARTLY else "yellow",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return typer.Exit(code)


@contextmanager
def told() -> Iterator[None]:
    """Turns Lockstep's errors into a sentence and an exit code."""
    try:
        yield
    except Refused as e:
        raise fail(str(e), WRONG) from e
    except NotFound as e:
        raise fail(str(e), PARTLY) from e
    except Fenced as e:
        raise fail(str(e), FENCED) from e
    except LockstepError as e:
        raise fail(str(e), FAILED) from e
    except BrokenPipeError:
        # `lockstep jobs | head`: whoever reads has enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except OSError as e:
        what = f"{e.filename}: {e.strerror}" if e.filename and e.strerror else str(e)
        raise fail(what, FAILED) from e


def command(work: Callable[P, R]) -> Callable[P, R]:
    """A command under `told`."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with told():
            return work(*args, **kwargs)

    return run


def say(text: str, style: str = "") -> None:
    """A line for people, on standard output."""
    _out.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """A line for people beside the answer: on standard error, so that pipes get the answer only."""
    sys.stdout.flush()
    _err.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def as_json(value: object) -> None:
    """JSON on standard output. Times as ISO 8601, bytes as hex."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = (), title: str = "") -> None:
    """A table for people. On a terminal it fits the screen; into a pipe every cell is whole."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if v is None else str(v) for v in row))
    console = _out if _out.is_terminal else Console(width=10_000)
    console.print(shown, highlight=False)


def moment(at_ms: int) -> str:
    """A time for people, in UTC; empty for none."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if at_ms > 0 else ""


def span(ms: int) -> str:
    """`93000` to `1m 33s`."""
    s = max(0, ms) // 1000
    for width, unit, below, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if s >= width:
            rest = s % width // below
            return f"{s // width}{unit}" + (f" {rest}{small}" if rest else "")
    return f"{s}s"


def count_of(number: int, one: str, many: str = "") -> str:
    """`1 node`, `1,213 nodes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def log_to_stderr(level: str) -> None:
    """The process's log: one line each, with time and part."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", force=True
    )
    for noisy in ("httpx", "httpx2", "httpcore", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def mapping_of(pairs: Sequence[str], what: str) -> Mapping[str, str]:
    """`name=value` arguments. Raises `Refused` for others."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Refused(f"{what} {pair!r} must look like name=value")
        found[name] = value
    return found
