"""The figures of fetch.py as a section of docs/peers.md."""

from collections.abc import Iterator
from typing import Any

from support.page_section import busy_lines

PROGRAM = "fetch.py"
BUSY_NOTE = (
    "Other work ran on the machine. It slows work of the processor most, and makes rows with"
    " several threads meaningless. Trust ratios, and prefer a quiet run to this one."
)
TITLES = {"fetch": "64 MiB of KV for a hit", "store": "64 MiB of KV published"}


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Yields the tables, as Markdown."""
    facts, load, method = document["machine"], document["load_average"], document["method"]
    yield (
        f"One run of {method['rounds']} rounds on {facts['cores']} cores of an"
        f" {facts['processor']}, with {method['peer']}."
        f" The load average was {load['before']} before it."
    )
    yield from busy_lines(load, BUSY_NOTE)
    cells = document["cells"]
    yield ""
    sizes = sorted({each["tokens"] for each in cells if each["part"] == "hit"})
    head = "".join(f" {size:,} tokens, ms | ratio |" for size in sizes)
    yield f"| a whole hit, no bytes copied |{head}"
    yield "| --- |" + " --- | --- |" * len(sizes)
    hits = [each for each in cells if each["part"] == "hit"]
    for name in dict.fromkeys(each["name"] for each in hits):
        row = {each["tokens"]: each for each in hits if each["name"] == name}
        figures = "".join(
            f" {row[size]['whole_ms']:.2f} | {row[size]['ratio']:.2f} |" for size in sizes
        )
        yield f"| {name} |{figures}"
    for part, title in TITLES.items():
        yield ""
        yield f"| {title} | ms | GB/s | ratio to {document['references'][part]} | fastest, ms |"
        yield "| --- | --- | --- | --- | --- |"
        for each in cells:
            if each["part"] == part:
                figures = f"{each['whole_ms']:.1f} | {each['gb_s']:.1f} | {each['ratio']:.2f}"
                yield f"| {each['name']} | {figures} | {each['fastest_ms']:.1f} |"
