"""Inserts a planned range, and makes sure of it when nobody knows whether an insert happened.

A token says that an insert was begun, not that its rows are there: a server that dies between noting the token and
renaming the part into place keeps the token and loses the rows. So an uncertain range is inserted again under its tokens and then
counted; what is missing is inserted under a fresh token, and rows too many stop everything.
"""

import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Final

from connectors.clickhouse._batch import Batch, Framed, Part
from connectors.clickhouse.client import BadData, Database
from schemas.codec import decode_rows
from schemas.errors import Fatal, LockstepError, Poison
from schemas.messages import Block, TopicPartition

_log = logging.getLogger("lockstep.land")
# Filling and counting in turn: more rounds than this mean that rows vanish.
FILLS: Final = 3


class Inserting:
    """Inserts batches into one database."""

    def __init__(self, database: Database, cluster: str) -> None:
        self._db = database
        self._cluster = cluster

    def newest(self, tp: TopicPartition, tables: Sequence[str]) -> int:
        """The newest offset of a partition that any of the tables holds, -1 for none."""
        asked = " UNION ALL ".join(
            f"SELECT max(_offset) AS newest, count() AS n FROM {t} WHERE _topic = {{topic:String}} AND _partition = {{partition:Int32}}"
            for t in tables
        )
        found = self._db.query(
            f"SELECT max(if(n = 0, -1, newest)) FROM ({asked})", {"topic": tp.topic, "partition": tp.partition}
        )
        return int(str(found.rows[0][0]))

    def insert(self, batch: Batch) -> None:
        """Insert what is not yet known to be there. Raises `Transient` when it must be tried again (the batch remembers
        that it is uncertain), `Fatal` when rows are there that should not be."""
        if batch.present:
            self._same_log(batch)
        todo = [part for part in batch.parts if not part.done]
        # The bytes of the next part are made while ClickHouse takes those of this one.
        with ThreadPoolExecutor(1, "framing") as framing:
            following = [framing.submit(_frame, batch, part) for part in todo[:1]]
            for part, after in zip_longest(todo, todo[1:]):
                (framed,) = following
                following = [framing.submit(_frame, batch, after)] if after is not None else []
                self._insert_part(batch, part, framed.result())
        batch.uncertain = False

    def _insert_part(self, batch: Batch, part: Part, framed: Framed) -> None:
        token = batch.token(self._cluster, part)
        _set_aside(batch, part, framed.bad)
        if framed.data:
            try:
                self._insert(part, framed.data, token)
            except LockstepError:
                batch.uncertain = True
                raise
        if batch.uncertain or batch.present:
            self._make_sure(batch, part, token)
        part.done = True

    def _make_sure(self, batch: Batch, part: Part, token: str) -> None:
        """Count the range in the part's table, and fill what is missing."""
        first = token
        for attempt in range(FILLS + 1):
            rows, distinct = self._count(batch, part)
            if rows != distinct or distinct > len(part.offsets):
                raise Fatal(
                    f"{part.table} in {self._db.name} holds {rows} rows of {distinct} messages where "
                    f"{batch.tp.topic}/{batch.tp.partition} from {part.offsets[0]} to {part.offsets[-1]} has {len(part.offsets)}: "
                    "something else writes into this table, or the log was replaced; landing stops before it makes this worse"
                )
            if distinct == len(part.offsets):
                return
            if attempt == FILLS:
                break
            self._db.kill(_ids(first))  # an earlier insert must not arrive after the count
            missing = frozenset(part.offsets) - self._there(batch, part)
            if not missing:
                continue
            if not batch.present:
                _log.warning(
                    "%s: %d rows were missing after an uncertain insert; inserting them", part.table, len(missing)
                )
            framed = part.frame(batch.tp, missing)
            _set_aside(batch, part, framed.bad)
            if framed.data:
                self._insert(part, framed.data, f"{batch.token(self._cluster, part)}|fill|{uuid.uuid4().hex[:12]}")
                batch.filled += len(missing) - len(framed.bad)
        raise Fatal(
            f"rows of {part.table} in {self._db.name} vanish as soon as they are inserted; is a TTL or a mutation at work?"
        )

    _RANGE: Final = "WHERE _topic = {topic:String} AND _partition = {partition:Int32} AND _offset BETWEEN {first:Int64} AND {last:Int64} AND _schema_id = {schema:Int32}"

    def _range(self, batch: Batch, part: Part) -> dict[str, object]:
        return {
            "topic": batch.tp.topic, "partition": batch.tp.partition, "first": part.offsets[0], "last": part.offsets[-1],
            "schema": part.schema_id,
        }  # fmt: skip

    def _count(self, batch: Batch, part: Part) -> tuple[int, int]:
        if not part.offsets:
            return 0, 0
        found = self._db.query(
            f"SELECT count(), uniqExact(_offset) FROM {part.table} {self._RANGE}", self._range(batch, part)
        )
        return int(str(found.rows[0][0])), int(str(found.rows[0][1]))

    def _there(self, batch: Batch, part: Part) -> frozenset[int]:
        found = self._db.query(f"SELECT _offset FROM {part.table} {self._RANGE}", self._range(batch, part))
        return frozenset(int(str(r[0])) for r in found.rows)

    def _insert(self, part: Part, rows: bytes, token: str) -> None:
        try:
            self._db.insert_arrow(part.table, rows, token, _new_id(token))
        except BadData as e:
            raise Fatal(f"{part.table} in {self._db.name} refuses rows that are as their schema says: {e}") from e

    def _same_log(self, batch: Batch) -> None:
        """Rows were landed before by someone whose position is gone. They must be rows of this very log: an entry at the
        same offset has the same time. Raises `Fatal` when not."""
        for part in batch.parts:
            if not part.offsets:
                continue
            found = self._db.query(
                f"SELECT _offset, toUnixTimestamp64Milli(at) FROM {part.table} {self._RANGE} ORDER BY _offset LIMIT 1000",
                self._range(batch, part),
            )
            there = {int(str(offset)): int(str(at)) for offset, at in found.rows}
            chosen = [i for i, o in enumerate(part.offsets) if o in there]
            block = Block(
                batch.tp.topic, batch.tp.partition, [part.values[i] for i in chosen], 0,
                offsets=[part.offsets[i] for i in chosen],
            )  # fmt: skip
            for i, row in decode_rows(block).rows:
                offset = part.offsets[chosen[i]]
                if row.at != there[offset]:
                    raise Fatal(
                        f"{self._db.name} holds rows of another log: {part.table} at {batch.tp.topic}/{batch.tp.partition}@{offset} "
                        "has another time than the message there; land this log into a database of its own"
                    )


def _frame(batch: Batch, part: Part) -> Framed:
    """What is to be inserted of a part; nothing when only what is missing will be."""
    return Framed(b"", []) if batch.present else part.frame(batch.tp)


def _set_aside(batch: Batch, part: Part, bad: Sequence[tuple[int, Poison]]) -> None:
    """Take messages that no one can read out of the part; they become dead letters."""
    if not bad:
        return
    wrong = dict(bad)
    for source in batch.blocks:
        batch.poison += [(source, i, wrong[offset]) for i, offset in enumerate(source.offsets) if offset in wrong]
    kept = [i for i, o in enumerate(part.offsets) if o not in wrong]
    part.offsets, part.values = [part.offsets[i] for i in kept], [part.values[i] for i in kept]


def _ids(token: str) -> str:
    """How the ids of all tries with this token begin, so that they can be ended."""
    return f"land|{token}|"


def _new_id(token: str) -> str:
    """The id of one try: a server refuses an id that is still at work, as after a time-out that only the client saw."""
    return f"{_ids(token)}{uuid.uuid4().hex[:8]}"
