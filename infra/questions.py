"""Everything a person may ask or tell: one method each, plain data in, plain data out.

The running process's API serves these methods, and a command answers with them itself when nothing runs (`infra.client`
chooses), so that both ways give the same.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from hashlib import sha256
from typing import Final, NamedTuple

from analytics import page as the_page
from analytics import queries as named
from analytics import report as the_report
from connectors.clickhouse.client import Table
from infra.follower import PARTITION, Follower
from infra.settings import Settings
from infra.submission import complete, spec_of
from infra.topics import topic_rows
from infra.wire import MAX_ROWS, now_ms
from infra.wiring import SharedDatabase, append
from schemas.codec import decode, decode_rows, encode
from schemas.dead_letters import MAX_REPLAYS, replay
from schemas.errors import LockstepError, NotFound, Poison, Refused, Where
from schemas.log import Log
from schemas.messages import Record, TopicPartition
from schemas.records import DeadLetter, JobCancelled, JobRefused
from streams.engine import inspect, never_grantable
from streams.replay import read_up_to

Answer = dict[str, object]
FLUSH_MS: Final = 10_000
LOOK_S: Final = 0.05
OPEN_STATES: Final = ("pending", "placed", "running")
STATES: Final = ("open", *OPEN_STATES, "finished", "failed", "cancelled")
# Dead letters may have 8 MiB each: so many are read at once, and so many bytes are sent back in one go.
LETTERS_AT_ONCE: Final = 8
REPLAY_BYTES: Final = 8 << 20
# Chosen letters with fewer between them are read through: quicker than a reader for each.
NEAR: Final = 64


class _At(NamedTuple):
    """Where a dead letter is."""

    partition: int
    offset: int


class Questions:
    """Answers about one domain on one log and one ClickHouse. Thread-safe."""

    def __init__(self, settings: Settings, log: Log, database: SharedDatabase, *, running: bool) -> None:
        self._settings = settings
        self._log = log
        self._database = database
        self._running = running
        self._follower = Follower(settings, log)

    # ---- the map and the jobs, from the ledger ----

    def nodes(self, site: str = "", state: str = "", model: str = "") -> list[Answer]:
        """Nodes now, in topology order."""
        with self._follower.state() as now:
            found = [n._asdict() for n in inspect.nodes(now)]
        return [
            n for n in found
            if (not site or n["site"] == site) and (not state or n["state"] == state) and (not model or n["card_model"] == model)
        ]  # fmt: skip

    def links(self) -> list[Answer]:
        """Links now."""
        with self._follower.state() as now:
            return [link._asdict() for link in inspect.links(now)]

    def jobs(self, state: str = "", user: str = "", queue: str = "", limit: int = 0) -> Answer:
        """Jobs the engine knows, newest first; `state` may be `open`. `total` counts all that fit,
        `at` is the time of the newest ledger entry. Raises `Refused` for no state."""
        if state and state not in STATES:
            near = get_close_matches(state, STATES, 1)
            hint = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(STATES)}"
            raise Refused(f"--state: there is no state {state!r}; {hint}")
        with self._follower.state() as now:
            found = [j._asdict() for j in inspect.jobs(now)]
            at = now.at
        states = OPEN_STATES if state == "open" else (state,)
        kept = [
            j for j in found
            if (not state or j["state"] in states) and (not user or j["user"] == user) and (not queue or j["queue"] == queue)
        ]  # fmt: skip
        kept.reverse()
        return {"total": len(kept), "known": len(found), "at": at, "jobs": kept[:limit] if limit else kept}

    def job(self, job: str) -> Answer:
        """One job. Raises `NotFound`."""
        with self._follower.state() as now:
            found = inspect.job(now, job)
            names = list(now.jobs) if found is None else []
        if found is None:
            raise _not_found(job, names)
        return found._asdict()

    def why(self, job: str) -> Answer:
        """Why a job waits, or what became of it: with its history from the ledger, newest state first."""
        with self._follower.state() as now:
            found = inspect.job(now, job)
            if found is None:
                raise _not_found(job, list(now.jobs))
            blocked = inspect.why(now, job)
            placed = now.jobs[job].ask
        answer: Answer = {**found._asdict(), "asked": placed._asdict(), "now": None}
        if blocked is not None:
            answer["now"] = {"code": blocked.code, "reason": blocked.reason}
        answer["history"] = self._history(job)
        return answer

    def _history(self, job: str) -> list[Answer]:
        """What landed about the job; [] where ClickHouse cannot be asked just now: the answer itself does not need it."""
        try:
            return _dicts(named.run(self._database(), "history", {"job": job}))
        except LockstepError:
            return []

    # ---- telling ----

    def submit(self, fields: Mapping[str, object], wait_ms: int = 0, dry_run: bool = False) -> Answer:
        """Submit a job; `fields` as in a job file. Waits up to `wait_ms` for the engine's answer."""
        spec = spec_of(fields)
        with self._follower.state() as now:
            nodes = list(now.descriptions.values())
            row, inferred = complete(spec, self._settings.domain, now_ms(), nodes)
            if row.job in now.jobs:
                raise Refused(f"job: there is a job {row.job!r} already; choose another id, or leave it out")
        wrong = never_grantable(row)
        if wrong is not None:
            raise Refused(f"{wrong[0]}: {wrong[1]}; nothing was submitted")
        answer: Answer = {
            "job": row.job, "sent": not dry_run, "asked": row._asdict(), "inferred": [i._asdict() for i in inferred],
            "state": "", "code": "", "reason": "", "nodes": [],
        }  # fmt: skip
        if dry_run:
            return answer
        end = self._log.span("ledger")[PARTITION].end
        self._send(Record("jobs", row.job.encode(), encode(row)))
        return self._answered(answer, row.job, end, wait_ms)

    def _answered(self, answer: Answer, job: str, since: int, wait_ms: int) -> Answer:
        until = time.monotonic() + wait_ms / 1000
        while True:
            with self._follower.state() as now:
                found = inspect.job(now, job)
            if found is not None and (found.state != "pending" or found.code):
                return answer | {
                    "state": found.state,
                    "code": found.code,
                    "reason": found.reason,
                    "nodes": list(found.nodes),
                }
            if found is not None:
                answer |= {"state": found.state}
            refused = self._refused(job, since) if found is None else None
            if refused is not None:
                return answer | {"state": "refused", "code": refused.code, "reason": refused.reason}
            if time.monotonic() >= until:
                return answer
            time.sleep(LOOK_S)

    def _refused(self, job: str, since: int) -> JobRefused | None:
        """The refusal of a job, which leaves no trace in the state."""
        end = self._log.span("ledger")[PARTITION].end
        for block in read_up_to(self._log, TopicPartition("ledger", PARTITION), since, end):
            for _, row in decode_rows(block).rows:
                if isinstance(row, JobRefused) and row.job == job:
                    return row
        return None

    def cancel(self, job: str, user: str, reason: str = "", wait_ms: int = 0) -> Answer:
        """Ask for the end of a job. Raises `NotFound`, and `Refused` for one that has ended."""
        before = self.job(job)
        if before["state"] not in OPEN_STATES:
            raise Refused(f"job {job} is over already: {before['state']}")
        row = JobCancelled(job, now_ms(), self._settings.domain, user, reason)
        self._send(Record("jobs", job.encode(), encode(row)))
        until = time.monotonic() + wait_ms / 1000
        while (after := self.job(job))["state"] in OPEN_STATES and time.monotonic() < until:
            time.sleep(LOOK_S)
        return {"job": job, "sent": True, "state": after["state"], "reason": after["reason"]}

    def _send(self, *records: Record) -> None:
        append(self._log, "cli", records, FLUSH_MS)

    # ---- ClickHouse ----

    def sql(self, query: str, max_rows: int = MAX_ROWS) -> Answer:
        """Rows of a person's SELECT."""
        return _table(self._database().query(query, read_only=True, max_rows=max_rows))

    def queries(self) -> list[Answer]:
        """The named queries."""
        return [
            {"name": q.name, "title": q.title, "parameters": [asdict(p) for p in q.parameters]}
            for q in named.queries().values()
        ]

    def query(self, name: str, parameters: Mapping[str, str]) -> Answer:
        """The answer of a named query."""
        return {"title": named.query(name).title, **_table(named.run(self._database(), name, parameters))}

    def report(self, html: bool = False, width: int = 100) -> Answer:
        """The report, as text for a terminal or as a page."""
        told = the_report.collect(self._database())
        return {"report": the_page.page(told) if html else the_report.terminal(told, width)}

    # ---- the log ----

    def topics(self) -> list[Answer]:
        """Topics, and how far their readers are."""
        return topic_rows(self._log, self._settings.domain)

    def dead_letters(self, topic: str = "", code: str = "", limit: int = 0) -> Answer:
        """Dead letters, newest first; `total` counts all that fit. `id` names one."""
        newest: deque[Answer] = deque(maxlen=limit or None)
        total = 0
        for at, letter in self._letters():
            if _fits(letter, topic, code):
                total += 1
                newest.append(_shown(at.offset, letter))
        return {"total": total, "letters": [*reversed(newest)]}

    def dead_letter(self, id: int) -> Answer:  # noqa: A002 - what people call it
        """One dead letter, whole. Raises `NotFound`."""
        letter = next((found for _, found in self._these([self._at(id)])), None)
        if letter is None:
            raise _no_letter(id)
        key, value = letter.key or b"", letter.value or b""
        return {
            **_shown(id, letter), "key": key.decode(errors="replace"), "value_hex": value.hex(),
            "value_text": value.decode(errors="replace"), "bytes": len(value), "readable_now": _readable(letter),
        }  # fmt: skip

    def dead_letter_replay(
        self, ids: Sequence[int] = (), topic: str = "", code: str = "", limit: int = MAX_REPLAYS, dry_run: bool = False
    ) -> list[Answer]:
        """Send messages back to the topics they came from: these ids, or all that were never replayed of a topic or code.

        A message replayed `limit` times is left alone. Raises `NotFound` for an id that is none."""
        if ids:
            chosen = [self._at(i) for i in ids]
            there = {at for at, _ in self._these(sorted(chosen))}
            for at in chosen:
                if at not in there:
                    raise _no_letter(at.offset)
        elif topic or code:
            chosen = self._never_replayed(topic, code)
        else:
            raise Refused("say which dead letters: ids, --topic or --code")
        told: list[Answer] = []
        records: list[Record] = []
        size = 0
        for at, letter in self._these(chosen):
            row = _shown(at.offset, letter)
            told.append(row)
            try:
                record = replay(letter, limit)
            except Refused as e:
                row |= {"action": "left alone", "why": str(e)}
                continue
            row |= {"action": "would be replayed" if dry_run else "replayed", "readable_now": _readable(letter)}
            if dry_run:
                continue
            records.append(record)
            size += len(record.key or b"") + len(record.value or b"")
            if size >= REPLAY_BYTES:
                self._send(*records)
                records, size = [], 0
        if records:
            self._send(*records)
        return told

    def _never_replayed(self, topic: str, code: str) -> list[_At]:
        """Letters that fit and stand for their message: no newer one says that it came back once more and was refused again."""
        # Of what does not fit, too, and by content, because a replayed message has another position; of each letter a digest only.
        last: dict[tuple[str, int, int], _At] = {}
        most: dict[bytes, int] = {}
        fitting: list[tuple[_At, tuple[str, int, int], bytes, int]] = []
        for at, letter in self._letters():
            place, content = _place(letter), _digest(letter)
            last[place] = at
            most[content] = max(most.get(content, 0), letter.replays)
            if _fits(letter, topic, code):
                fitting.append((at, place, content, letter.replays))
        return [at for at, place, content, replays in fitting if last[place] == at and replays >= most[content]]

    def _letters(self) -> Iterator[tuple[_At, DeadLetter]]:
        """All dead letters with their places in the log, oldest first. Each may carry megabytes: keep none."""
        for partition, span in self._log.span("dead-letter").items():
            yield from self._between(partition, span.begin, span.end)

    def _between(self, partition: int, begin: int, end: int) -> Iterator[tuple[_At, DeadLetter]]:
        at_once = min(LETTERS_AT_ONCE, end - begin)
        for block in read_up_to(self._log, TopicPartition("dead-letter", partition), begin, end, at_once):
            for i, row in decode_rows(block).rows:
                if isinstance(row, DeadLetter) and block.offsets[i] < end:
                    yield _At(partition, block.offsets[i]), row

    def _these(self, chosen: Sequence[_At]) -> Iterator[tuple[_At, DeadLetter]]:
        """Letters at these places, in their order. Runs of near ones are read in one go."""
        runs: list[list[_At]] = []
        for at in chosen:
            before = runs[-1][-1] if runs else _At(-1, -1)
            if at.partition == before.partition and 0 < at.offset - before.offset <= NEAR:
                runs[-1].append(at)
            else:
                runs.append([at])
        for run in runs:
            wanted = set(run)
            for at, letter in self._between(run[0].partition, run[0].offset, run[-1].offset + 1):
                if at in wanted:
                    yield at, letter

    def _at(self, letter: int) -> _At:
        """The place of an id, which is its offset: the topic has one partition."""
        for partition, span in self._log.span("dead-letter").items():
            if span.begin <= letter < span.end:
                return _At(partition, letter)
        raise _no_letter(letter)

    def status(self) -> Answer:
        """Who answers."""
        return {"running": self._running, "domain": self._settings.domain, "log": self._settings.log_name}


def _not_found(job: str, names: Sequence[str]) -> NotFound:
    near = get_close_matches(job, names, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`lockstep jobs` shows those that are known"
    return NotFound(f"there is no job {job!r}; {hint}")


def _no_letter(letter: int) -> NotFound:
    return NotFound(f"there is no dead letter {letter}; `lockstep dead-letter list` shows them")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def _table(table: Table) -> Answer:
    return {
        "columns": list(table.columns),
        "types": list(table.types),
        "rows": [[_plain(v) for v in row] for row in table.rows],
    }


def _dicts(table: Table) -> list[Answer]:
    return [{c: _plain(v) for c, v in zip(table.columns, row, strict=True)} for row in table.rows]


def _fits(letter: DeadLetter, topic: str, code: str) -> bool:
    return (not topic or letter.topic == topic) and (not code or letter.code == code)


def _digest(letter: DeadLetter) -> bytes:
    """Of the message as it came: equal ones are the same message, replayed."""
    found = sha256()
    for part in (letter.topic.encode(), letter.key, letter.value):
        # None is not empty, and no length begins with such a byte.
        found.update(b"\xff" if part is None else len(part).to_bytes(8, "big"))
        found.update(part or b"")
    return found.digest()


def _place(letter: DeadLetter) -> tuple[str, int, int]:
    return (letter.topic, letter.partition, letter.offset)


def _shown(offset: int, letter: DeadLetter) -> Answer:
    return {
        "id": offset, "at": letter.at, "topic": letter.topic, "partition": letter.partition, "offset": letter.offset,
        "stage": letter.stage, "code": letter.code, "reason": letter.reason, "schema_id": letter.schema_id, "replays": letter.replays,
    }  # fmt: skip


def _readable(letter: DeadLetter) -> bool:
    """Whether the bytes can be read by this version; impossible values are only found by the processor."""
    try:
        decode(letter.value, Where(letter.topic, letter.partition, letter.offset))
    except Poison:
        return False
    return True
