"""Brings a database to its numbered migrations, each applied once and remembered with its checksum.

`lockstep migrate`, `lockstep up` and tests call it; what the migrations say is `analytics/migrations`. A statement of a
migration can be run again without harm (`IF NOT EXISTS`), so one that died half-way is simply applied again.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from connectors.clickhouse.client import Database
from schemas.errors import Refused

_FILE: Final = re.compile(r"(\d{3})_([a-z0-9_]+)\.sql")
_TABLE: Final = """CREATE TABLE IF NOT EXISTS {database}.migrations (
  number UInt16 COMMENT 'Number of the migration',
  name String COMMENT 'Its name',
  checksum String COMMENT 'SHA-256 of its text',
  applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When it was applied'
) ENGINE = ReplacingMergeTree ORDER BY number COMMENT 'Migrations that this database has'"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file of SQL. Statements end with `;` at the end of a line."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self) -> list[str]:
        """Its statements, without comments that stand on lines of their own."""
        text = "\n".join(line for line in self.sql.splitlines() if not line.lstrip().startswith("--"))
        return [s.strip() for s in re.split(r";\s*\n", text + "\n") if s.strip()]


@dataclass(frozen=True, slots=True)
class Step:
    """What was, or would be, done with one migration."""

    action: Literal["apply", "keep"]
    number: int
    name: str


def migration(file_name: str, sql: str) -> Migration:
    """A migration from its file. Raises `Refused` for a name that is not `NNN_words.sql`."""
    found = _FILE.fullmatch(file_name)
    if found is None:
        raise Refused(f"{file_name!r} is not the name of a migration; it looks like 007_what_it_does.sql")
    return Migration(int(found[1]), found[2], sql)


def plan(db: Database, migrations: Sequence[Migration]) -> list[Step]:
    """What `migrate` would do. Raises `Refused` when the database and the migrations do not belong together."""
    numbers = [m.number for m in migrations]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Refused(f"migrations must be numbered from 1 without gaps, found {numbers}")
    there = db.query(
        "SELECT count() FROM system.tables WHERE database = {d:String} AND name = 'migrations'", {"d": db.database}
    )
    applied: dict[int, tuple[str, str]] = {}
    if there.rows != [(0,)]:
        found = db.query(f"SELECT number, name, checksum FROM {db.database}.migrations FINAL")
        applied = {int(str(number)): (str(name), str(checksum)) for number, name, checksum in found.rows}
    beyond = sorted(set(applied) - set(numbers))
    if beyond:
        raise Refused(
            f"{db.name} has migration {beyond[0]:03} ({applied[beyond[0]][0]}), which this version does not know: "
            "it was migrated by a newer Lockstep; run that one"
        )
    for m in migrations:
        if m.number in applied and applied[m.number][1] != m.checksum:
            raise Refused(
                f"migration {m.number:03} ({m.name}) was changed after {db.name} had applied it; restore the file and "
                "put the change into a new migration"
            )
    return [Step("keep" if m.number in applied else "apply", m.number, m.name) for m in migrations]


def migrate(db: Database, migrations: Sequence[Migration]) -> list[Step]:
    """Apply what is missing, in order. Safe to call again; raises as `plan`, and as `Database` when a statement fails."""
    db.command(_TABLE.format(database=db.database))
    steps = plan(db, migrations)
    for step, m in zip(steps, migrations, strict=True):
        if step.action == "apply":
            for statement in m.statements():
                db.command(statement)
            db.command(
                f"INSERT INTO {db.database}.migrations (number, name, checksum) "
                "SELECT {number:UInt16}, {name:String}, {checksum:String}",
                {"number": m.number, "name": m.name, "checksum": m.checksum},
            )
    return steps
