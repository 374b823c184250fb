"""The markers of pages of KV cache groups."""

import pytest

from kvstore.core.values.group_pages import (
    group_marker,
    group_of,
    is_group_page,
    require_sequence,
)
from kvstore.errors import InvalidField

WIDTH = 16


def test_a_marker_names_its_group() -> None:
    """Each group has a marker of its own, as long as a page."""
    markers = [group_marker(group, WIDTH) for group in (1, 2, 255, (1 << 32) - 1)]
    assert [group_of(each) for each in markers] == [1, 2, 255, (1 << 32) - 1]
    assert all(is_group_page(each) and len(each) == WIDTH for each in markers)


@pytest.mark.parametrize(("group", "width"), [(0, WIDTH), (1 << 32, WIDTH), (1, 4)])
def test_a_marker_needs_a_group_and_room_for_it(group: int, width: int) -> None:
    """Group 0 is the path, and pages of one token have no groups."""
    with pytest.raises(InvalidField):
        group_marker(group, width)


def test_no_page_of_a_sequence_begins_as_a_marker() -> None:
    """The largest token id is refused at the start of a page, and nowhere else."""
    largest, other = b"\xff" * 4, b"\xff\xff\xff\x00"
    require_sequence(other * 4 + other + largest * 3, WIDTH)
    require_sequence(b"", WIDTH)
    for tokens in (largest, other * 4 + largest, largest + other * 7):
        with pytest.raises(InvalidField):
            require_sequence(tokens, WIDTH)
