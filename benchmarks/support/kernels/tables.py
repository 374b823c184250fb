"""The figures of gpu_kernels.py for people."""

from typing import Any

from rich.table import Table

from support.table_console import keyed_table

KINDS = ("write", "attend", "merge")


def kernel_tables(document: dict[str, Any]) -> list[Table]:
    """Returns one table for each part that was measured."""
    shown = {"kernels": _kernels, "engine": _engine, "sweep": _sweep}
    return [make(document[part]) for part, make in shown.items() if part in document]


def _kernels(rows: list[dict[str, Any]]) -> Table:
    title = "A layer of attention, µs; share: GB/s read and written, of those of a plain copy"
    headings = [*(f"{kind}\nµs" for kind in KINDS), "layer\nµs", "host\nµs", "attend\nGB/s"]
    table = keyed_table(title, "step", "batch", "context")
    for heading in (*headings, "copy\nGB/s", "share"):
        table.add_column(heading, justify="right")
    for row in rows:
        keys = (row["mix"], str(row["batch"]), f"{row['context']:,}")
        if "left_out" in row:
            table.add_row(*keys, row["left_out"])
            continue
        note = "" if row["queued"] else "?"
        table.add_row(
            *keys,
            *(f"{row['us'][kind]:,.1f}" if kind in row["us"] else "" for kind in KINDS),
            f"{row['layer_us']:,.1f}{note}",
            f"{row['host_us']['layer']:,.1f}",
            f"{row['gb_s']['attend']:,.0f}",
            f"{row['copy_gb_s']:,.0f}",
            f"{row['share_of_copy']['attend']:.0%}",
        )
    return table


def _engine(rows: list[dict[str, Any]]) -> Table:
    table = keyed_table("The reference engine decodes, without a store", "batch", "context")
    for heading in ("tokens/s", "step\nms", "GPU busy\nms", "GPU busy\nof the step"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "left_out" in row:
            table.add_row(str(row["batch"]), f"{row['context']:,}", row["left_out"])
            continue
        busy = row["gpu_busy_share"]
        table.add_row(
            str(row["batch"]),
            f"{row['context']:,}",
            f"{row['tokens_s']:,.1f}",
            f"{row['step_ms']:,.2f}",
            "" if busy is None else f"{row['gpu_busy_ms']:,.2f}",
            "" if busy is None else f"{busy:.0%}",
        )
    return table


def _sweep(rows: list[dict[str, Any]]) -> Table:
    """Returns the shapes of each cell, the fastest first."""
    columns = ("batch", "context", "programs", "warps", "stages", "keys")
    table = keyed_table("A layer of decodes by the kernels' shape, the fastest first", *columns)
    for heading in ("layer\nµs", "attend\nµs", "merge\nµs", "attend\nGB/s"):
        table.add_column(heading, justify="right")
    cells = list(dict.fromkeys((row["batch"], row["context"]) for row in rows))
    for cell in cells:
        found = [row for row in rows if (row["batch"], row["context"]) == cell]
        for row in sorted(found, key=lambda row: float(row.get("layer_us", "inf"))):
            keys = [f"{row[column]:,}" for column in columns]
            if "left_out" in row:
                table.add_row(*keys, row["left_out"])
                continue
            merge = row["us"].get("merge")
            table.add_row(
                *keys,
                f"{row['layer_us']:,.1f}{'' if row['queued'] else '?'}",
                f"{row['us']['attend']:,.1f}",
                "" if merge is None else f"{merge:,.1f}",
                f"{row['gb_s']:,.0f}",
            )
    return table
