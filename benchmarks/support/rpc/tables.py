"""The figures of rpc.py for people."""

from typing import Any

from rich import box
from rich.table import Table

LOCAL = {"store alone": "store\nalone", "in process": "no\ngRPC"}
SHORT = {"grpc.server": "threads", "grpc.aio": "aio", "hot lane": "lane"}


def tables(document: dict[str, Any]) -> list[Table]:
    """Returns the times of calls, one caller or many at a time, and their cost."""
    callers = sorted({each["callers"] for each in document["ratios"]})
    times = [_times(document, each, key) for each in callers for key in ("p50", "p99")]
    return [*times, _load(document)]


def _times(document: dict[str, Any], callers: int, key: str) -> Table:
    """Returns a quantile of each call's times, and last the ratio of aio to threads."""
    servers = [*(LOCAL if callers == 1 else ()), *document["servers"]]
    title = f"{key} of a call in microseconds, {callers} at a time"
    table = _table(title, "tokens", "call")
    for heading in (*((LOCAL | SHORT)[name] for name in servers), "aio /\nthreads"):
        table.add_column(heading, justify="right", no_wrap=True)
    cells = {
        (each["server"], each["tokens"]): each["operations"]
        for each in _of(document["cells"], callers)
    }
    for ratio in _of(document["ratios"], callers):
        tokens = ratio["tokens"]
        for name, pair in ratio["operations"].items():
            found = [cells[server, tokens].get(name) for server in servers]
            table.add_row(
                f"{tokens:,}" if tokens else "none",
                name,
                *(f"{each[f'{key}_us']:,.0f}" if each else "-" for each in found),
                f"{pair[key]:.2f}",
            )
        table.add_section()
    return table


def _load(document: dict[str, Any]) -> Table:
    """Returns each server's calls a second, and its cost of a call."""
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
