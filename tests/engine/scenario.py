"""Scenario files: a map and events in, the ledger and its commands as text out.

    # what the scenario shows
    start_timeout=120 …            EngineConfig, seconds (optional)
    0s node n1,n2 rack=r1 cards=8
    0s submit j1 members=2 cards=4
    5s receipt j1 n1 started
    60s tick
    ---
    the ledger that must come of it

Lines of one time are one batch: all are accepted, then one round is decided. Used by `test_scenarios`; knows nothing of
what is right.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from schemas.errors import Poison
from schemas.records import (
    CapacityQuarantined,
    Command,
    JobAccepted,
    JobCancelled,
    JobCancelRequested,
    JobEnded,
    JobInterrupted,
    JobPending,
    JobPlaced,
    JobProgress,
    JobProgressed,
    JobRefused,
    JobStarted,
    JobSubmitted,
    LedgerEntry,
    MixLearned,
    NodeChanged,
    NodeRecorded,
    Receipt,
    ReceiptRecorded,
)
from streams.engine import EngineConfig, State, accept, commands, decide, evolve, restore, snapshot
from tests.engine.rows import DOMAIN, NOW, cancel, job, node, progress, receipt

Input = NodeChanged | JobSubmitted | JobCancelled | Receipt | JobProgress


class Event(NamedTuple):
    """One line: seconds after the start, and the input (None: a tick)."""

    seconds: float
    row: Input | None


class Scenario(NamedTuple):
    path: Path
    config: EngineConfig
    events: list[Event]
    expected: str


def load(path: Path) -> Scenario:
    given, _, expected = path.read_text().partition("\n---\n")
    events: list[Event] = []
    options: dict[str, int] = {}
    described: dict[str, dict[str, str]] = {}
    for line in given.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].endswith("s") and words[0][:-1].replace(".", "").isdigit():
            events += [Event(float(words[0][:-1]), row) for row in _rows(words, described)]
        else:
            for word in words:
                name, _, value = word.partition("=")
                options[name if name == "max_attempts" else f"{name}_ms"] = int(value) * (
                    1 if name == "max_attempts" else 1000
                )
    return Scenario(path, EngineConfig(**options), events, expected)


def _rows(words: list[str], described: dict[str, dict[str, str]]) -> Iterator[Input | None]:
    at = NOW + int(float(words[0][:-1]) * 1000)
    what, rest = words[1], words[2:]
    plain = [w for w in rest if "=" not in w]
    given = {k: v for k, _, v in (w.partition("=") for w in rest if "=" in w)}
    if what == "tick":
        yield None
    elif what == "node":
        for name in plain[0].split(","):
            # A later line about a node changes only what it names.
            described[name] = {**described.get(name, {}), **given}
            values = {k: _value(k, v) for k, v in described[name].items()}
            yield node(name, at=at, **values)  # type: ignore[arg-type]
    elif what == "submit":
        at = NOW + int(float(given.pop("sent", words[0]).rstrip("s")) * 1000)
        yield job(plain[0], at=at, **{k: _value(k, v) for k, v in given.items()})  # type: ignore[arg-type]
    elif what == "cancel":
        yield cancel(plain[0], at=at)
    elif what == "progress":
        yield progress(plain[0], float(plain[1]), at=at, checkpoint=given.get("checkpoint", ""))
    elif what == "receipt":
        for where in plain[1].split(","):
            yield receipt(
                plain[0], where, plain[2], attempt=int(given.get("attempt", "1")), exit_code=int(given.get("exit", "0")), at=at,
                reason=given.get("reason", "").replace("_", " "),
            )  # fmt: skip
    else:
        raise ValueError(f"no such event: {' '.join(words)}")


def _value(name: str, text: str) -> str | int | float | tuple[str, ...]:
    if name == "models":
        return tuple(text.split(","))
    if name in ("members", "priority", "card_memory", "healthy") or (name == "cards" and "." not in text):
        return int(text)
    if name in ("cards", "cpu", "memory", "limit"):
        return float(text)
    return text


def play(scenario: Scenario, *, restarts: bool = False) -> tuple[str, list[LedgerEntry]]:
    """The ledger as text. `restarts`: after every batch the state is thrown away and restored from its snapshot."""
    state = State.empty(DOMAIN)
    lines: list[str] = []
    ledger: list[LedgerEntry] = []

    def write(entries: list[LedgerEntry]) -> None:
        for e in entries:
            ledger.append(e)
            lines.append(_entry(e))
            lines.extend(f"        > {_command(c)}" for c in commands(state, e))

    for seconds, batch in groupby(scenario.events, key=lambda e: e.seconds):
        now = NOW + int(seconds * 1000)
        lines.append(f"{seconds:g}s")
        for event in batch:
            if event.row is not None:
                try:
                    write(accept(state, event.row, "", now))
                except Poison as poison:
                    lines.append(f"    poison {poison.code}: {poison.reason}")
        write(decide(state, now, scenario.config))
        if restarts:
            state = restore(snapshot(state))
    replayed = State.empty(DOMAIN)
    for e in ledger:
        evolve(replayed, e)
    assert snapshot(replayed) == snapshot(state)
    return "\n".join(lines) + "\n", ledger


def _entry(e: LedgerEntry) -> str:
    match e:
        case NodeRecorded():
            cards = f"{e.cards} {e.card_model}" if e.cards else "no cards"
            broken = f", {e.cards_healthy} healthy" if e.cards_healthy < e.cards else ""
            text = f"{e.node} {e.state}: {cards}{broken}"
        case JobAccepted():
            text = f"{e.job}: {e.members} × {e.cards_milli / 1000:g} cards" + (
                f" in one {e.adjacency}" if e.adjacency else ""
            )
        case JobRefused():
            text = f"{e.job}: {e.code}: {e.reason}"
        case JobPending():
            text = f"{e.job}#{e.attempt} is {e.position}. in line: {e.code}: {e.reason}"
        case JobPlaced():
            where = " ".join(
                f"{n}×{m}[{_mask(mask)}]" for n, m, mask in zip(e.nodes, e.members_on_node, e.card_masks, strict=True)
            )
            text = f"{e.job}#{e.attempt} on {where} in {e.level} {e.place}, waited {e.waited_ms / 1000:g}s: {e.reason}"
        case JobCancelRequested():
            text = f"{e.job} by {e.user}: {e.reason}"
        case ReceiptRecorded():
            text = f"{e.job}#{e.attempt} {e.node} {e.kind}" + (f" exit {e.exit_code}" if e.exit_code else "")
        case JobStarted():
            text = f"{e.job}#{e.attempt}, waited {e.waited_ms / 1000:g}s"
        case JobProgressed():
            text = f"{e.job}#{e.attempt} {e.progress_fraction:g} {e.checkpoint}"
        case JobInterrupted():
            text = f"{e.job}#{e.attempt} after {e.ran_ms / 1000:g}s: {e.code}: {e.reason}" + (
                "; waits again" if e.requeued else ""
            )
        case JobEnded():
            text = (
                f"{e.job}#{e.attempt} {e.outcome}, waited {e.waited_ms / 1000:g}s, ran {e.ran_ms / 1000:g}s: {e.reason}"
            )
        case CapacityQuarantined():
            text = f"{e.job}#{e.attempt} on {e.node}[{_mask(e.card_mask)}]: {e.reason}"
        case MixLearned():
            text = f"from {e.arrivals} jobs of {e.kinds} kinds"
        case _:
            text = ""
    return f"  {e.seq:>3} {type(e).__name__} {text}"


def _command(c: Command) -> str:
    members = f" {c.members} members" if c.kind == "start" else ""
    return f"{c.kind} {c.job}#{c.attempt} on {c.node}[{_mask(c.card_mask)}]{members}"


def _mask(mask: int) -> str:
    return ",".join(str(i) for i in range(64) if mask >> i & 1)
