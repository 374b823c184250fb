"""The tables of threats and failures: every line names tests, and they exist."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("failures.md", "threat-model.md")
TEST = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")


def lines_of(page: str) -> list[str]:
    """Returns the lines of those tables of a page that name tests."""
    lines: list[str] = []
    named = False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            named = False
        elif line.rstrip(" |").endswith("shown by"):
            named = True
        elif named and not line.startswith("| ---"):
            lines.append(line)
    return lines


@pytest.mark.parametrize("page", PAGES)
def test_every_line_names_the_tests_that_show_it(page: str) -> None:
    """Each line names a test, and the test exists."""
    lines = lines_of(page)
    assert len(lines) > 10
    for line in lines:
        tests = TEST.findall(line)
        assert tests, f"no test: {line}"
        for name, path in tests:
            source = (DOCS / path).read_text(encoding="utf-8")
            found = re.search(rf"^\s*(async )?def {name}\(", source, re.MULTILINE)
            assert found, f"{name}: not in {path}"
