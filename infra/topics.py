"""Topics as people see them: what they hold, and how far their readers are. Used by `infra.questions`."""

from schemas.log import Log
from schemas.messages import TopicPartition
from schemas.topics import TOPICS


def topic_rows(log: Log, domain: str) -> list[dict[str, object]]:
    """Topics with their size in offsets, and each reading group's distance to the end."""
    groups = {"observe": "observe", "decide": f"decide.{domain}", "land": "land"}
    rows: list[dict[str, object]] = []
    for spec in TOPICS:
        spans = log.span(spec.name)
        behind: dict[str, int] = {}
        for reader in spec.readers:
            # The engine reads its own ledger only to restore, observe its changelog likewise: they hold no position there.
            own = (reader, spec.name) in {("decide", "ledger"), ("observe", "changes")}
            if reader not in groups or own:
                continue
            where = {TopicPartition(spec.name, p): s for p, s in spans.items()}
            committed = log.committed(groups[reader], list(where))
            behind[reader] = sum(
                max(0, span.end - (span.begin if (c := committed[tp]) is None else c.offset))
                for tp, span in where.items()
            )
        rows.append(
            {
                "topic": spec.name, "partitions": len(spans), "messages": sum(s.end - s.begin for s in spans.values()),
                "behind": behind, "writers": list(spec.writers), "readers": list(spec.readers), "cleanup": spec.cleanup,
                "retention_ms": spec.retention_ms, "purpose": spec.purpose,
            }
        )  # fmt: skip
    return rows
