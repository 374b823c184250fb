"""The prose of the pages is plain: short sentences that name their subject.

Generated pages, tables, code and measured sections are left out: other tests hold those.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Pages whose prose a script writes, from docstrings or the contract.
GENERATED = frozenset(
    {"commands.md", "configuration.md", "errors.md", "metrics.md", "permissions.md", "protocol.md"}
)
# Folders with a page of their own.
FOLDERS = ("benchmarks", "clients", "deploy", "docs/recordings", "proto", "tests")
MOST_WORDS = 30
# A relative clause instead of a subject. Questions begin so too, and are allowed.
RELATIVE = re.compile(
    r"(What|Which|Who|Whoever|How|Whether|Of|Nor|Let|Have)\b(?!.*\?$)", flags=re.DOTALL
)
FENCE = re.compile(r"^ *```.*?^ *```$", flags=re.MULTILINE | re.DOTALL)
# A list item that is a link alone is a title.
TITLE = re.compile(r"^(?:[-*]|\d+\.) \[[^\]]*\]\([^)]*\)$", flags=re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", flags=re.DOTALL)
FIGURES = re.compile(r"<!-- figures: .*?<!-- end of figures -->", flags=re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`")
LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
SENTENCE_END = re.compile(r"(?<=[.!?:])[*_\"')]*\s+(?=[*_\"'(]*(?:[A-Z0-9`]|vLLM|kvstore))")


def pages() -> list[Path]:
    """Return the pages that people write."""
    docs = (path for path in (ROOT / "docs").glob("*.md") if path.name not in GENERATED)
    others = ("README.md", "CONTRIBUTING.md", *(f"{folder}/README.md" for folder in FOLDERS))
    return sorted([*docs, *(ROOT / name for name in others)])


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph and list item of a page as one line, with code and links as words."""
    text = FENCE.sub("\n", COMMENT.sub("\n", FIGURES.sub("\n", TITLE.sub("", text))))
    text = CODE.sub("`code`", LINK.sub(r"\1", text))
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        starts = LIST_ITEM.match(line)
        if starts or not line.strip() or line.startswith(("#", "|")):
            if lines:
                yield " ".join(lines)
            lines = []
        if line.strip() and not line.startswith(("#", "|")):
            lines.append(LIST_ITEM.sub("", line).strip())


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph. A colon ends one, as before a list."""
    return SENTENCE_END.split(paragraph)


def too_long(text: str) -> list[str]:
    """Return the sentences of a page that have too many words."""
    found = (each for paragraph in paragraphs(text) for each in sentences(paragraph))
    return [each for each in found if len(each.split()) > MOST_WORDS]


def without_a_subject(text: str) -> list[str]:
    """Return the paragraphs of a page that begin with a relative clause."""
    return [each for each in paragraphs(text) if RELATIVE.match(each.lstrip("*_"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path) -> None:
    """No sentence of a page has more words than a reader takes in at once."""
    assert too_long(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paragraphs_name_their_subject(page: Path) -> None:
    """No paragraph begins with a relative clause."""
    assert without_a_subject(page.read_text(encoding="utf-8")) == []


def test_a_long_sentence_is_found() -> None:
    """Words are counted over the lines of a paragraph; tables, code and figures are not."""
    long = "word " * 31
    assert len(too_long(f"# A page\n\nShort. {long}\nends.\n\n- {long}\n")) == 2
    assert too_long(f"| {long} |\n```text\n{long}\n```\n<!-- {long} -->\n# {long}\n") == []
    assert too_long(f"<!-- figures: written -->\n{long}\n<!-- end of figures -->\n") == []


def test_a_relative_clause_is_found() -> None:
    """A subject that is a clause is found, also behind emphasis and in lists; questions are not."""
    assert len(without_a_subject("What fails is a miss.\n\n- **Who calls** is known.\n")) == 2
    assert without_a_subject("What is a page?\n\n# What fails\n\nWhatever fails.\n") == []
