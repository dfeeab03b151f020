"""The page of events is made, not written: it must be what the catalogue says today."""

from schemas.docs import PAGE, main, page
from schemas.records import ROW_TYPES
from schemas.topics import TOPICS


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m schemas.docs"
    assert main(["--check"]) == 0


def test_it_names_everything() -> None:
    text = page()
    assert all(f"### `{t.name}`\n" in text for t in TOPICS)
    assert all(text.count(f"### {r.__name__}\n") == 1 for r in ROW_TYPES)
    assert "| `cards_healthy` | int | Cards that can run work, count |" in text
    assert "| `at` | time (long) | " in text
    assert "| `key` | bytes or null, default `null` | Key as it came |" in text
    assert "4 partitions; kept: newest of each key; messages up to 4 MiB" in text
    assert "1 partition; kept: for ever" in text
    assert "kept: 1 day;" in text
