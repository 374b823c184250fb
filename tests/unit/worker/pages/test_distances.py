"""Page distances on the device follow their block tables, and only changes are written."""

import pytest
import torch

from inference_worker.errors import UnknownExtentError
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.distances import FEWEST_PAGES, UNIT_BYTES
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

LAYOUT = PageLayout(3, 2, 4, "float32", 4)
SLOTS = 2 * FEWEST_PAGES


def extent() -> torch.Tensor:
    """Returns the memory of an extent."""
    return torch.zeros(SLOTS, *LAYOUT.page_shape)


@pytest.fixture
def pool() -> PagePool:
    """Returns a pool of three extents."""
    pool = PagePool(LAYOUT)
    for key in (0, 9, -1):
        pool.add_extent(key, extent())
    return pool


def table_of(*pages: tuple[int, int]) -> BlockTable:
    """Returns a table of (extent, slot)."""
    return BlockTable(LAYOUT.page_tokens, [PageRef(*page) for page in pages])


def written(pool: PagePool, *tables: BlockTable) -> int:
    """Updates the device like a step, and returns how many entries were written."""
    update = pool.distances.update(tables)
    places, distances = torch.from_numpy(update.places), torch.from_numpy(update.distances)
    pool.distances.write(update, places, distances)
    for table, offset in zip(tables, update.offsets.tolist(), strict=True):
        found = pool.distances.array[offset : offset + len(table)] * UNIT_BYTES
        addresses = [pool.page(page).data_ptr() for page in table]
        assert (found + pool.distances.base.data_ptr()).tolist() == addresses
    return len(update.places)


def test_a_distance_leads_to_its_page(pool: PagePool) -> None:
    """Each distance from the base leads to its page, in every extent and for any table length."""
    tables = [table_of((0, 3), (-1, 2)), table_of(), table_of((9, 1), (0, 0), (9, 0))]
    assert written(pool, *tables) == 5
    assert written(pool, *tables) == 0


def test_only_what_is_new_is_written(pool: PagePool) -> None:
    """Each appended or replaced page is written once, and no other page."""
    tables = [table_of((0, 3), (-1, 2)), table_of((9, 1), (0, 0))]
    written(pool, *tables)
    tables[0].append(PageRef(9, 5), PageRef(9, 6))
    assert written(pool, *tables) == 2
    tables[1].replace(0, PageRef(-1, 7))
    tables[1].replace(0, PageRef(0, 7))
    tables[1].append(PageRef(9, 8))
    tables[1].replace(2, PageRef(9, 9))
    assert written(pool, *tables) == 2
    assert written(pool, *tables) == 0


def test_a_row_grows_by_doubling(pool: PagePool) -> None:
    """A table that outgrows its row is written whole, once for each doubling."""
    first, second = table_of((0, 0)), table_of((9, 0))
    written(pool, first, second)
    sizes = []
    for slot in range(1, SLOTS):
        first.append(PageRef(0, slot))
        sizes.append(written(pool, first, second))
    whole = [size for size in sizes if size > 1]
    assert whole == [FEWEST_PAGES + 1]
    second.append(*[PageRef(9, slot) for slot in range(SLOTS - 1)])
    assert written(pool, second, first) == SLOTS


def test_an_extent_that_is_gone_is_never_read(pool: PagePool) -> None:
    """A table with a page of a removed extent raises, also if it was written before."""
    table, other = table_of((0, 3), (9, 2)), table_of((0, 1))
    written(pool, table, other)
    pool.remove_extent(9)
    for stale in (table, table_of((9, 1))):
        with pytest.raises(UnknownExtentError):
            pool.distances.update([other, stale])
    assert written(pool, other) == 0


def test_an_extent_at_another_place_is_written_anew(pool: PagePool) -> None:
    """Tables with pages of a moved extent are written whole, and others are not written."""
    table, other = table_of((0, 3), (9, 2)), table_of((0, 1))
    written(pool, table, other)
    kept = pool.page(PageRef(9, 0))  # so that its memory is not reused
    pool.remove_extent(9)
    pool.add_extent(9, extent())
    assert pool.page(PageRef(9, 0)).data_ptr() != kept.data_ptr()
    assert written(pool, table, other) == 2
    assert written(pool, table, other) == 0


def test_an_update_that_was_not_written_is_made_again(pool: PagePool) -> None:
    """An update that a failed step did not write is made again by the next step."""
    table = table_of((0, 3), (9, 2))
    pool.distances.update([table])
    assert written(pool, table) == 2
    table.append(PageRef(0, 1))
    table.replace(0, PageRef(0, 2))
    pool.distances.update([table])
    assert written(pool, table) == 2


def test_rows_of_tables_that_are_gone_are_reused(pool: PagePool) -> None:
    """The array has rows for the current tables only, however many came and went."""
    kept = table_of((0, 1))
    for slot in range(50):
        table = table_of(*[(9, slot)] * (1 + slot))
        written(pool, kept, table)
        del table
    assert pool.distances.array.shape == (2 * FEWEST_PAGES,)


def test_rows_are_written_in_inference_mode_and_outside(pool: PagePool) -> None:
    """Rows are written in inference mode, which a model uses, and outside of it."""
    table = table_of((0, 3))
    with torch.inference_mode():
        written(pool, table)
        table.append(*[PageRef(9, slot) for slot in range(FEWEST_PAGES)])
        written(pool, table)
    table.append(PageRef(0, 1))
    assert written(pool, table) == 1
