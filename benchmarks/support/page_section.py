"""The part of a page that a benchmark writes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

END = "<!-- end of figures -->\n"
# A load average above which other work is part of the figures.
BUSY = 1.0


def marked(program: str, lines: Iterable[str]) -> str:
    """Returns lines between the marks of a program of benchmarks/."""
    begin = f"<!-- figures: written by benchmarks/{program} --page -->\n"
    return "\n".join((begin, *lines, "", END))


def put_section(page: Path, program: str, lines: Iterable[str]) -> None:
    """Writes a program's section of a page, in place of its old one."""
    text = marked(program, lines)
    begin = text[: text.index("\n") + 1]
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{text}{after}", encoding="utf-8")


def busy_lines(load: Mapping[str, float], note: str) -> list[str]:
    """Returns the warning for figures that were measured beside other work."""
    return [note] if load["before"] > BUSY else []
