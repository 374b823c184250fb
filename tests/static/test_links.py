"""Links between the pages of the tree lead somewhere."""

import re
from pathlib import Path

from core.tree_pages import pages

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = ("http://", "https://")
# A path of the tree, as prose names it.
CODE = re.compile(
    r"`((?:benchmarks|clients|deploy|docs|inference_worker|kvstore|proto|tests)/[^`\s]*)`"
)


def prose(page: Path) -> str:
    """Returns a page without its fences, which have no links and headings."""
    return re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def anchors(page: Path) -> set[str]:
    """Returns the anchors that a viewer gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Returns true if a link of a page leads to a file of the tree, and to one of its headings."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in anchors(target))


def test_every_link_leads_somewhere() -> None:
    """Each relative link of each page leads to a file, and to a heading if it names one."""
    found = [
        (str(page.relative_to(ROOT)), link)
        for page in pages()
        for link in LINK.findall(prose(page))
        if not link.startswith(ELSEWHERE)
    ]
    assert len(found) > 100
    assert [each for each in found if not leads_somewhere(ROOT / each[0], each[1])] == []


def test_contributing_names_files_that_exist() -> None:
    """Each file and folder that CONTRIBUTING.md names exists."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {path for path in CODE.findall(text) if not re.search(r"[A-Z*]", path.split("/")[-1])}
    assert len(found) > 20
    assert sorted(path for path in found if not (ROOT / path).exists()) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    """A missing file, a missing heading and a path out of the tree are found."""
    page = ROOT / "docs" / "README.md"
    assert leads_somewhere(page, "../README.md#two-commands")
    wrong = ["nothing.md", "../README.md#nothing", "#nothing", "../../README.md", "../Makefile#x"]
    assert [link for link in wrong if leads_somewhere(page, link)] == []
