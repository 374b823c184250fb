"""The figures of gpu.py for people."""

from typing import Any

from rich.table import Table

from support.table_console import keyed_table

GATHER_TARGET = 0.8
HIT_TARGET = 1.15


def tables(document: dict[str, Any]) -> list[Table]:
    """Returns one table for each part of a result: all of them, or of tiers alone."""
    moved = [tier_table(document["tiers"])]
    if "open" not in document:
        return moved
    opened = keyed_table("Opening the store's memory in a process, ms", "size")
    for heading in ("first process,\nwhich has it allocated", "processes after it"):
        opened.add_column(heading, justify="right")
    for row in document["open"]:
        size = f"{row['bytes'] / (1 << 20):,.0f} MiB"
        opened.add_row(size, f"{row['first_ms']:,.1f}", f"{row['again_ms']:,.1f}")

    gather = document["gather"]
    title = f"Copying {gather['pages']:,} pages out, {gather['bytes'] / 1e6:,.0f} MB"
    copied = keyed_table(f"{title} (target: pages at {GATHER_TARGET:.0%} of the copy)", "way")
    for heading in ("GB/s", "of the copy"):
        copied.add_column(heading, justify="right")
    for row in gather["ways"]:
        copied.add_row(row["way"], f"{row['gb_s']:,.1f}", f"{row['share_of_copy']:.0%}")

    rows = document["first_token"]
    title = f"Time to first token, ms (target: hit at {HIT_TARGET} of the suffix alone)"
    first = keyed_table(title, "shared", "suffix")
    kinds = list(rows[0]["ms"])
    for heading in (*kinds, "hit /\nsuffix alone", "hit /\nresident", "cold /\nhit"):
        first.add_column(heading, justify="right")
    for row in rows:
        first.add_row(
            f"{row['shared_tokens']:,}",
            str(row["suffix_tokens"]),
            *(f"{row['ms'][kind]:,.1f}" for kind in kinds),
            f"{row['hit_over_suffix_alone']:.2f}",
            f"{row['hit_over_resident']:.2f}",
            f"{row['cold_over_hit']:.1f}",
        )
    return [opened, copied, *moved, first]


def tier_table(rows: list[dict[str, Any]]) -> Table:
    """Returns the table of copies between tiers."""
    title = f"Pages between tier 1 and tier 2, {rows[0]['pages']} at once"
    table = keyed_table(title, "page", "way")
    for heading in ("down\nGB/s", "of one\nlarge copy", "up\nGB/s", "of one\nlarge copy"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells: dict[str, list[str]] = {}
        for each in sorted(row["ways"], key=lambda each: str(each["direction"])):
            figures = [f"{each['gb_s']:,.1f}", f"{each['share_of_one_large']:.0%}"]
            cells.setdefault(each["way"], []).extend(figures)
        for way, figures in cells.items():
            table.add_row(f"{row['page_bytes'] >> 10:,} KiB", way, *figures)
    return table
