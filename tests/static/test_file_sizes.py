"""One noun per file: files stay short enough to be read alone."""

from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
LONGEST = 300
LARGEST_MEDIAN = 120
# A service's contract stands in one file, comments and all: the limit is for code.
SOURCES = ("kvstore", "clients", "inference_worker", "proto")
TESTS = ("tests", "benchmarks")
GENERATED = ROOT / "kvstore" / "v1"


def line_counts(folders: tuple[str, ...], suffix: str) -> dict[str, int]:
    """Return the lines of each file of a kind that a person wrote, by its path."""
    return {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in sorted((ROOT / folder).rglob(f"*{suffix}"))
        if GENERATED not in path.parents
    }


def test_no_file_is_longer_than_one_can_hold() -> None:
    """No file of code that a person wrote has more than 300 lines, comments included."""
    counts = line_counts((*SOURCES, *TESTS), ".py")
    assert {path: lines for path, lines in counts.items() if lines > LONGEST} == {}


def test_most_files_are_short() -> None:
    """The median source file has at most 120 lines."""
    counts = line_counts(SOURCES, ".py")
    assert median(counts.values()) <= LARGEST_MEDIAN
