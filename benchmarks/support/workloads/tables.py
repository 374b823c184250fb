"""The workloads' figures for people."""

from typing import Any

from rich import box
from rich.table import Table

from support.workloads.figures import reason

FIGURES = (
    "TTFT p50 ms",
    "p99",
    "could hit: p50",
    "p99",
    "requests/s",
    "prefilled",
    "reused",
    "store wait ms",
)
COLUMNS = ("variant", *FIGURES)


def variant_row(name: str, figures: dict[str, Any]) -> list[str]:
    """Returns a variant's figures as cells of :data:`COLUMNS`."""
    return [
        name,
        f"{figures['ttft_p50_ms']:,.1f}",
        f"{figures['ttft_p99_ms']:,.1f}",
        _or_none(figures["could_hit_ttft_p50_ms"]),
        _or_none(figures["could_hit_ttft_p99_ms"]),
        f"{figures['requests_per_s']:.2f}",
        f"{figures['prefilled_tokens']:,}",
        f"{figures['matched_tokens'] + figures['copied_tokens']:,}",
        f"{figures['store_p50_ms']:.2f}",
    ]


def tables(document: dict[str, Any]) -> list[Table]:
    """Returns a table for each workload, and one of the misses."""
    found = [_workload(name, each, document) for name, each in document["workloads"].items()]
    if "miss_overhead" in document:
        found.append(_miss(document["miss_overhead"]))
    return found


def _workload(name: str, each: dict[str, Any], document: dict[str, Any]) -> Table:
    head = document["summary"][name]
    table = Table(
        title=f"{name}: {head['speedup']:.2f}x, ideal {head['ideal_speedup']:.2f}x,"
        f" {head['full_hits']} of {head['could_hit']} hit, {head['partial_hits']} in part,"
        f" identical: {head['identical']}, beside stock: {head['baseline_vs_stock']}",
        caption=reason(head, each["target"]),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    # A variant is a column, because there are four of them and twice as many figures.
    variants, *rows = zip(*(variant_row(*pair) for pair in each["variants"].items()), strict=True)
    table.add_column("")
    for variant in variants:
        table.add_column(variant, justify="right", no_wrap=True)
    for heading, figures in zip(FIGURES, rows, strict=True):
        table.add_row(heading, *figures)
    return table


def _miss(miss: dict[str, Any]) -> Table:
    table = Table(title="Overhead on a miss", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (
        "tokens",
        "pairs",
        "without ms",
        "added",
        "95 % interval",
        "added ms",
        "waited ms",
    ):
        table.add_column(heading, justify="right")
    for each in miss["lengths"]:
        low, high = each["interval"]
        table.add_row(
            f"{each['tokens']:,}",
            str(each["pairs"]),
            f"{each['without_p50_ms']:,.1f}",
            f"{each['added']:+.2%}",
            f"{low:+.2%} to {high:+.2%}",
            f"{each['added_ms']:+.2f}",
            f"{each['waited_for_store_p50_ms']:.2f}",
        )
    return table


def _or_none(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
