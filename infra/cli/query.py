"""Commands that ask: nodes, links, jobs, why, topics, sql, queries, report."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from infra.cli._common import (
    GIBIBYTE,
    PARTLY,
    Data,
    Json,
    as_json,
    command,
    count_of,
    fail,
    mapping_of,
    moment,
    note,
    say,
    settings_of,
    span,
    table,
)
from infra.client import Asked, ask
from infra.wire import MAX_ROWS, now_ms
from schemas.errors import NotFound
from schemas.units import gibibytes

Row = dict[str, Any]  # JSON from either side; shown, never computed with
SHOWN: Final = 50
DAY_MS: Final = 86_400_000
State = Annotated[str, typer.Option(help="Only jobs in this state; `open`: pending, placed and running.")]
Limit = Annotated[int, typer.Option(min=0, help="No more than that many; 0: all.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for name, work in (
        ("nodes", nodes), ("links", links), ("jobs", jobs), ("why", why), ("topics", topics), ("sql", sql), ("queries", queries),
        ("report", report),
    ):  # fmt: skip
        app.command(name)(command(work))


def nodes(
    site: Annotated[str, typer.Option(help="Only nodes of this site.")] = "",
    state: Annotated[str, typer.Option(help="Only nodes in this state.")] = "",
    model: Annotated[str, typer.Option(help="Only nodes with this card model.")] = "",
    limit: Limit = SHOWN,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show nodes: what they have, what is free, what runs there."""
    with ask(settings_of(data).settings) as asked:
        found = cast(list[Row], asked("nodes", site=site, state=state, model=model))
        if not json:
            _tell_unread(asked)
    if json:
        as_json(found if limit == SHOWN else found[: limit or None])
        return
    if not found:
        say(
            "No node fits."
            if site or state or model
            else "No node is registered yet: `lockstep import`, the SDK, or `lockstep up --simulate`."
        )
        return
    rows = [
        (
            n["node"], n["site"], n["rack"], n["state"], n["card_model"], n["cards"], f"{n['cards_free_milli'] / 1000:g}",
            f"{n['cpu_free_milli'] / 1000:g}/{n['cpu_milli'] / 1000:g}",
            f"{n['memory_free_bytes'] / GIBIBYTE:,.0f}/{n['memory_bytes'] / GIBIBYTE:,.0f}", _few(n["jobs"]),
        )
        for n in found[: limit or None]
    ]  # fmt: skip
    right = ("cards", "free", "cores free", "GiB free")
    table(("node", "site", "rack", "state", "model", "cards", "free", "cores free", "GiB free", "jobs"), rows, right)
    if len(found) > len(rows):
        note(f"{len(found) - len(rows):,} more; --limit 0 shows all, --site, --state and --model choose.")


def links(data: Data = None, json: Json = False) -> None:
    """Show links between sites."""
    with ask(settings_of(data).settings) as asked:
        found = cast(list[Row], asked("links"))
    if json:
        as_json(found)
        return
    if not found:
        say("No link is registered yet.")
        return
    rows = [
        (
            k["link"],
            k["src_site"],
            k["dst_site"],
            k["state"],
            f"{k['capacity_gbps']:g}",
            f"{k['used_gbps']:.3g}",
            f"{k['latency_ms']:.3g}",
        )
        for k in found
    ]
    table(("link", "from", "to", "state", "Gbit/s", "used", "ms"), rows, ("Gbit/s", "used", "ms"))


def jobs(
    state: State = "",
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    queue: Annotated[str, typer.Option(help="Only of this queue.")] = "",
    limit: Limit = SHOWN,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show jobs, newest first."""
    with ask(settings_of(data).settings) as asked:
        answer = cast(
            Row, asked("jobs", state=state, user=user, queue=queue, limit=0 if json and limit == SHOWN else limit)
        )
        if not json:
            _tell_unread(asked)
    if json:
        as_json(answer["jobs"])
        return
    now = now_ms()
    # Simulated time, or a log that ended long ago: what waits there has not waited until today.
    past = not asked.running and 0 < answer["at"] < now - DAY_MS
    rows = [
        (
            j["job"], j["user"], j["queue"], j["state"], j["position"] or "", j["members"], f"{j['cards_milli_total'] / 1000:g}",
            _since(j, answer["at"] if past else now), _few(j["nodes"]), _first_sentence(j["reason"]),
        )
        for j in answer["jobs"]
    ]  # fmt: skip
    if not rows:
        say("No job fits." if state or user or queue else "No job yet: `lockstep submit --cards 1 -- python train.py`.")
        return
    table(
        ("job", "user", "queue", "state", "place", "members", "cards", "for", "nodes", "reason"),
        rows,
        ("place", "members", "cards"),
    )
    if past:
        note(f"As of {moment(answer['at'])} UTC, where the ledger ends.")
    hidden = answer["total"] - len(rows)
    if hidden > 0:
        note(f"{hidden:,} more; --limit 0 shows all, --state open those that are not over.")


def _tell_unread(asked: Asked) -> None:
    """Say how many events nobody has taken up, where no process runs that does."""
    if asked.running:
        return
    behind = [t["behind"] for t in cast(list[Row], asked("topics"))]
    events = sum(n for groups in behind for group, n in groups.items() if group.startswith(("observe", "decide")))
    if events:
        note(f"{count_of(events, 'event waits', 'events wait')} in the log; `lockstep up` takes them up.")


def _landing(asked: Asked) -> int:
    """Ledger entries that ClickHouse does not have yet."""
    ledger = next(t for t in cast(list[Row], asked("topics")) if t["topic"] == "ledger")
    return sum(ledger["behind"].values())


def _since(job: Row, now: int) -> str:
    """How long it has been in its state, or how long it ran."""
    match job["state"]:
        case "pending":
            return span(now - job["submitted_at"])
        case "placed":
            return span(now - job["placed_at"])
        case "running":
            return span(now - job["started_at"])
        case _:
            return span(job["ended_at"] - job["started_at"]) if job["started_at"] else ""


def _few(names: list[str]) -> str:
    return " ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")


def _first_sentence(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


def why(job: Annotated[str, typer.Argument(help="Id of the job.")], data: Data = None, json: Json = False) -> None:
    """Say why a job waits, or what became of it."""
    with ask(settings_of(data).settings) as asked:
        try:
            told = cast(Row, asked("why", job=job))
            landing = 0 if json else _landing(asked)
        except NotFound:
            _tell_unread(asked)
            raise
    if json:
        as_json(told)
        return
    a = told["asked"]
    number = f"{a['cards_milli'] / 1000:g}"
    cards = f"{number} {'card' if number == '1' else 'cards'}" if a["cards_milli"] else "no card"
    models = f" of {' or '.join(a['card_models'])}" if a["card_models"] else ""
    say(f"{told['job']} is {told['state']}.", "bold")
    if told["state"] == "pending":
        where = f" It is number {told['position']} in line." if told["position"] else ""
        say(f"{_sentence((told['now'] or told)['reason'] or 'The engine has not looked at it yet')}{where}")
        if told["now"] is None and told["reason"]:
            say("It would fit at this moment; the next round takes it up.")
    elif told["reason"]:
        say(_sentence(told["reason"]))
    say(
        f"Asked: {a['members']} {'member' if a['members'] == 1 else 'members'}, each {cards}{models}, {a['cpu_milli'] / 1000:g} cores, "
        f"{gibibytes(a['memory_bytes'])} GiB; queue {a['queue']}, priority {a['priority']}, user {a['user']}."
    )
    if told["inferred"]:
        say(f"Inferred: {', '.join(told['inferred'])}.")
    times = [("submitted", "submitted_at"), ("placed", "placed_at"), ("started", "started_at"), ("ended", "ended_at")]
    say(", ".join(f"{word} {moment(told[field])}" for word, field in times if told[field]) + " (UTC).")
    if told["nodes"]:
        say(f"Nodes: {' '.join(told['nodes'])}")
    if told["history"]:
        shown = _telling(told["history"])
        rows = [(h["seq"], str(h["at"])[:19].replace("T", " "), h["entry"], h["node"], h["told"]) for h in shown]
        table(("seq", "at", "entry", "node", "what"), rows, ("seq",))
        hidden = len(told["history"]) - len(shown)
        if hidden:
            note(f"{hidden:,} more; --json has all.")
    if landing:
        note(f"The last {count_of(landing, 'ledger entry', 'ledger entries')} of all jobs are still landing.")


def _telling(history: list[Row]) -> list[Row]:
    """The part of a long history that says most: of progress the last only; its beginning and its end."""
    progress = [h for h in history if h["entry"] == "job_progressed"]
    kept = [h for h in history if h["entry"] != "job_progressed" or h is progress[-1]]
    return kept if len(kept) <= SHOWN else kept[: SHOWN // 2] + kept[-SHOWN // 2 :]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def topics(data: Data = None, json: Json = False) -> None:
    """Show topics: what they hold, and how far their readers are behind."""
    with ask(settings_of(data).settings) as asked:
        found = cast(list[Row], asked("topics"))
    if json:
        as_json(found)
        return
    rows = [
        (
            t["topic"],
            t["partitions"],
            f"{t['messages']:,}",
            ", ".join(f"{g} {n:,}" for g, n in t["behind"].items()),
            t["purpose"],
        )
        for t in found
    ]
    table(("topic", "partitions", "offsets", "behind", "purpose"), rows, ("partitions", "offsets"))


def sql(
    query: Annotated[str, typer.Argument(help="One statement that reads; - for standard input.")],
    max_rows: Annotated[int, typer.Option(min=1, help="No more than that many rows.")] = MAX_ROWS,
    data: Data = None,
    json: Json = False,
) -> None:
    """Ask ClickHouse. Tables are the ledger's entries (`job_placed`, …), views `jobs`, `attempts`, `waits`, `ledger`."""
    text = sys.stdin.read() if query == "-" else query
    with ask(settings_of(data).settings) as asked:
        _show(cast(Row, asked("sql", query=text, max_rows=max_rows)), json=json)


def queries(
    name: Annotated[str, typer.Argument(help="Name of a query; none: show them all.")] = "",
    parameters: Annotated[
        list[str] | None, typer.Argument(help="Its parameters: name=value.", metavar="[NAME=VALUE]...")
    ] = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show the named queries, or the answer of one."""
    with ask(settings_of(data).settings) as asked:
        if name:
            _show(
                cast(Row, asked("query", name=name, parameters=dict(mapping_of(parameters or [], "parameter")))),
                json=json,
            )
            return
        found = cast(list[Row], asked("queries"))
    if json:
        as_json(found)
        return
    rows = [
        (
            q["name"],
            q["title"],
            ", ".join(p["name"] + ("" if p["default"] is None else f"={p['default']}") for p in q["parameters"]),
        )
        for q in found
    ]
    table(("query", "what it answers", "parameters"), rows)


def _show(answer: Row, *, json: bool) -> None:
    columns = answer["columns"]
    if json:
        as_json([dict(zip(columns, row, strict=True)) for row in answer["rows"]])
        return
    right = [c for c, t in zip(columns, answer["types"], strict=True) if "Int" in t or "Float" in t]
    table(columns, answer["rows"], right, answer.get("title", ""))
    n = len(answer["rows"])
    note(count_of(n, "row"))


def report(
    html: Annotated[Path | None, typer.Option("--html", help="Write it as a page to this file.")] = None,
    data: Data = None,
) -> None:
    """Show the report over what landed: outcomes, waits, allocation, reasons."""
    with ask(settings_of(data).settings) as asked:
        told = cast(Row, asked("report", html=html is not None))["report"]
    if html is None:
        sys.stdout.write(told if sys.stdout.isatty() else _without_colours(told))
        return
    try:
        html.write_text(told, "utf-8")
    except OSError as e:
        raise fail(f"{html}: {e.strerror}", PARTLY) from e
    say(f"Written: {html}")


def _without_colours(text: str) -> str:
    from rich.text import Text  # noqa: PLC0415 - only for pipes

    return Text.from_ansi(text).plain + "\n"
