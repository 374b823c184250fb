"""A block table names pages in order and finds runs of the same extent."""

import pytest
import torch

from inference_worker.block_table import BlockTable, PageRef

CPU = torch.device("cpu")
PAGES = [PageRef(0, 4), PageRef(0, 2), PageRef(3, 2), PageRef(-1, 0), PageRef(0, 9)]


def test_it_holds_pages_in_order() -> None:
    """Length, capacity and pages are those appended."""
    table = BlockTable(16, PAGES[:2])
    table.append(*PAGES[2:])
    assert (len(table), table.token_capacity, list(table)) == (5, 80, PAGES)
    assert table[2] == PageRef(3, 2)


def test_replacing_a_page_gives_back_the_old_one() -> None:
    """The new page stands in slots and runs, and the old one is returned."""
    table = BlockTable(16, PAGES)
    assert list(table.runs(0, 2)) == [(0, 0, 2)]
    assert table.slots(CPU).tolist() == [4, 2, 2, 0, 9]
    assert table.replace(1, PageRef(5, 11)) == PageRef(0, 2)
    assert list(table.runs(0, 2)) == [(0, 0, 1), (5, 1, 2)]
    assert table.slots(CPU).tolist() == [4, 11, 2, 0, 9]


def test_runs_join_neighbours_of_one_extent() -> None:
    """All pages are covered once, and a range cuts the runs at its ends."""
    table = BlockTable(16, PAGES)
    assert list(table.runs(0, 5)) == [(0, 0, 2), (3, 2, 3), (-1, 3, 4), (0, 4, 5)]
    assert list(table.runs(1, 3)) == [(0, 1, 2), (3, 2, 3)]
    assert list(table.runs(2, 2)) == []


def test_an_empty_table_has_no_runs() -> None:
    """Nothing is found in nothing."""
    table = BlockTable(16)
    assert list(table.runs(0, 0)) == []
    assert table.slots(CPU).tolist() == []


def test_a_page_outside_the_table_is_an_error() -> None:
    """Replacing what is not there raises."""
    with pytest.raises(IndexError):
        BlockTable(16).replace(0, PageRef(0, 0))
