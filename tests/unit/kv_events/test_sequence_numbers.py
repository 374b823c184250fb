"""Numbers of batches that only grow, whatever the clock and however a server ends."""

from pathlib import Path

import pytest

from kvstore.kv_events.sequence_numbers import (
    NUMBERS_IN_A_MILLISECOND,
    RESERVED,
    SequenceNumbers,
    WrongNumbers,
)


def numbers(folder: Path, seconds: float) -> SequenceNumbers:
    """Returns the numbers of a server that starts at a time."""
    return SequenceNumbers(folder / "last-number", lambda: seconds)


def test_a_first_start_begins_at_the_time(tmp_path: Path) -> None:
    """A consumer of an earlier server, whose file was lost, takes them."""
    assert numbers(tmp_path, 1.7e9).first == 1_700_000_000_000 * NUMBERS_IN_A_MILLISECOND


def test_numbers_grow_although_the_clock_steps_back(tmp_path: Path) -> None:
    """A start is beyond all numbers that may have been used before it."""
    first = numbers(tmp_path, 1.7e9)
    first.reserve(first.first + 12)
    second = numbers(tmp_path, 1.0)
    assert second.first > first.first + 12
    third = numbers(tmp_path, 0.0)
    assert third.first > second.first


def test_the_file_is_ahead_of_every_number(tmp_path: Path) -> None:
    """Also of one that is used after very many."""
    first = numbers(tmp_path, 1.7e9)
    far = first.first + 5 * RESERVED
    first.reserve(far)
    assert numbers(tmp_path, 1.0).first > far


def test_most_numbers_write_nothing(tmp_path: Path) -> None:
    """One write allows a million."""
    first = numbers(tmp_path, 1.7e9)
    path = tmp_path / "last-number"
    path.unlink()
    first.reserve(first.first + RESERVED - 1)
    assert not path.exists()
    first.reserve(first.first + RESERVED)
    assert path.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["last-number"]


@pytest.mark.parametrize("content", ["", "x", "-4\n", f"{1 << 63}\n"])
def test_another_content_is_refused(tmp_path: Path, content: str) -> None:
    """With what to do."""
    (tmp_path / "last-number").write_text(content, encoding="ascii")
    with pytest.raises(WrongNumbers, match=r"last-number has no number of a batch: remove it"):
        numbers(tmp_path, 1.0)


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Neither read nor written."""
    (tmp_path / "last-number").mkdir()
    with pytest.raises(WrongNumbers, match="Is a directory"):
        numbers(tmp_path, 1.0)
    with pytest.raises(WrongNumbers, match="No such file"):
        numbers(tmp_path / "nowhere", 1.0)
