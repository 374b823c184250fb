"""Pages of a component, cut into parts that fit slots."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import GroupWindow
from kvstore_sglang.engine.component_pages import ComponentPages, cut

PAGES = 2


def planes(sizes: list[int]) -> list[torch.Tensor]:
    """Returns planes of two pages, whose bytes are all others in turn."""
    numbers = torch.arange(PAGES * sum(sizes)) % 251
    found, start = [], 0
    for size in sizes:
        found.append(numbers[start : start + PAGES * size].to(torch.uint8).view(PAGES, size))
        start += PAGES * size
    return found


@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=3), max_size=5), st.integers(1, 30)
)
def test_parts_have_each_byte_of_a_page_once(sizes: list[list[int]], slot_bytes: int) -> None:
    """The bytes of all layers follow each other, however slots cut them."""
    layers = {3 * number: planes(each) for number, each in enumerate(sizes)}
    pieces, part_count = cut(layers, slot_bytes)
    total = sum(map(sum, sizes))
    assert part_count == -(-total // slot_bytes)
    assert pieces.keys() == layers.keys()
    slots = torch.full((PAGES, part_count, slot_bytes), 255, dtype=torch.uint8)
    for each in (piece for found in pieces.values() for piece in found):
        column = slots[:, each.part, each.begin : each.begin + each.plane.shape[1]]
        assert (column == 255).all()
        column.copy_(each.plane)
    whole = [plane for each in layers.values() for plane in each]
    expected = torch.cat([*whole, torch.empty(PAGES, 0, dtype=torch.uint8)], dim=1)
    assert torch.equal(slots.flatten(1)[:, :total], expected)
    assert (slots.flatten(1)[:, total:] == 255).all()


def test_pieces_share_the_pool_s_memory() -> None:
    """Bytes that are written into a piece are the pool's."""
    [plane] = planes([10])
    pieces, _ = cut({0: [plane]}, 4)
    pieces[0][2].plane[1] = 9
    assert plane[1, 8:].tolist() == [9, 9]


def test_a_request_needs_the_window_of_its_new_pages() -> None:
    """A path has no window, and the parts of other pages have one each."""
    window = ComponentPages("swa", (1, 2), 4, {}, 8, lambda _: [])
    assert window.windows == (GroupWindow(1, 4), GroupWindow(2, 4))
    assert [window.needed(count) for count in (0, 3, 4, 9)] == [0, 3, 4, 4]
    assert window.page_count(torch.arange(24)) == 3
    path = ComponentPages("kv", (0,), 0, {}, 8, lambda _: [])
    assert path.windows == ()
    assert path.needed(9) == 9
