"""The part of a page that a benchmark writes."""

from pathlib import Path


def put_section(page: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between the lines ``begin`` and ``end`` of a page, in place of what is there."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
