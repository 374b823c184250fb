"""The figures of fetch.py for people."""

from typing import Any

from rich import box
from rich.table import Table

TITLES = {
    "hit": "A whole hit, no bytes copied",
    "fetch": "64 MiB of KV for a hit",
    "store": "64 MiB of KV published",
}
# The second column of times: the part of the whole that it shows.
SECOND = {"hit": ("caller_ms", "lookup_ms"), "fetch": ("lookup_ms",), "store": ()}


def tables(document: dict[str, Any]) -> list[Table]:
    """Returns one table for each part."""
    return [part_table(document, part) for part in TITLES]


def part_table(document: dict[str, Any], part: str) -> Table:
    """Returns the table of one part."""
    reference = document["references"][part]
    table = Table(title=TITLES[part], title_justify="left", box=box.SIMPLE_HEAD)
    headings = ["ms", "of it, ms" if SECOND[part] else "", "GB/s" if part != "hit" else ""]
    table.add_column("")
    table.add_column("tokens", justify="right")
    for heading in headings:
        if heading:
            table.add_column(heading, justify="right")
    table.add_column(f"to {reference}", justify="right")
    for cell in document["cells"]:
        if cell["part"] != part:
            continue
        row = [cell["name"], f"{cell['tokens']:,}", f"{cell['whole_ms']:.3f}"]
        if SECOND[part]:
            inner = next((cell[key] for key in SECOND[part] if key in cell), None)
            row.append("-" if inner is None else f"{inner:.3f}")
        if part != "hit":
            row.append(f"{cell['gb_s']:.1f}")
        table.add_row(*row, f"{cell['ratio']:.2f}")
    return table
