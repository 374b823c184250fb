"""The part of a page that a benchmark writes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

END = "<!-- end of figures -->\n"
# A load average above which other work is part of the figures.
BUSY = 1.0


def marked(program: str, lines: Iterable[str]) -> str:
    """Returns lines between the marks of a program of benchmarks/, as a page has them."""
    begin = f"<!-- figures: written by benchmarks/{program} --page -->\n"
    return "\n".join((begin, *lines, "", END))


def put_section(page: Path, program: str, lines: Iterable[str]) -> None:
    """Puts what a program writes into a page, in place of what is there of it."""
    text = marked(program, lines)
    begin = text[: text.index("\n") + 1]
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{text}{after}", encoding="utf-8")


def busy_lines(load: Mapping[str, float], note: str) -> list[str]:
    """Returns what is said of figures where other work had the machine before them."""
    return [note] if load["before"] > BUSY else []
