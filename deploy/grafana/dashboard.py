"""Writes kvstore.json, the Grafana dashboard, from panels.toml.

Run it after a change of that: `.venv/bin/python deploy/grafana/dashboard.py`.
The result is committed, and tests/static/test_generated_code.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "kvstore.json"
PANELS = FOLDER / "panels.toml"
COLUMNS, WIDTH = 24, 8
HEIGHTS = {"timeseries": 8, "stat": 4}
# What each query is of: the servers chosen at the top.
OF = 'job=~"$job",instance=~"$instance"'
WINDOW = "$__rate_interval"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panels() -> list[dict[str, Any]]:
    """Returns all panels, laid out in rows."""
    rows = tomllib.loads(PANELS.read_text(encoding="utf-8"))["row"]
    made: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        titled = {"type": "row", "title": row["title"], "collapsed": False, "panels": []}
        made.append(titled | {"id": len(made) + 1, "gridPos": place})
        y += 1
        x, height = 0, HEIGHTS[row["panel"][0].get("kind", "timeseries")]
        for panel in row["panel"]:
            width = panel.get("width", WIDTH)
            if x + width > COLUMNS:
                x, y = 0, y + height
            place = {"x": x, "y": y, "w": width, "h": height}
            made.append(laid_out(panel) | {"id": len(made) + 1, "gridPos": place})
            x += width
        y += height
    return made


def laid_out(panel: dict[str, Any]) -> dict[str, Any]:
    """Returns one panel as Grafana has it, but for its place."""
    kind, stacked = panel.get("kind", "timeseries"), panel.get("stacked", False)
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short"), "min": 0}
    if "most" in panel:
        defaults["max"] = panel["most"]
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    if kind == "timeseries":
        options = {"legend": {"displayMode": "list", "placement": "bottom"}}
        defaults["custom"] = {
            "fillOpacity": 30 if stacked else 8,
            "stacking": {"mode": "normal" if stacked else "none"},
            "showPoints": "never",
        }
    return {
        "type": kind,
        "title": panel["title"],
        "description": panel.get("meaning", ""),
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + at), "expr": filled_in(query), "legendFormat": legend}
            for at, (legend, query) in enumerate(panel["queries"])
        ],
    }


def filled_in(query: str) -> str:
    """Returns a query of the servers chosen."""
    return query.replace("{OF", f"{{{OF}").replace("WINDOW", WINDOW)


def variable(label: str) -> dict[str, Any]:
    """Returns a choice of servers by a label of theirs."""
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": f"label_values(kvstore_ready, {label})", "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """Returns the whole dashboard."""
    source = {"name": "datasource", "label": "source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "kvstore",
        "title": "kvstore",
        "description": "A prefix cache for LLM inference. Written by deploy/grafana/dashboard.py.",
        "tags": ["kvstore", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, variable("job"), variable("instance")]},
        "annotations": {"list": []},
        "panels": panels(),
    }


def main() -> int:
    """Writes the file, and exit 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE, help="default: the committed file")
    out: Path = parser.parse_args().out
    out.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
