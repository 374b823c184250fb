"""The table shows each request as it ends, and the summary shows what is left over."""

import io
from typing import Any

from rich.console import Console

from inference_worker.demo.table import COLUMNS, DemoTable, summary


def row(**changes: object) -> dict[str, Any]:
    """Returns a request's row of a report."""
    values: dict[str, Any] = {
        "worker": "A",
        "prompt_tokens": 2011,
        "shared_tokens": 2003,
        "matched_tokens": 2000,
        "copied_tokens": 3,
        "published_by": "B",
        "prefilled_tokens": 8,
        "ttft_ms": 20.0,
        "ttft_ms_without": 180.0,
        "ttft_ms_stock": 150.0,
        "identical": True,
    }
    return values | changes


def report(*rows: dict[str, Any]) -> dict[str, Any]:
    """Returns a report of some rows."""
    return {
        "requests": list(rows),
        "slots_leaked": 3,
        "pins_leaked": 1,
        "near_tie_tokens": 2,
        "output_tokens": 144,
    }


def shown(*rows: dict[str, Any]) -> str:
    """Returns the final table of some rows."""
    console = Console(file=io.StringIO(), width=160)
    with DemoTable(console) as table:
        for each in rows:
            table.add("question", each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_request_is_a_line() -> None:
    """One line has all figures of a request, under their names."""
    text = shown(row())
    for name, _ in COLUMNS:
        assert name in text
    (line,) = (line for line in text.splitlines() if "2011" in line)
    assert line.split() == [
        *("A", "question", "2011", "2000", "3", "B", "8", "20", "180", "150", "9.0x", "yes")
    ]


def test_the_table_fits_a_narrow_terminal() -> None:
    """In 80 columns no name and no figure is cut or broken."""
    console = Console(file=io.StringIO(), width=80)
    with DemoTable(console) as table:
        table.add(
            "question", row(published_by="A+B", ttft_ms_without=12345.0, ttft_ms_stock=9999.0)
        )
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    (line,) = (line for line in text.splitlines() if "2011" in line)
    assert line.split()[-5:] == ["20", "12345", "9999", "617.2x", "yes"]


def test_a_difference_is_seen() -> None:
    """The table marks a request with differing tokens, and one without a match."""
    text = shown(row(identical=False, published_by=None, worker="B"))
    (line,) = (line for line in text.splitlines() if "2011" in line)
    assert "NO" in line
    assert "None" not in line


def test_what_was_not_reused_is_not_compared() -> None:
    """A request that only publishes shows no speedup, although its time is shown."""
    text = shown(row(matched_tokens=0, copied_tokens=0, published_by=None, ttft_ms=360.0))
    (line,) = (line for line in text.splitlines() if "2011" in line)
    assert line.split()[-5:] == ["360", "180", "150", "-", "yes"]


def test_the_summary_counts() -> None:
    """The summary counts identical outputs and leaks, and says how much faster the hits were."""
    cold = row(
        matched_tokens=0, copied_tokens=0, shared_tokens=0, prefilled_tokens=2011, ttft_ms=200.0
    )
    slower = row(ttft_ms=60.0, identical=False, copied_tokens=2)
    lines = summary(report(cold, row(), slower))
    assert "2 of 3 requests (2 near ties in 144 tokens)" in lines[0]
    assert "reused in 2 of 3 requests" in lines[1]
    assert "3 slots and 1 pins left over" in lines[2]
    assert "Of 3 requests 2 reused more of their prompt than they computed" in lines[3]
    assert "sooner by 6.0x in the median, 3.0x at least" in lines[3]
    assert "1.20x" in lines[4]


def test_without_a_hit_there_is_no_speed() -> None:
    """The summary says nothing about time if nothing was matched."""
    assert len(summary(report(row(matched_tokens=0, prefilled_tokens=2011)))) == 3
