"""The decisions in docs/decisions keep their numbers and their form."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
HEADINGS = ["Context", "Decision", "Consequences", "What was measured"]
LONGEST = 600
MEASUREMENTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))


def test_numbers_are_unique_and_without_gaps() -> None:
    """The files are 0001-some-words.md, 0002-..., each number once."""
    names = [path.name for path in DECISIONS]
    assert [name for name in names if not re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name)] == []
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_each_decision_has_the_same_parts() -> None:
    """A title with the file's number, then context, decision, consequences, what was measured."""
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == HEADINGS, path.name


def test_no_decision_is_longer_than_its_bound() -> None:
    """A decision has at most 600 words: longer measurements have pages in benchmarks/results."""
    counts = {path.name: len(path.read_text(encoding="utf-8").split()) for path in DECISIONS}
    assert {name: count for name, count in counts.items() if count > LONGEST} == {}


def test_measurements_and_their_decisions_link_each_other() -> None:
    """A page 0001-some-words.md in benchmarks/results belongs to the decision of its number."""
    decisions = {path.name[:4]: path for path in DECISIONS}
    for page in MEASUREMENTS:
        number = page.name[:4]
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}: "), page.name
        assert f"(../../docs/decisions/{decisions[number].name})" in text, page.name
        link = f"(../../benchmarks/results/{page.name})"
        assert link in decisions[number].read_text(encoding="utf-8"), page.name


def test_the_index_links_every_decision() -> None:
    """docs/README.md links each decision."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in DECISIONS if f"(decisions/{path.name})" not in index] == []
