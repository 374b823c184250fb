"""The figures of workloads.py as a section of docs/workloads.md."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from support.page_section import busy_lines, put_section
from support.workloads.figures import reason
from support.workloads.plan import FULL
from support.workloads.plots import FILES
from support.workloads.tables import COLUMNS, variant_row

PROGRAM = "workloads.py"
BUSY_NOTE = (
    "Other work ran on the machine. It lengthens all times, and waits for another process most."
    " Requests are made in turns, so ratios are more reliable than times."
)
SHORT_NOTE = "This was a short run, with fewer requests than above."
IMAGES = "images"
TITLES = {
    "chat": "Chat",
    "rag": "Questions on documents",
    "batch": "A batch",
    "mixed": "Mixed",
}


def write_section(page: Path, document: dict[str, Any], results: Path | None = None) -> None:
    """Writes the figures into a page, over the old ones. ``results`` may be the file of all."""
    lines = list(_lines(document))
    if results is not None:
        link = os.path.relpath(results, page.parent)
        lines += ["", f"The [results]({link}) have the raw samples of every request."]
    put_section(page, PROGRAM, lines)


def _lines(document: dict[str, Any]) -> Iterator[str]:
    facts, load = document["machine"], document["load_average"]
    method = document["method"]
    yield (
        f"One run of {method['model']} in {method['dtype']}, {document['seconds'] / 60:.0f}"
        f" minutes long, with {facts['threads']} thread{'s' * (facts['threads'] > 1)} on"
        f" {facts['cores']} cores of an {facts['processor']}, with torch {facts['torch']}."
        f" The load average was {load['before']} before it and {load['after']} after."
    )
    if method["plan"] != json.loads(json.dumps(asdict(FULL))):
        yield SHORT_NOTE
    yield from busy_lines(load, BUSY_NOTE)
    yield ""
    yield from _headlines(document)
    for name in FILES:
        yield ""
        yield f"![{FILES[name]}]({IMAGES}/{name})"
    for name, each in document["workloads"].items():
        yield ""
        yield f"### {TITLES[name]}"
        yield ""
        yield _sentence(document["summary"][name], each["target"])
        yield ""
        yield from _table(COLUMNS, [variant_row(*pair) for pair in each["variants"].items()])
    if "miss_overhead" in document:
        yield ""
        yield "### Overhead on a miss"
        yield ""
        yield from _misses(document["miss_overhead"])


def _headlines(document: dict[str, Any]) -> Iterator[str]:
    head = ("workload", "speedup", "ideal", "of the ideal", "two workers", "hit rate")
    rows = []
    for name in document["workloads"]:
        each = document["summary"][name]
        two = each.get("two_workers")
        rows.append(
            [
                TITLES[name],
                f"**{each['speedup']:.2f}x**",
                f"{each['ideal_speedup']:.2f}x",
                f"{each['speedup'] / each['ideal_speedup']:.0%}",
                f"{two['speedup']:.2f}x" if two else "",
                f"{each['hit_rate']:.0%} of {each['could_hit']}",
                "yes" if each["identical"] else "**no**",
                f"{each['baseline_vs_stock']:.2f}",
                "yes" if each["met"] else "**no**",
            ]
        )
    yield from _table((*head, "same tokens", "beside stock", "met"), rows)


def _sentence(head: dict[str, Any], target: dict[str, float]) -> str:
    met = "Met" if head["met"] else "Not met"
    said = f"{met}: {reason(head, target)}."
    if "speedup_interval" in head:
        low, high = head["speedup_interval"]
        said += (
            f" The 95 % interval of the median is {low:.2f}x to {high:.2f}x."
            f" Over all {head['requests']} requests the median is"
            f" {head['speedup_all_median']:.2f}x, and the ratio of their total times is"
            f" {head['speedup_all_mean']:.2f}x."
        )
    else:
        runs = ", ".join(f"{each:.2f}x" for each in head["speedup_of_runs"])
        said += f" Speedups of the runs: {runs}."
    said += (
        f" {head['could_hit']} of {head['requests']} requests could have hit:"
        f" {head['full_hits']} hit fully, {head['partial_hits']} in part."
        f" They reused {head['token_hit_rate']:.1%} of the known tokens."
    )
    if head["near_ties"]:
        said += f" {head['near_ties']} tokens differ at a near tie."
    return said


def _misses(miss: dict[str, Any]) -> Iterator[str]:
    met = "Met" if miss["met"] else "Not met"
    yield f"{met}: the store may add at most {miss['bound']:.0%} to the median."
    yield ""
    head = (
        "tokens",
        "pairs",
        "without, ms",
        "added",
        "95 % interval",
        "ms",
        "store wait, ms",
    )
    rows = [
        [
            f"{each['tokens']:,}",
            str(each["pairs"]),
            f"{each['without_p50_ms']:,.1f}",
            f"**{each['added']:+.2%}**",
            f"{each['interval'][0]:+.2%} to {each['interval'][1]:+.2%}",
            f"{each['added_ms']:+.2f}",
            f"{each['waited_for_store_p50_ms']:.2f}",
        ]
        for each in miss["lengths"]
    ]
    yield from _table(head, rows)


def _table(head: tuple[str, ...], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "| --- |" + " ---: |" * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"
