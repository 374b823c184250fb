"""Tokens as bytes: counting, and comparing by pages."""

from typing import ClassVar

import pytest

from kvstore.core.values.tokens import common_pages, token_count
from kvstore.errors import InvalidField

WIDTH = 8


class CountingBytes(bytes):
    """Bytes that count how often a part of them is taken."""

    taken: ClassVar[int] = 0

    def __getitem__(self, key: slice) -> bytes:  # type: ignore[override]
        """Count, and take the part."""
        CountingBytes.taken += 1
        return super().__getitem__(key)


def pages(*numbers: int) -> bytes:
    """Returns pages of two tokens: the first is always the same."""
    return b"".join(b"same" + number.to_bytes(4, "little") for number in numbers)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_four_bytes_are_a_token(count: int) -> None:
    """A sequence of n tokens is 4 * n bytes."""
    assert token_count(bytes(4 * count)) == count


@pytest.mark.parametrize("length", [1, 2, 3, 5, 4095])
def test_a_broken_token_is_refused_by_its_length(length: int) -> None:
    """Bytes that are no whole tokens are refused, and the error names how many there were."""
    with pytest.raises(InvalidField) as error:
        token_count(bytes(length))
    assert error.value.metadata["field"] == "tokens"
    assert error.value.metadata["value"] == str(length)


@pytest.mark.parametrize("length", range(10))
def test_a_divergence_is_found_at_every_page(length: int) -> None:
    """Two sequences that part at any page have the pages before it in common."""
    edge = pages(*range(length))
    for parting in range(length):
        tokens = pages(*range(parting), 99, *range(parting + 1, length))
        assert common_pages(edge, 0, tokens, 0, len(tokens), WIDTH) == parting
    assert common_pages(edge, 0, edge, 0, len(edge), WIDTH) == length


def test_agreement_within_a_page_counts_for_nothing() -> None:
    """Pages that share their first token and differ in their second are not common."""
    assert common_pages(pages(1), 0, pages(2), 0, WIDTH, WIDTH) == 0


def test_comparison_ends_with_the_shorter() -> None:
    """Neither an edge's end nor the sequence's is passed."""
    edge, tokens = pages(1, 2, 3), pages(1, 2, 3, 4)
    assert common_pages(edge, 0, tokens, 0, len(tokens), WIDTH) == 3
    assert common_pages(tokens, 0, edge, 0, len(edge), WIDTH) == 3


def test_what_lies_beyond_the_end_is_not_compared() -> None:
    """Pages of the sequence beyond ``end`` don't count, though they are the edge's."""
    tokens = pages(1, 2, 3)
    assert common_pages(tokens, 0, tokens, 0, 2 * WIDTH, WIDTH) == 2


def test_both_sides_are_compared_from_their_own_places() -> None:
    """The edge is read from its offset, the sequence from its start."""
    edge, tokens = pages(0, 5, 6, 7), pages(1, 2, 5, 6, 9)
    assert common_pages(edge, WIDTH, tokens, 2 * WIDTH, len(tokens), WIDTH) == 2


@pytest.mark.parametrize("parting", [0, 1, 500, 700, 1023])
def test_a_divergence_costs_a_bisection(parting: int) -> None:
    """To find where 1,024 pages part takes some twenty slices, not 1,024."""
    numbers = list(range(1024))
    edge = CountingBytes(pages(*numbers))
    numbers[parting] = 5000
    tokens = CountingBytes(pages(*numbers))
    CountingBytes.taken = 0
    assert common_pages(edge, 0, tokens, 0, len(tokens), WIDTH) == parting
    assert CountingBytes.taken <= 1 + 2 * 10


def test_agreement_costs_one_comparison() -> None:
    """A comparison of equal pages takes one part of the edge and none of the sequence."""
    edge = CountingBytes(pages(*range(1024)))
    tokens = CountingBytes(edge)
    CountingBytes.taken = 0
    assert common_pages(edge, 0, tokens, 0, len(tokens), WIDTH) == 1024
    assert CountingBytes.taken == 1
