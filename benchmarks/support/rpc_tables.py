"""The figures of rpc.py for people."""

from typing import Any

from rich import box
from rich.table import Table

LOCAL = {"store alone": "store\nalone", "in process": "no\ngRPC"}
SHORT = {"grpc.server": "threads", "grpc.aio": "aio", "hot lane": "lane"}


def operation_table(document: dict[str, Any], callers: int) -> Table:
    """Return the times of each call, with so many callers, in microseconds.

    The ratios are aio's times to those of threads.
    """
    servers = document["servers"]
    table = _table(f"Microseconds a call, {callers} at a time", "tokens", "call")
    local = LOCAL if callers == 1 else {}
    wire = [f"{SHORT[name]}\n{key}" for name in servers for key in ("p50", "p99")]
    for heading in (*local.values(), *wire, "ratio\np50", "ratio\np99"):
        table.add_column(heading, justify="right")
    cells = {
        (each["server"], each["tokens"]): each["operations"]
        for each in _of(document["cells"], callers)
    }
    for ratio in _of(document["ratios"], callers):
        tokens = ratio["tokens"]
        for name, pair in ratio["operations"].items():
            inner = [cells[server, tokens].get(name) for server in local]
            table.add_row(
                f"{tokens:,}" if tokens else "none",
                name,
                *(f"{each['p50_us']:,.0f}" if each else "-" for each in inner),
                *(
                    f"{cells[server, tokens][name][key]:,.0f}"
                    for server in servers
                    for key in ("p50_us", "p99_us")
                ),
                *(f"{pair[key]:.2f}" for key in ("p50", "p99")),
            )
        table.add_section()
    return table


def load_table(document: dict[str, Any]) -> Table:
    """Return what each server does in a second, and what a call costs it."""
    table = _table("All calls of a cycle together", "tokens", "callers", "server")
    for heading in ("calls/s", "server's CPU,\nus a call"):
        table.add_column(heading, justify="right")
    for cell in document["cells"]:
        if cell["server"] in document["servers"]:
            table.add_row(
                f"{cell['tokens']:,}" if cell["tokens"] else "none",
                str(cell["callers"]),
                cell["server"],
                f"{cell['calls_per_second']:,.0f}",
                f"{cell['server_cpu_us_per_call']:,.0f}",
            )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _of(rows: list[dict[str, Any]], callers: int) -> list[dict[str, Any]]:
    return [each for each in rows if each["callers"] == callers]
