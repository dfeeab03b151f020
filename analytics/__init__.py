"""What is asked of the landed ledger: migrations, named queries and reports, as SQL files with thin Python around them."""

from importlib.resources import files

from connectors.clickhouse.migrate import Migration, migration


def migrations() -> tuple[Migration, ...]:
    """The packaged migrations in order."""
    folder = files("analytics").joinpath("migrations")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(migration(f.name, f.read_text("utf-8")) for f in found)
