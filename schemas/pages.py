"""Pages of the docs that are made from tables in the code: written, or held to what they must be. Used by each page's module."""

import sys
from collections.abc import Sequence
from pathlib import Path


def keep(page: Path, text: str, module: str, arguments: Sequence[str]) -> int:
    """Write the page; with `--check` only say when it is not current. The exit code: 0 current or written, 1 stale."""
    if "--check" not in arguments:
        page.write_text(text, "utf-8")
        return 0
    if page.is_file() and page.read_text("utf-8") == text:
        return 0
    sys.stderr.write(f"docs/{page.name} is stale: run python -m {module}\n")
    return 1
