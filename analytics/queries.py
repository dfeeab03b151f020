"""Named queries: one `.sql` file each in `analytics/queries`, with a first line that says what it answers.

`lockstep queries`, the report and tests run them. Parameters are declared in the file: `-- param name Type = default`; a
parameter without a default must be given.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final

from connectors.clickhouse.client import Database, Table
from schemas.errors import Refused

_PARAM: Final = re.compile(r"-- param (\w+) (\w+)(?: = (.*))?")
_NUMBER: Final = re.compile(r"U?Int\d+")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that a query takes; `default` None: it must be given."""

    name: str
    type: str
    default: str | None


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query, what it answers, and what it takes."""

    name: str
    title: str
    sql: str
    parameters: tuple[Parameter, ...]

    def values(self, given: Mapping[str, str]) -> dict[str, object]:
        """Parameter values for the client. Raises `Refused` for unknown, missing and ill-typed ones."""
        known = {p.name: p for p in self.parameters}
        for name in given:
            if name not in known:
                takes = ", ".join(known) or "no parameters"
                raise Refused(f"query {self.name} has no parameter {name!r}; it takes {takes}")
        values: dict[str, object] = {}
        for p in self.parameters:
            value = given.get(p.name, p.default)
            if value is None:
                raise Refused(f"query {self.name} needs a value for {p.name} ({p.type}): {p.name}=…")
            if _NUMBER.fullmatch(p.type):
                if not value.isdigit():
                    raise Refused(f"{p.name} of query {self.name} must be a whole number ({p.type}), not {value!r}")
                values[p.name] = int(value)
            else:
                values[p.name] = value
        return values


def parse(name: str, text: str) -> NamedQuery:
    """A query from its file."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("-- "):
        raise Refused(f"query {name} does not begin with a comment that says what it answers")
    parameters = tuple(Parameter(*m.groups()) for line in lines if (m := _PARAM.fullmatch(line)))
    sql = "\n".join(line for line in lines if not line.startswith("--"))
    return NamedQuery(name, lines[0].removeprefix("-- "), sql.strip(), parameters)


@cache
def queries() -> Mapping[str, NamedQuery]:
    """All packaged queries by name."""
    folder = files("analytics").joinpath("queries")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return {(n := f.name.removesuffix(".sql")): parse(n, f.read_text("utf-8")) for f in found}


def query(name: str) -> NamedQuery:
    """Raises `Refused` for a name that no query has, with the nearest ones."""
    found = queries().get(name)
    if found is None:
        near = get_close_matches(name, queries(), 3)
        raise Refused(
            f"there is no query {name!r}; "
            + (f"did you mean {' or '.join(near)}?" if near else "see `lockstep queries`")
        )
    return found


def run(db: Database, name: str, given: Mapping[str, str] | None = None) -> Table:
    """Answer a named query."""
    asked = query(name)
    return db.query(asked.sql, asked.values(given or {}), read_only=True)
