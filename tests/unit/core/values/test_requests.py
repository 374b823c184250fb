"""Requests to the core and its answers, as values."""

import pytest

from kvstore.core.values.requests import Match, Sequence


def test_a_sequence_starts_at_its_beginning_by_default() -> None:
    """Without more said, tokens are the whole sequence and name no base."""
    sequence = Sequence(b"abcd")
    assert (sequence.position, sequence.base_pin_id, sequence.base_reservation_id) == (
        0,
        None,
        None,
    )


def test_sequences_are_told_apart_by_every_field() -> None:
    """Two sequences are equal only if they are alike."""
    sequences = [
        Sequence(b"abcd"),
        Sequence(b"abce"),
        Sequence(b"abcd", 2),
        Sequence(b"abcd", 2, base_pin_id=1),
        Sequence(b"abcd", 2, base_reservation_id=1),
    ]
    assert len(set(sequences)) == 5
    assert Sequence(b"abcd", 2, 1) == Sequence(b"abcd", 2, 1)


def test_answers_cannot_be_changed() -> None:
    """An answer is a copy that stays what it was."""
    with pytest.raises(AttributeError):
        Match(0, ()).matched_token_count = 4  # type: ignore[misc]
