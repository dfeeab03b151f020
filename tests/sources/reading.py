"""Reads a fixture as `lockstep import` would, at a fixed time. Shared by the tests of all sources."""

from pathlib import Path

from connectors.sources.found import Found, Setting
from connectors.sources.importing import Tool, read_file

FIXTURES = Path(__file__).parent / "fixtures"
NOW = 1_800_000_000_000  # 2027-01-15, after every sample
SETTING = Setting("default", NOW)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def read(tool: Tool, name: str, setting: Setting = SETTING) -> Found:
    return read_file(tool, FIXTURES / name, setting)


def read_text(tool: Tool, text: str, folder: Path, setting: Setting = SETTING) -> Found:
    path = folder / "given"
    path.write_text(text)
    return read_file(tool, path, setting)


def reasons(found: Found) -> list[str]:
    """Why items were left out."""
    return [r.reason for r in found.remarks if not r.used]
