"""The demo's table, which grows as requests are answered."""

from statistics import median
from typing import Any, Final, NamedTuple, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

# Names short enough for all to fit 80 columns; the caption says what they mean.
COLUMNS = (
    ("who", "left"),
    ("request", "left"),
    ("prompt", "right"),
    ("hit", "right"),
    ("copy", "right"),
    ("by", "left"),
    ("run", "right"),
    ("ms", "right"),
    ("alone", "right"),
    ("stock", "right"),
    ("sooner", "right"),
    ("same", "left"),
)
TOKENS_CAPTION: Final = (
    "Tokens: hit = matched and used in place, copy = reused from a page that goes on otherwise, "
    "by = whose pages, run = prefilled. "
    "Milliseconds to the first token: with the store, the same worker alone, "
    "stock transformers; sooner = the second by the first, where anything was reused. "
    "same = the tokens of stock transformers. "
)


class TableText(NamedTuple):
    """The text above and below a table."""

    title: str
    caption: str


WORKERS: Final = TableText(
    "Two workers, one store",
    TOKENS_CAPTION + "takeover = B was killed in it, and A answers it from what B had published.",
)
HOSTS: Final = TableText(
    "Two hosts, one engine",
    TOKENS_CAPTION + "by = engine: pages of the other host, from the engine; own: of this host. "
    "engine gone = after the engine was killed.",
)

# Of a request that reuses less, the time is that of computing.
HITS = "reused more of their prompt than they computed"


class DemoTable:
    """A live table on ``console``; a context manager, one thread."""

    def __init__(self, console: Console, text: TableText = WORKERS) -> None:
        """Starts empty."""
        self._table = Table(
            title=text.title, caption=text.caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for name, justify in COLUMNS:
            self._table.add_column(name, justify="right" if justify == "right" else "left")
        self._console = console
        self._live = Live(self._table, console=console, auto_refresh=False)

    def add(self, kind: str, row: dict[str, Any]) -> None:
        """Shows one request's row of the report."""
        self._table.add_row(
            row["worker"],
            kind,
            str(row["prompt_tokens"]),
            str(row["matched_tokens"]),
            str(row["copied_tokens"]),
            row["published_by"] or "",
            str(row["prefilled_tokens"]),
            f"{row['ttft_ms']:.0f}",
            f"{row['ttft_ms_without']:.0f}",
            f"{row['ttft_ms_stock']:.0f}",
            _sooner(row),
            "yes" if row["identical"] else "NO",
        )
        self._live.refresh()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        if not self._console.is_terminal:
            # Nothing ends the table's last line then.
            self._console.print()


def _sooner(row: dict[str, Any]) -> str:
    """Returns the speedup of the first token, or "-" if nothing was reused."""
    reused = row["matched_tokens"] + row["copied_tokens"]
    return f"{row['ttft_ms_without'] / row['ttft_ms']:.1f}x" if reused else "-"


def summary(report: dict[str, Any]) -> list[str]:
    """Returns sentences about the table: medians, identical outputs, and leaks."""
    rows = report["requests"]
    exact = sum(
        row["matched_tokens"] + row["copied_tokens"] == row["shared_tokens"] for row in rows
    )
    hits = [row for row in rows if row["matched_tokens"] > row["prefilled_tokens"]]
    identical = sum(row["identical"] for row in rows)
    same = f"Output tokens identical to stock transformers in {identical} of {len(rows)} requests"
    ties = f"{report['near_tie_tokens']} near ties in {report['output_tokens']} tokens"
    left = f"{report['slots_leaked']} slots and {report['pins_leaked']} pins left over"
    lines = [
        f"{same} ({ties}).",
        f"Every token that was computed before was reused in {exact} of {len(rows)} requests.",
        f"After worker B was killed and A is idle: {left}.",
    ]
    if hits:
        sooner = [row["ttft_ms_without"] / row["ttft_ms"] for row in hits]
        alone = median(row["ttft_ms_without"] / row["ttft_ms_stock"] for row in rows)
        times = f"{median(sooner):.1f}x in the median, {min(sooner):.1f}x at least"
        lines += [
            f"Of {len(rows)} requests {len(hits)} {HITS}: their first token sooner by {times}.",
            f"Without the store the worker's prefill takes {alone:.2f}x of stock transformers'.",
        ]
    return lines
