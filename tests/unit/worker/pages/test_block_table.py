"""A block table lists pages in order and says where each is."""

import pytest

from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageRef

PAGES = [PageRef(0, 4), PageRef(0, 2), PageRef(3, 2), PageRef(-1, 0), PageRef(0, 9)]


def test_it_holds_pages_in_order() -> None:
    """A table's length, capacity and pages are those that were appended."""
    table = BlockTable(16, PAGES[:2])
    table.append(*PAGES[2:])
    assert (len(table), table.token_capacity, list(table)) == (5, 80, PAGES)
    assert table[2] == PageRef(3, 2)


def test_replacing_a_page_gives_back_the_old_one() -> None:
    """The new page appears in slots and extents, and the old one is returned."""
    table = BlockTable(16, PAGES)
    assert table.slots.tolist() == [4, 2, 2, 0, 9]
    assert table.extents.tolist() == [0, 0, 3, -1, 0]
    assert table.replace(1, PageRef(5, 11)) == PageRef(0, 2)
    assert table.slots.tolist() == [4, 11, 2, 0, 9]
    assert table.extents.tolist() == [0, 5, 3, -1, 0]


def test_an_empty_table_names_nothing() -> None:
    """An empty table finds no page, until one is appended."""
    table = BlockTable(16)
    assert table.slots.tolist() == table.extents.tolist() == []
    table.append(PAGES[2])
    assert (table.extents.tolist(), table.slots.tolist()) == ([3], [2])


def test_a_page_outside_the_table_is_an_error() -> None:
    """Replacing a page that the table does not have raises."""
    with pytest.raises(IndexError):
        BlockTable(16).replace(0, PageRef(0, 0))
