"""The demo's ClickHouse: the engine in its folder, landing on it, and the report over it. Called by `infra.cli.demo`."""

from collections.abc import Mapping
from pathlib import Path

from analytics import page as the_page
from analytics import report as the_report
from connectors.clickhouse.landing import Lander
from infra.settings import Settings
from infra.wiring import open_database
from schemas.codec import snake
from schemas.log import Log
from schemas.records import LEDGER_TYPES
from streams.metrics import Metrics


class ChdbWarehouse:
    """`infra.demo.Warehouse` on chDB."""

    def __init__(self, log: Log, folder: Path) -> None:
        self._database = open_database(Settings.model_validate({"data_dir": folder}))
        # In simulated time nothing is gained by waiting for more rows.
        self._lander = Lander(log, lambda: self._database, "demo", Metrics(), linger_ms=0)

    def step(self, now: int, timeout_ms: int) -> int:
        return self._lander.step(now, timeout_ms)

    def rows(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for record in LEDGER_TYPES:
            ((n,),) = self._database.query(f"SELECT count() FROM {snake(record.__name__)}").rows  # noqa: S608 - our own name
            if n:
                found[record.__name__] = int(str(n))
        return found

    def report(self, page: Path) -> str:
        told = the_report.collect(self._database)
        page.write_text(the_page.page(told), "utf-8")
        return the_report.terminal(told)

    def close(self) -> None:
        self._lander.close(10_000)
        self._database.close()
