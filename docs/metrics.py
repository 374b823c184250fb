"""Writes docs/metrics.md from the definitions of the server's metrics.

Run it after a change of one: `.venv/bin/python docs/metrics.py`.
The result is committed, and tests/static/test_generated_code.py keeps the two in step.
`--out FILE` writes another file instead, and leaves the tree alone.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from kvstore.metrics.definitions import CATALOGUE
from kvstore.metrics.exposition import LIFETIME
from kvstore.metrics.metric import Metric
from kvstore.metrics.names import (
    MAX_LENGTH,
    MOST_NAMESPACES,
    MOST_NAMESPACES_OF_TENANT,
    MOST_OWNERS,
    MOST_TENANTS,
)

PAGE = Path(__file__).resolve().parent / "metrics.md"
HEAD = f"""\
# Metrics

Written by `docs/metrics.py` from the definitions in `kvstore/metrics`: do not edit.

For operators: every metric of the server. [How to monitor](how-to-monitor.md) says which to watch first, and [deploy/](../deploy/README.md) has a dashboard and alert rules.
`kvstore-server --metrics-listen HOST:PORT` answers `/metrics` in Prometheus' text, and in OpenMetrics on request. It also has the process's own metrics (`process_...`, `python_...`).

- Names that others chose are untrusted text: they are cut to {MAX_LENGTH} characters, and characters that are not printable become `?`.
- At most {MOST_TENANTS} tenants have a value of their own, {MOST_NAMESPACES_OF_TENANT} namespaces of each, {MOST_NAMESPACES} in all, and {MOST_OWNERS} owners of leases. The rest is in `other`.
- Namespaces and leases of one name and tenant are one series. A namespace without a name has the first digits of its id.
- Counts of a deleted namespace stay in its own series up to the last scrape, and later ones in its tenant's `other`. So sums over namespaces lose nothing.
- The store makes at most one snapshot in {LIFETIME:g} second, for all scrapes together.
"""


def sections() -> Iterator[str]:
    """Yields a table for each area."""
    for area, metrics in CATALOGUE.items():
        yield f"\n## {area}\n\n"
        yield "| metric | labels | meaning | when it is wrong, and what to do |\n"
        yield "| --- | --- | --- | --- |\n"
        for metric in metrics:
            yield row(metric)


def row(metric: Metric) -> str:
    """Returns a metric's line."""
    labels = ", ".join(f"`{each}`" for each in metric.series.labels)
    meaning = f"{metric.kind.value}. {metric.meaning}"
    return f"| `{metric.name}` | {labels} | {meaning} | {linked(metric.wrong)} |\n"


def linked(text: str) -> str:
    """Returns a text with links for the pages that it names."""
    words = []
    for word in text.split(" "):
        name = word.rstrip(".,;:")
        if name.endswith(".md"):
            words.append(f"[{name}]({name}){word[len(name) :]}")
        else:
            words.append(word)
    return " ".join(words)


def main() -> int:
    """Writes the page, and returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PAGE, help="default: the committed page")
    out: Path = parser.parse_args().out
    out.write_text("".join((HEAD, *sections())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
