"""Rules for Prometheus: accepted by its checker, and each seen to fire."""

import json
import re
from pathlib import Path

import yaml

from deploy.promtool import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
ALERTS = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
CASES = (FOLDER / "alerts_test.yml").read_text(encoding="utf-8")


def test_prometheus_accepts_the_rules_and_the_scrape() -> None:
    """By promtool."""
    assert "FAILED" not in promtool("check", "rules", str(FOLDER / "alerts.yml"))
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


def test_each_alert_fires_alone_for_what_it_is_about() -> None:
    """And none for a store that is well."""
    promtool("test", "rules", str(FOLDER / "alerts_test.yml"))
    names = re.findall(r"- alert: (\w+)", ALERTS)
    assert len(names) == len(set(names)) > 10
    assert [name for name in names if f'alertname="{name}"' not in CASES] == []


def test_the_dashboard_s_queries_are_queries(tmp_path: Path) -> None:
    """Each, with what Grafana puts in the place of its variables."""
    board = json.loads((ROOT / "deploy" / "grafana" / "kvstore.json").read_text(encoding="utf-8"))
    queries = [each["expr"] for panel in board["panels"] for each in panel.get("targets", [])]
    filled = [each.replace("$__rate_interval", "5m").replace("$", "") for each in queries]
    rules = [{"record": f"panel:query{n}", "expr": each} for n, each in enumerate(filled)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(path))


def test_each_alert_says_what_it_is_and_what_to_do() -> None:
    """A summary, a description and a severity."""
    for alert in ALERTS.split("- alert: ")[1:]:
        for part in ("severity: ", "summary: ", "description: >-\n"):
            assert part in alert, alert
