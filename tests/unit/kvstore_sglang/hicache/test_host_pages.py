"""Pages of a host pool, in pieces, and copies of them."""

import pytest

from kvstore_sglang.hicache.host_pages import HostPages, copy_in, copy_out
from sglang_rig.host_pool import HostPool


def test_a_page_goes_out_and_in_again() -> None:
    """All pieces of a page are copied, in one order, and no byte of another page."""
    pool = HostPool(4)
    pages = HostPages(pool)
    for page in range(4):
        pool.write(page, 10 * page)
    store = memoryview(bytearray(pages.page_bytes))
    [pieces] = pages.pieces(pool.indices(2))
    copy_in(store, pieces)
    [other] = pages.pieces(pool.indices(0))
    copy_out(store, other)
    assert [pool.read(page) for page in range(4)] == [
        {(20, 21)},
        {(10, 11)},
        {(20, 21)},
        {(30, 31)},
    ]


def test_pages_come_in_the_order_of_their_slots() -> None:
    """Pieces are grouped by page, whatever the pages' order in the pool."""
    pool = HostPool(3)
    found = HostPages(pool).pieces(pool.indices(2, 0))
    assert [[piece.size for piece in page] for page in found] == [[64, 64], [64, 64]]
    assert found[0][0].address > found[1][0].address


def test_slots_that_are_no_whole_pages_are_refused() -> None:
    """Neither a part of a page nor a pool of another page size is copied."""
    pool = HostPool(3)
    pages = HostPages(pool)
    with pytest.raises(ValueError, match="token slots"):
        pages.pieces(pool.indices(0)[:3])
    pool.size_per_token += 1
    with pytest.raises(ValueError, match="token slots"):
        HostPages(pool).pieces(pool.indices(0))


def test_no_slots_are_no_pages() -> None:
    """An empty transfer has no pieces."""
    assert HostPages(HostPool(1)).pieces([]) == []


def test_facts_are_those_that_the_pool_has() -> None:
    """The identity of pages has the pool's own facts as text."""
    assert HostPages(HostPool(1)).facts() == {
        "layout": "page_first",
        "dtype": "torch.float32",
        "layer_num": "2",
        "head_num": "2",
        "head_dim": "4",
        "page_size": "4",
    }
