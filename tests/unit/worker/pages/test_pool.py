"""The page pool writes, gathers and copies exactly the given positions."""

import pytest
import torch

from inference_worker.errors import LayoutMismatchError, UnknownExtentError
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

LAYOUT = PageLayout(3, 2, 5, "float32", 4)
# Two extents and the private one, forwards and backwards.
PAGES = [PageRef(0, 3), PageRef(0, 1), PageRef(9, 0), PageRef(9, 3), PageRef(-1, 2), PageRef(0, 0)]


@pytest.fixture
def pool() -> PagePool:
    """Returns a pool of three extents of four slots, all zeros."""
    pool = PagePool(LAYOUT)
    for extent in (0, 9, -1):
        pool.add_extent(extent, torch.zeros(4, *LAYOUT.page_shape))
    return pool


def write(
    pool: PagePool,
    layer: int,
    table: BlockTable,
    start: int,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> None:
    """Writes keys and values after ``start`` tokens."""
    pool.write(layer, pool.token_rows([(table, start, start + keys.shape[0])]), keys, values)


def gather(
    pool: PagePool, layer: int, table: BlockTable, first: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies out pages ``[first, last)``."""
    return pool.gather(layer, pool.page_rows(table.extents[first:last], table.slots[first:last]))


def numbers(tokens: int, seed: int) -> torch.Tensor:
    """Returns different keys or values for each seed."""
    return torch.rand(tokens, 2, 5, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("start", "count"), [(0, 24), (0, 3), (5, 1), (7, 10), (8, 8), (23, 1)])
def test_what_is_written_is_gathered_over_extents(pool: PagePool, start: int, count: int) -> None:
    """Any run of positions is read back from any layer, and nothing else has changed."""
    table = BlockTable(4, PAGES)
    keys, values = numbers(count, 1), numbers(count, 2)
    write(pool, 1, table, start, keys, values)
    got_keys, got_values = gather(pool, 1, table, 0, 6)
    for got, put in ((got_keys, keys), (got_values, values)):
        assert torch.equal(got[start : start + count], put)
        assert not got[:start].any()
        assert not got[start + count :].any()
    total = sum(float(pool.rows(extent).sum()) for extent in pool.extents)
    assert total == pytest.approx(float(keys.sum() + values.sum()), rel=1e-5)


def test_a_part_of_the_table_is_gathered(pool: PagePool) -> None:
    """A range of pages gives the tokens of these pages."""
    table = BlockTable(4, PAGES)
    keys = numbers(24, 3)
    write(pool, 2, table, 0, keys, keys)
    assert torch.equal(gather(pool, 2, table, 1, 5)[1], keys[4:20])
    assert gather(pool, 2, table, 3, 3)[0].shape == (0, 2, 5)


def test_rows_and_pages_are_the_layouts(pool: PagePool) -> None:
    """Token 6 of layer 1 is at the place of the layout's formula, keys before values."""
    table = BlockTable(4, PAGES)
    keys, values = numbers(1, 4), numbers(1, 5)
    write(pool, 1, table, 6, keys, values)
    for kv, put in enumerate((keys, values)):
        assert torch.equal(pool.page(PAGES[1])[1, kv, 2], put[0])
        assert torch.equal(pool.rows(0)[(1 * 3 + 1) * 2 + kv][20:30], put.flatten())


@pytest.mark.parametrize("turns", [2, 9])
def test_sequences_are_written_together(pool: PagePool, turns: int) -> None:
    """Spans of several tables each get their tokens, in few or many runs of an extent."""
    tables = [BlockTable(4, PAGES[:4]), BlockTable(4, PAGES[4:])]
    spans = [(tables[turn % 2], turn // 2, turn // 2 + 1) for turn in range(turns)]
    keys, values = numbers(turns, 8), numbers(turns, 9)
    pool.write(0, pool.token_rows(spans), keys, values)
    for number, (table, at, _) in enumerate(spans):
        got_keys, got_values = gather(pool, 0, table, 0, len(table))
        assert torch.equal(got_keys[at], keys[number])
        assert torch.equal(got_values[at], values[number])


@pytest.mark.parametrize("times", [1, 4])
def test_pages_are_gathered_in_any_order(pool: PagePool, times: int) -> None:
    """Pages may repeat, and the extent may change from page to page."""
    table = BlockTable(4, PAGES)
    keys = numbers(24, 3)
    write(pool, 2, table, 0, keys, -keys)
    order = torch.tensor([5, 2, 0, 4, 4, 1] * times)
    rows = pool.page_rows(table.extents[order], table.slots[order])
    wanted = keys.unflatten(0, (6, 4))[order].flatten(0, 1)
    assert torch.equal(pool.gather(2, rows)[0], wanted)
    assert torch.equal(pool.gather(2, rows)[1], -wanted)


def test_a_copied_page_is_the_same_and_apart(pool: PagePool) -> None:
    """A copy in another extent has the same bytes, and later writes do not change it."""
    table = BlockTable(4, PAGES)
    write(pool, 0, table, 0, numbers(4, 6), numbers(4, 7))
    pool.copy_page(PAGES[0], PAGES[3])
    copied = pool.page(PAGES[3]).clone()
    assert torch.equal(copied, pool.page(PAGES[0]))
    write(pool, 0, table, 0, numbers(4, 8), numbers(4, 9))
    assert torch.equal(copied, pool.page(PAGES[3]))


def test_an_extent_is_a_view_of_its_owners_memory(pool: PagePool) -> None:
    """The pool and the owner of an extent's memory see each other's writes."""
    memory = bytearray(2 * LAYOUT.page_bytes)
    pages = torch.frombuffer(memory, dtype=torch.float32).view(2, *LAYOUT.page_shape)
    pool.add_extent(4, pages)
    pool.page(PageRef(4, 1)).fill_(1.0)
    assert bytes(memory[LAYOUT.page_bytes :]) == b"\x00\x00\x80\x3f" * (LAYOUT.page_bytes // 4)


def test_a_removed_extent_is_unknown(pool: PagePool) -> None:
    """Pages of a removed extent raise, and other pages still work."""
    pool.remove_extent(9)
    assert pool.extents == {0, -1}
    with pytest.raises(UnknownExtentError):
        gather(pool, 0, BlockTable(4, PAGES), 0, 6)
    with pytest.raises(UnknownExtentError):
        pool.remove_extent(9)
    assert gather(pool, 0, BlockTable(4, PAGES), 0, 2)[0].shape == (8, 2, 5)


@pytest.mark.parametrize(
    "pages",
    [
        torch.zeros(2, 3, 2, 4, 2, 6),
        torch.zeros(2, *LAYOUT.page_shape, dtype=torch.float16),
        torch.zeros(*LAYOUT.page_shape, 2).movedim(-1, 0),
        torch.zeros(2, *LAYOUT.page_shape, device="meta"),
    ],
    ids=["shape", "dtype", "strides", "device"],
)
def test_an_extent_of_another_layout_is_refused(pool: PagePool, pages: torch.Tensor) -> None:
    """Shape, dtype, contiguity and device are checked before an extent is added."""
    with pytest.raises(LayoutMismatchError):
        pool.add_extent(5, pages)
    assert 5 not in pool.extents


def test_a_key_names_one_extent(pool: PagePool) -> None:
    """A second extent under the same key is refused."""
    with pytest.raises(ValueError, match="already"):
        pool.add_extent(0, torch.zeros(1, *LAYOUT.page_shape))


def test_positions_outside_the_table_are_errors(pool: PagePool) -> None:
    """Nothing is written beyond the pages of the table."""
    table = BlockTable(4, PAGES[:2])
    for start in (-1, 7):
        with pytest.raises(IndexError):
            write(pool, 0, table, start, numbers(2, 1), numbers(2, 1))


def test_keys_of_another_shape_are_refused(pool: PagePool) -> None:
    """Keys and values need the layout's heads and equal lengths."""
    table = BlockTable(4, PAGES)
    for keys, values in ((numbers(2, 1), numbers(3, 1)), (torch.zeros(2, 1, 5),) * 2):
        with pytest.raises(LayoutMismatchError):
            write(pool, 0, table, 0, keys, values)


def test_a_layout_without_values_is_refused() -> None:
    """The pool is for keys and values, not for a latent."""
    with pytest.raises(ValueError, match="kv factor"):
        PagePool(PageLayout(1, 1, 1, "float32", 4, kv_factor=1))
