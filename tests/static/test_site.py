"""The documentation as a site: it builds, its links have targets, and tests run its snippets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.tree_pages import pages
from docs.snippets import NOT_RUN, RUN, snippets

ROOT = Path(__file__).parents[2]
# Languages of fences that a reader may type in.
TYPED = frozenset({*RUN, "bash", "py", "pycon", "sh", "shell", "shell-session", "zsh"})
# A file that a snippet writes into the reader's folder.
WRITTEN = re.compile(r"(?<![>2&])> ?([\w.-]+\.\w+)|open\(\"([\w.-]+)\", \"w")
HEAD = '<html><body><h1 id="here">A page</h1>'


def unmarked(text: str) -> list[str]:
    """Returns the languages of typed fences that no test runs, without a reason."""
    found: list[str] = []
    before, inside = "", False
    for line in text.splitlines():
        if line.startswith("```"):
            language = line[3:].strip()
            if not inside and language in TYPED - {*RUN} and not before.startswith(NOT_RUN):
                found.append(language)
            inside = not inside
        if line and not inside:
            before = line
    return found


def check(site: Path) -> "subprocess.CompletedProcess[str]":
    """Checks a site as `make docs` does."""
    command = [sys.executable, str(ROOT / "docs" / "site_check.py"), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_site_can_be_built_and_leads_nowhere_wrong(tmp_path: Path) -> None:
    """Every page is in the navigation, every link has a target, and nothing is fetched."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    # With --quiet mkdocs would count no warnings.
    assert "Documentation built" in built.stderr
    looked = check(tmp_path / "site")
    assert looked.returncode == 0, looked.stdout
    count, *_ = re.findall(r"^(\d+) pages, \d+ links, 0 wrong$", looked.stdout, re.MULTILINE)
    assert int(count) > 70


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="b.html#there">', None),
        ('<a href="#here">', None),
        ('<a href="https://example.org/a?b#c">', None),
        ('<link rel="next" href="b.html">', None),
        ('<a href="c.html">', "leads nowhere"),
        ('<a href="../a.html">', "leads nowhere"),
        ('<a href="b.html#here">', "has no such heading"),
        ('<a href="#nowhere">', "has no such heading"),
        ('<a href="https://example">', "is no address"),
        ('<a href="ftp://example.org/">', "is no address"),
        ('<img src="https://example.org/a.png">', "is fetched from another site"),
        ('<script src="//example.org/a.js">', "is fetched from another site"),
        (
            '<link rel="stylesheet" href="https://example.org/a.css">',
            "is fetched from another site",
        ),
        ('<img src="a.png">', "leads nowhere"),
    ],
)
def test_a_wrong_link_is_seen(tmp_path: Path, body: str, said: str | None) -> None:
    """A link without a target, or one that a browser would fetch, is named and ends with 1."""
    (tmp_path / "a.html").write_text(HEAD + body)
    (tmp_path / "b.html").write_text('<h1 id="there">')
    looked = check(tmp_path)
    assert looked.returncode == (said is not None), looked.stdout
    assert said is None or said in looked.stdout


def test_a_style_that_fetches_is_seen(tmp_path: Path) -> None:
    """A stylesheet's font from another site is found: a browser would fetch it."""
    (tmp_path / "a.html").write_text(HEAD)
    (tmp_path / "a.css").write_text("@font-face {src: url(https://example.org/a.woff)}")
    looked = check(tmp_path)
    assert (looked.returncode, "a.css: https://example.org/a.woff" in looked.stdout) == (1, True)


def test_every_snippet_is_run_or_says_why_not() -> None:
    """`make docs` runs `console` and `python`; fences of other command languages have a reason."""
    found = {str(page.relative_to(ROOT)): unmarked(page.read_text("utf-8")) for page in pages()}
    assert {page: fences for page, fences in found.items() if fences} == {}


def test_what_is_not_run_says_why() -> None:
    """Each mark has a reason."""
    marks = {
        (str(page.relative_to(ROOT)), line)
        for page in pages()
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith(NOT_RUN.strip())
    }
    assert len(marks) > 10
    assert [mark for mark in marks if not re.fullmatch(r"<!-- not run: .{8,} -->", mark[1])] == []


def test_an_unmarked_fence_is_seen() -> None:
    """A fence in a language that no test runs is found, unless it has a reason."""
    assert unmarked("```sh\nls\n```\n```text\n$ ls\n```\n<!-- not run: why -->\n```sh\n```") == [
        "sh"
    ]


def written(page: Path) -> set[str]:
    """Returns the names of the files that a page's snippets write."""
    found = (each for snippet in snippets(page) for each in WRITTEN.findall(snippet.text))
    return {name for names in found for name in names if name}


def test_what_a_reader_writes_is_that_page_s_alone() -> None:
    """No two pages write the same file, and none writes a file of the project."""
    by_page = [name for page in pages() for name in written(page)]
    assert {"system.txt", "system-tokens.txt"} <= set(by_page)
    assert sorted(by_page) == sorted(set(by_page))
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    listed = ["git", "ls-files", "--", *by_page]
    assert subprocess.check_output(listed, cwd=ROOT, text=True) == ""
