"""The page `docs/settings.md`, made from the settings: `python -m infra.settings_page [--check]`.

Called by people after a change to them, and by a test that the page is current. It never describes anything by itself.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from infra.settings import PREFIX, Settings
from schemas.pages import keep

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
_INTRO: Final = """# Settings

Made by `python -m infra.settings_page` from `infra/settings.py`; do not edit.

A flag beats the environment, the environment beats the file, the file beats the default. The file is `lockstep.yaml` in the working folder,
or the one that `LOCKSTEP_CONFIG` names; it has the names of the first column. `lockstep settings` shows what holds and where each value comes
from, secrets hidden. A value that cannot be, and a name that is nearly a setting, are refused with exit code 2.
"""


def _lines() -> Iterator[str]:
    yield _INTRO
    yield "| setting | variable | default | what it is |"
    yield "| --- | --- | --- | --- |"
    for name, info in Settings.model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        shown = f"`{default}`" if default not in ("", {}) else "none"
        flag = " Flag: `--data`." if name == "data_dir" else ""
        yield f"| `{name}` | `{PREFIX}{name.upper()}` | {shown} | {info.description}.{flag} |"
    yield ""
    yield "`kafka_options` and `registry_options` are mappings: in the file as YAML, in the environment as JSON, for example"
    yield """`LOCKSTEP_KAFKA_OPTIONS='{"security.protocol": "SASL_SSL", "sasl.username": "lockstep", "sasl.password": "…"}'`. An option that"""
    yield "contradicts what exactly-once rests on is refused."


def page() -> str:
    """The page as it must be."""
    return "\n".join(_lines()) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; with `--check` only say whether it is current. Exit codes: 0 current or written, 1 stale."""
    return keep(PAGE, page(), "infra.settings_page", sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
