"""`lockstep dead-letter list|show|replay`: messages that could not be used, and their way back."""

from typing import Annotated, Any, cast

import typer

from infra.cli._common import PARTLY, Data, Json, as_json, command, fail, moment, note, say, settings_of, table
from infra.client import ask
from schemas.dead_letters import MAX_REPLAYS

Row = dict[str, Any]
Topic = Annotated[str, typer.Option(help="Only of this topic.")]
Code = Annotated[str, typer.Option(help="Only with this reason code.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    group = typer.Typer(
        no_args_is_help=True, help="Messages that could not be used: look at them, and send them back after a fix."
    )
    group.command("list")(command(show_list))
    group.command("show")(command(show))
    group.command("replay")(command(replay))
    app.add_typer(group, name="dead-letter")


def show_list(
    topic: Topic = "", code: Code = "", limit: Annotated[int, typer.Option(min=0, help="No more than that many; 0: all.")] = 50,
    data: Data = None, json: Json = False,
) -> None:  # fmt: skip
    """Show dead letters, newest first."""
    with ask(settings_of(data).settings) as asked:
        answer = cast(Row, asked("dead_letters", topic=topic, code=code, limit=limit))
    if json:
        as_json(answer["letters"])
        return
    if not answer["letters"]:
        say("No dead letter: every message could be used.")
        return
    rows = [
        (
            d["id"],
            moment(d["at"]),
            f"{d['topic']}/{d['partition']}@{d['offset']}",
            d["stage"],
            d["code"],
            d["replays"] or "",
            d["reason"],
        )
        for d in answer["letters"]
    ]
    table(("id", "at", "came from", "refused by", "code", "replays", "reason"), rows, ("id", "replays"))
    if answer["total"] > len(rows):
        note(f"{answer['total'] - len(rows):,} more; --limit 0 shows all.")


def show(
    letter: Annotated[int, typer.Argument(help="Id of the dead letter.")], data: Data = None, json: Json = False
) -> None:
    """Show one dead letter, whole."""
    with ask(settings_of(data).settings) as asked:
        d = cast(Row, asked("dead_letter", id=letter))
    if json:
        as_json(d)
        return
    say(f"{d['topic']}/{d['partition']}@{d['offset']}, refused by {d['stage']} at {moment(d['at'])} UTC", "bold")
    say(f"{d['code']}: {d['reason']}")
    say(f"key {d['key']!r}, schema id {d['schema_id']}, {d['bytes']:,} bytes, replayed {d['replays']} times")
    say("This version can read it." if d["readable_now"] else "This version cannot read it either.")
    hexes = d["value_hex"][:512]
    for i in range(0, len(hexes), 64):
        part = bytes.fromhex(hexes[i : i + 64])
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in part)
        say(f"{i // 2:06x}  {part.hex(' '):<95}  {text}")
    if len(d["value_hex"]) > 512:
        note("… and more; --json has all of it as hex.")


def replay(
    letters: Annotated[list[int] | None, typer.Argument(help="Ids of dead letters.", metavar="[ID]...")] = None,
    topic: Topic = "",
    code: Code = "",
    limit: Annotated[int, typer.Option(min=1, help="Leave alone what was replayed so often.")] = MAX_REPLAYS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be replayed.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Send messages back to the topics they came from: these ids, or all of a topic or code."""
    with ask(settings_of(data).settings) as asked:
        told = cast(
            list[Row],
            asked("dead_letter_replay", ids=letters or [], topic=topic, code=code, limit=limit, dry_run=dry_run),
        )
    if json:
        as_json(told)
    elif not told:
        say("No dead letter fits.")
    else:
        rows = [
            (
                d["id"],
                f"{d['topic']}/{d['partition']}@{d['offset']}",
                d["code"],
                d["action"],
                d.get("why") or ("" if d["readable_now"] else "this version cannot read it either"),
            )
            for d in told
        ]
        table(("id", "goes to", "code", "", ""), rows, ("id",))
    left = sum(d["action"] == "left alone" for d in told)
    if left:
        raise fail(f"{left} of {len(told)} were left alone", PARTLY)
