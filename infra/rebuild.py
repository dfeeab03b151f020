"""Fills an empty ClickHouse from the log again: `lockstep rebuild`, after its data is lost or its tables are to be made anew.

It only sets landing back to the beginning of its topics; `land` does the rest when it runs. It never touches rows, and refuses
while there are any: landed twice, they would be there twice.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from connectors.clickhouse.client import Database
from connectors.clickhouse.landing import GROUP, TABLES
from infra.settings import Settings
from schemas.errors import Refused
from schemas.log import Log
from schemas.messages import Committed, TopicPartition

# A member that died without leaving is thrown out after 10 s on Kafka; then its partitions are ours.
JOIN_S: Final = 30.0
LOOK_MS: Final = 100
CLOSE_MS: Final = 5_000


class _Nobody:
    """A listener that has nothing to restore."""

    def assigned(self, committed: Mapping[TopicPartition, Committed | None]) -> Mapping[TopicPartition, int]:
        return {}

    def revoked(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None: ...


def rebuild(settings: Settings, log: Log, database: Database, *, dry_run: bool) -> dict[str, int]:
    """Set landing back to the beginning. Returns how many messages will land, by topic (transaction markers included).

    Raises `Refused` while tables hold rows or another process lands, `Transient` when log or ClickHouse are away."""
    tables = sorted({table for by_record in TABLES.values() for table in by_record.values()})
    held = [(t, n) for t in tables if (n := int(str(database.query(f"SELECT count() FROM {t}").rows[0][0])))]  # noqa: S608 - names of ours
    if held:
        table, n = max(held, key=lambda h: h[1])
        raise Refused(
            f"ClickHouse ({database.name}) holds rows already, {n:,} of them in {table}; what is there lands no second time. "
            f"To make it anew: DROP DATABASE {database.database}, then `lockstep migrate` and this again"
        )
    spans = {TopicPartition(topic, p): span for topic in TABLES for p, span in log.span(topic).items()}
    if not dry_run:
        _set_back(settings, log, {tp: Committed(span.begin) for tp, span in spans.items()})
    found: dict[str, int] = {}
    for tp, span in spans.items():
        found[tp.topic] = found.get(tp.topic, 0) + span.end - span.begin
    return found


def _set_back(settings: Settings, log: Log, positions: Mapping[TopicPartition, Committed]) -> None:
    # The slot's name: an older lander of it that still runs is fenced, and cannot commit its own position over ours.
    member = log.member(GROUP, tuple(TABLES), _Nobody(), owner=f"{GROUP}.{settings.slot}")
    try:
        end = time.monotonic() + JOIN_S
        while member.assignment() != positions.keys():
            if time.monotonic() > end:
                raise Refused("another process lands (`lockstep run land`, `lockstep up`); stop it first")
            member.poll(1, LOOK_MS)
        member.commit(positions)
    finally:
        member.close(CLOSE_MS)
