"""The frame of the benchmarks, on the quickest of them: it runs, and its JSON is what programs are promised. No speed is asserted."""

import json
from pathlib import Path

import pytest

from benchmarks import _frame
from benchmarks.__main__ import main


def test_json_for_programs_and_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "wire.json"
    assert main(["wire", "--quick", "--json", str(path)]) == 0
    result = json.loads(path.read_text("utf-8"))
    assert set(result) == {"benchmark", "figures", "machine"}
    assert result["benchmark"] == "wire"
    assert {"bulk_decode_per_s", "fastavro_per_s"} <= set(result["figures"])
    assert all(isinstance(v, float) and v > 0 for v in result["figures"].values())
    assert result["machine"]["cores"] >= 1
    assert "bulk_decode_per_s" in capsys.readouterr().out


def test_without_a_name_it_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "wire" in capsys.readouterr().out


def test_every_benchmark_says_what_it_measures() -> None:
    assert all(_frame.about(name) for name in _frame.names())


def test_medians_are_of_the_runs_after_the_first() -> None:
    calls = []
    rates = _frame.side_by_side(
        {"a": (lambda: calls.append("a"), 10), "b": (lambda: calls.append("b"), 10)}, quick=True
    )
    assert calls == ["a", "b"] * (1 + _frame.QUICK_RUNS)
    assert set(rates) == {"a", "b"}
