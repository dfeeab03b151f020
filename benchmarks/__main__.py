"""`python -m benchmarks NAME [--json FILE] [--quick]`: run one benchmark, show its figures.

Without a name: the list. `--quick` takes small sizes and few runs: it shows that the benchmark works, not how fast
anything is.
"""

import argparse
import sys
from pathlib import Path
from typing import cast

from rich.console import Console

from benchmarks import _frame


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; the exit code."""
    known = _frame.names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure one part of Lockstep.")
    parser.add_argument("name", nargs="?", choices=known, help="which benchmark; none: list them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures and the machine to FILE")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.name is None:
        for name in known:
            console.print(f"[bold]{name:<10}[/] {_frame.about(name)}", highlight=False)
        return 0
    result = _frame.measure(asked.name, quick=asked.quick)
    _frame.show(console, asked.name, cast(dict[str, float], result["figures"]))
    machine = cast(dict[str, object], result["machine"])
    console.print(", ".join(f"{k} {v}" for k, v in machine.items()), style="dim", highlight=False)
    if asked.json:
        _frame.write(asked.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
