"""Alerts, the dashboard and the page of metrics name what there is, and every alert says what to do."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from infra.metrics import DECLARED, PAGE, PROCESS, main, page

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "infra" / "compose"
ALERTS = COMPOSE / "alerts.yml"
DASHBOARD = COMPOSE / "grafana" / "dashboards" / "lockstep.json"
# What Prometheus itself gives.
ITS_OWN = {"up"}
_NAME = re.compile(r"\b(?:lockstep|process)_[a-z_]+\b|\bup\b")
_LABEL = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def _served() -> set[str]:
    """Names as a scrape has them."""
    names = ITS_OWN | {name for name, _ in PROCESS}
    for metric in DECLARED:
        parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + part for part in parts}
    return names


def _labels() -> set[str]:
    """Labels that series can have: ours, and those a scrape adds."""
    return {label for m in DECLARED for label in m.labels} | {"instance", "job", "le", "alertname"}


def _rules() -> list[dict[str, dict[str, str]]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def _targets() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def _sections(page: Path, level: str) -> list[str]:
    return re.findall(rf"^{level} (.+)$", page.read_text("utf-8"), re.MULTILINE)


def test_the_page_of_metrics_is_current(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    assert PAGE.read_text("utf-8") == page(), "run python -m infra.metrics"
    assert main(["--check"]) == 0
    stale = tmp_path / "metrics.md"
    stale.write_text(page() + "more\n")
    monkeypatch.setattr("infra.metrics.PAGE", stale)
    assert main(["--check"]) == 1
    assert "run python -m infra.metrics" in capsys.readouterr().err
    assert main([]) == 0
    assert stale.read_text("utf-8") == page()


def test_names_are_declared_once() -> None:
    names = [m.name for m in DECLARED]
    assert len(names) == len(set(names))
    assert all(page().count(f"| `{name}` |") == 1 for name in [*names, *(name for name, _ in PROCESS)])


@pytest.mark.parametrize("expression", [str(rule["expr"]) for rule in _rules()] + _targets())
def test_an_expression_uses_only_what_is_there(expression: str) -> None:
    names = set(_NAME.findall(expression))
    assert names, expression
    assert names <= _served(), expression
    for grouped in _LABEL.findall(expression):
        assert {label.strip() for label in grouped.split(",")} <= _labels(), expression


def test_every_declared_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    used = {name for e in [str(r["expr"]) for r in _rules()] + _targets() for name in _NAME.findall(e)}
    missing = [m.name for m in DECLARED if not used & {m.name, f"{m.name}_bucket"}]
    assert missing == []


def test_every_alert_says_what_to_do() -> None:
    names = [str(rule["alert"]) for rule in _rules()]
    assert len(names) == len(set(names)) >= 10
    sections = [s for s in _sections(ROOT / "docs" / "operations.md", "###") if s.startswith("Lockstep")]
    assert sections == names  # each one, in the same order, and none for an alert that is gone
    for rule in _rules():
        notes = rule["annotations"]
        assert notes["runbook"] == f"docs/operations.md#{str(rule['alert']).lower()}"
        assert notes["summary"]
        assert notes["description"].endswith((".", "for what."))
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_dashboard_is_provisioned_and_whole() -> None:
    board = json.loads(DASHBOARD.read_text())
    (source,) = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((COMPOSE / "grafana/provisioning/dashboards/lockstep.yml").read_text())["providers"]
    mounted = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]
    assert f"./infra/compose/grafana/dashboards:{provider['options']['path']}:ro" in mounted
    uids = re.findall(r'"uid": "(\w+)"', DASHBOARD.read_text())
    assert set(uids) == {board["uid"], source["uid"]}
    panels = board["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    assert all(p["description"] for p in panels if p["type"] != "row")
    for a, b in combinations([p["gridPos"] for p in panels], 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)  # fmt: skip


def test_prometheus_reads_the_rules() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    (rules,) = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["rule_files"]
    assert f"./infra/compose/alerts.yml:{rules}:ro" in compose
    jobs = [s["job_name"] for s in yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]]
    assert "lockstep" in jobs  # alerts ask for this job
