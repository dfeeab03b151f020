"""Named queries, views and the report against figures worked out by hand."""

import re
from datetime import UTC, datetime

import pytest

from analytics import page, queries, report
from analytics._plots import bars, line, nice_step
from connectors.clickhouse.client import Database
from schemas.errors import Refused


def answer(db: Database, name: str, **given: str) -> list[tuple[object, ...]]:
    return queries.run(db, name, given).rows


def test_every_query_says_what_it_answers_and_runs_on_nothing(empty: Database) -> None:
    assert len(queries.queries()) >= 12
    for name, asked in queries.queries().items():
        assert asked.title.endswith((".", "?")), name
        queries.run(empty, name, {p.name: "x" for p in asked.parameters if p.default is None})


def test_outcomes(db: Database) -> None:
    # a: 8 cards × 12 h. b: its last run, 16 cards × 12 h.
    assert answer(db, "outcomes") == [
        ("q1", "finished", 1, 96.0),
        ("q1", "pending", 1, None),
        ("q2", "failed", 1, 192.0),
    ]


def test_waits(db: Database) -> None:
    by_size = {r[0]: r[1:] for r in answer(db, "waits_by_size")}
    assert by_size["part of a card"][:2] == (0, 1)
    assert by_size["8 cards or more"][:2] == (2, 0)
    assert by_size["8 cards or more"][3:] == (43_200.0, 43_200.0, 43_200.0)
    assert answer(db, "longest_waits", top="1") == [("b", "ada", "q2", "8 cards or more", 43_200.0, "failed")]


def test_allocation_is_weighted_by_time(db: Database) -> None:
    # Day 1: 8 cards for 12 h, 16 for 6 h, none for 6 h: 8. Day 2, 12 h of it known: 16. There are 16 cards.
    days = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)]
    found = answer(db, "card_allocation")
    assert [r[1:] for r in found] == [(8.0, 16.0, 16.0), (16.0, 16.0, 16.0)]
    assert [r[0].replace(tzinfo=UTC) for r in found if isinstance(r[0], datetime)] == days
    quarter = answer(db, "card_allocation", bucket_s="21600")
    assert [r[1] for r in quarter] == [8.0, 8.0, 16.0, 0.0, 16.0, 16.0]


def test_reasons_for_waiting(db: Database) -> None:
    # b waited 12 h for room and 6 h for its node; c has waited from 30:00 to the last entry at 36:00, and waits still.
    assert answer(db, "waiting_reasons") == [("no_room", 2, 2, 18.0, 1), ("node_away", 1, 1, 6.0, 0)]


def test_backlog(db: Database) -> None:
    assert [r[1] for r in answer(db, "backlog")] == [1, 1]


def test_the_other_views(db: Database) -> None:
    assert answer(db, "interruptions") == [("node_lost", 1, 1, 1, 6.0)]
    assert answer(db, "nodes") == [("n1", 3, 1, 1), ("n2", 2, 1, 1)]
    # a 96 + b 16 × 6 + 16 × 12 = 384 card-hours.
    assert answer(db, "users") == [("ada", 3, 2, 384.0)]
    assert answer(db, "ledger_gaps") == [("default", 18, 18, 0, 0)]
    assert [r[2] for r in answer(db, "history", job="a")] == ["job_accepted", "job_placed", "job_started", "job_ended"]
    assert dict(db.query("SELECT job, state FROM jobs").rows) == {"a": "finished", "b": "failed", "c": "pending"}


def test_a_missing_and_a_doubled_row_show(db: Database) -> None:
    db.command("ALTER TABLE job_pending DELETE WHERE job = 'c' SETTINGS mutations_sync = 2")
    db.command("INSERT INTO job_started SELECT * FROM job_started WHERE job = 'a'")
    assert answer(db, "ledger_gaps") == [("default", 18, 18, 1, 1)]


def test_wrong_questions_are_refused(empty: Database) -> None:
    with pytest.raises(Refused, match="did you mean outcomes"):
        queries.run(empty, "outcome")
    with pytest.raises(Refused, match="needs a value for job"):
        queries.run(empty, "history")
    with pytest.raises(Refused, match="has no parameter 'joob'; it takes job"):
        queries.run(empty, "history", {"joob": "x"})
    with pytest.raises(Refused, match="must be a whole number"):
        queries.run(empty, "longest_waits", {"top": "many"})


def test_the_report_tells_it(db: Database) -> None:
    told = report.collect(db)
    text = report.terminal(told)
    assert "At its peak 16 of 16 cards were allocated (100.0 %). 2 of 3 jobs waited (66.7 %)." in " ".join(text.split())
    assert "no_room" in text
    assert "12,345" not in text
    html = page.page(told)
    assert not re.search(r"(src|href)=|@import|https?://|<script", html)  # nothing is fetched from anywhere
    assert html.count("<svg") == 3
    assert "Each of 18 ledger entries is in ClickHouse once" in html


def test_a_job_cancelled_while_it_waited_has_waited(db: Database) -> None:
    """`c` waited until the end of its story; that it was cancelled then does not make it one that never waited."""
    db.command(
        "INSERT INTO job_ended SELECT * REPLACE ('c' AS job, 0 AS attempt, 'cancelled' AS outcome, at + INTERVAL 1 HOUR AS at, "
        "99 AS seq, 0 AS exit_code) FROM job_ended WHERE job = 'b'"
    )
    assert "2 of 3 jobs waited (66.7 %)." in " ".join(report.terminal(report.collect(db)).split())


def test_nothing_landed_is_said(empty: Database) -> None:
    with pytest.raises(Refused, match="nothing has landed"):
        report.collect(empty)


def test_names_in_a_page_cannot_be_markup(db: Database) -> None:
    db.command(
        "INSERT INTO job_accepted SELECT * REPLACE ('<b>q</b>' AS queue, 'x' AS job, 99 AS seq) FROM job_accepted LIMIT 1"
    )
    html = page.page(report.collect(db))
    assert "<b>q</b>" not in html
    assert "&lt;b&gt;q&lt;/b&gt;" in html


def test_axes_have_round_steps() -> None:
    assert [nice_step(v) for v in (0.0, 1.0, 16.0, 64.6, 6_212.0)] == [1.0, 0.5, 5.0, 20.0, 2_000.0]
    assert "<svg" in bars(["a"], [0.0], "h", "t")
    assert line([], [], "cards", "t") == "<p class='none'>Nothing yet.</p>"
    day, hour = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC)
    both = [line(times, [1.0] * len(times), "cards", "t", (day, hour)) for times in ([day], [day, hour], [hour])]
    assert all("01 Jan 00:00</text>" in svg and "01 Jan 01:00</text>" in svg for svg in both)
    one = line([datetime(2026, 1, 1, tzinfo=UTC)], [3.0], "cards", 'a "title"')
    assert "&quot;title&quot;" in one
