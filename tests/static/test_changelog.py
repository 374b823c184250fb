"""CHANGELOG.md has the version that is released, in a form that a reader gets through."""

import re
from pathlib import Path

import kvstore

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def parts() -> dict[str, list[str]]:
    """Return the lines under each heading of a version, in the page's order."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in CHANGELOG.read_text(encoding="utf-8").splitlines():
        heading = re.fullmatch(r"## \[(.+)\]( - \d{4}-\d\d-\d\d)?", line)
        if heading:
            lines = found[heading[1]] = []
        lines.append(line)
    return found


def test_the_newest_release_is_the_version() -> None:
    """Unreleased changes come first, then the version that all programs name."""
    assert list(parts())[:2] == ["Unreleased", kvstore.__version__]


def test_a_release_fits_its_length() -> None:
    """A release is read in one go: at most 120 lines, one line an entry."""
    assert {version: len(lines) for version, lines in parts().items() if len(lines) > 120} == {}
