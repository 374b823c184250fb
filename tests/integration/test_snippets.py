"""The commands and code in the docs do what their pages say."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from docs.snippets import Snippet, reader, require_output, snippets
from kvstore_client.testing import running_store

ROOT = Path(__file__).parents[2]
# Those that `make test` follows; `make docs` follows every page that has snippets.
OFTEN = (
    "README.md",
    "clients/README.md",
    "docs/page-life.md",
    "docs/tenants.md",
    "docs/tutorial.md",
)
NEEDS = {
    "docs/tenants.md": pytest.mark.skipif(which("openssl") is None, reason="needs openssl"),
    # Workers with a model, whose start takes most of the time.
    "docs/tutorial.md": pytest.mark.slow,
}


def pages() -> list[str]:
    """Returns the pages to follow, as chosen by $KVSTORE_SNIPPETS."""
    if os.environ.get("KVSTORE_SNIPPETS") != "all":
        return list(OFTEN)
    found = (path for path in ROOT.rglob("*.md") if "/." not in f"/{path.relative_to(ROOT)}")
    return sorted(path.relative_to(ROOT).as_posix() for path in found if snippets(path))


def starts_a_server(found: list[Snippet]) -> bool:
    """Returns whether the reader of a page starts a server by its commands."""
    lines = (line for each in found for line in each.text.splitlines())
    return any(re.search(r"kvstore-server\b.*&$", line) for line in lines)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as made:
        yield Path(made)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=NEEDS.get(page, ())) for page in pages()]
)
def test_a_page_can_be_followed(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command and piece of code of a page runs and prints what the page shows."""
    found = snippets(ROOT / page)
    assert found
    environment = {
        "KVSTORE_RUNTIME_DIR": str(folder / "run"),
        "KVSTORE_TIER1_BYTES": "64MiB",
        "TMPDIR": str(folder),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with (
        running_store(runtime_dir=folder / "run", start=not starts_a_server(found)),
        reader(environment, folder) as follows,
    ):
        for snippet in found:
            follows.run(snippet)


def test_the_first_worker_can_be_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's worker finds on its second run what it cached on its first run."""
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", str(folder / "run"))
    (worker,) = (each for each in snippets(ROOT / "README.md") if each.language == "python")
    with running_store(runtime_dir=folder / "run"), reader({}, folder) as follows:
        follows.run(worker)
        follows.run(worker)


def test_what_a_command_exports_holds_for_what_follows(tmp_path: Path) -> None:
    """An exported variable holds for later commands and code, and ends with the reader."""
    with reader({}, tmp_path) as follows:
        for language, text, output in (
            ("console", '$ export SNIPPET_SAYS="$(echo hello)"\n$ echo $SNIPPET_SAYS\nhello', None),
            ("python", "import os; print(os.environ['SNIPPET_SAYS'])", "hello"),
        ):
            follows.run(Snippet("page.md", 1, language, text, output))
    assert "SNIPPET_SAYS" not in os.environ


def test_snippets_are_found(tmp_path: Path) -> None:
    """Python and console snippets are found, also hidden ones, but not those marked as not run."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n<!-- python\na = 1\n-->\n```python\nprint(a)\n```\n\n```text\n1\n```\n"
        "<!-- not run: why -->\n```console\n$ no\n```\n```console\n$ yes\n```\n```json\n{}\n```\n"
        "```python\nb = 1\n```\nAs a picture:\n```text\n1\n```\n"
    )
    assert snippets(page) == [
        Snippet("page.md", 3, "python", "a = 1"),
        Snippet("page.md", 6, "python", "print(a)", "1"),
        Snippet("page.md", 17, "console", "$ yes"),
        Snippet("page.md", 23, "python", "b = 1"),
    ]


@pytest.mark.parametrize(
    ("language", "text", "output"),
    [
        ("python", "print(1)", "2"),
        ("python", "raise ValueError", None),
        ("console", "$ echo 1\n2", None),
        ("console", "$ false", None),
        ("console", "$ false | true", None),
        ("console", "echo", None),
    ],
)
def test_a_snippet_that_is_wrong_is_caught(
    tmp_path: Path, language: str, text: str, output: str | None
) -> None:
    """A snippet that fails, or prints something else than its page says, raises."""
    with reader({}, tmp_path) as follows, pytest.raises((AssertionError, ValueError)):
        follows.run(Snippet("page.md", 1, language, text, output))


def test_dots_stand_for_anything() -> None:
    """Three dots of a page stand for text that differs between runs."""
    require_output("page.md:1", "a ... d\n...\nz", "a b c d  \n1\n2\nz\n")
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        require_output("page.md:1", "a ... d", "a b c")
