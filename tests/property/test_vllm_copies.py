"""Copies by address beside copies of views, over vLLM's layouts, ranks and partial transfers."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import DatedRun
from kvstore_client.memory.cuda import host_registration
from kvstore_vllm.blocks.block_copier import BlockCopier
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, submit_to_cpu
from kvstore_vllm.step_plan import BlockTransfer
from vllm_rig.vllm_layouts import NAMES, Kind, block_bytes, planes

SLOTS = 12
EXTENTS = (3, 8)


class Extents:
    """Two extents of random bytes, whose slots are longer than a page by ``spare`` bytes."""

    def __init__(self, page_bytes: int, spare: int) -> None:
        made = torch.Generator().manual_seed(1)
        shape = (len(EXTENTS), SLOTS, page_bytes + spare)
        self.raw = torch.randint(0, 256, shape, generator=made, dtype=torch.uint8)
        self._page_bytes = page_bytes

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns all slots of an extent."""
        return self.raw[EXTENTS.index(extent_id), :, : self._page_bytes]


@st.composite
def transfers(draw: st.DrawFn, block_count: int) -> BlockTransfer:
    """Draws some distinct blocks and as many distinct slots, many of them in runs."""
    blocks = draw(st.permutations(range(block_count)))
    if draw(st.booleans()):
        blocks = sorted(blocks)
    count = draw(st.integers(1, min(block_count, 2 * SLOTS)))
    begin = draw(st.integers(0, block_count - count))
    places = [(extent, slot) for extent in EXTENTS for slot in range(SLOTS)]
    if draw(st.booleans()):
        places = draw(st.permutations(places))
    first = draw(st.integers(0, len(places) - count))
    runs: list[DatedRun] = []
    for extent, slot in places[first : first + count]:
        if runs and runs[-1].extent_id == extent:
            runs[-1] = DatedRun(extent, [*runs[-1].slots, slot])
        else:
            runs.append(DatedRun(extent, [slot]))
    return BlockTransfer(1, "r", tuple(blocks[begin : begin + count]), tuple(runs))


KINDS = st.lists(
    st.builds(
        Kind,
        layers=st.integers(1, 3),
        heads=st.sampled_from([1, 1, 2, 3]),
        tokens=st.sampled_from([1, 4]),
        value_bytes=st.sampled_from([8, 16, 5]),
    ),
    min_size=1,
    max_size=2,
)


@given(st.data())
def test_copies_by_address_are_those_of_views(data: Any) -> None:  # noqa: ANN401  # hypothesis's
    """Saves and loads change the same bytes to the same values, in any layout, at any rank."""
    name, kinds = data.draw(st.sampled_from(NAMES)), data.draw(KINDS)
    block_count = data.draw(st.integers(1, 14))
    ranks = data.draw(st.integers(1, 3))
    rank = data.draw(st.integers(0, ranks - 1))
    size = block_bytes(kinds)
    spare = data.draw(st.sampled_from([0, 0, 3]))
    made = torch.Generator().manual_seed(2)
    blocks = torch.randint(0, 256, (block_count * size,), generator=made, dtype=torch.uint8)
    views, addresses = blocks.clone(), blocks.clone()
    by_view = BlockCopier(planes(name, kinds, block_count, views), rank)
    by_address = DescriptorCopier(planes(name, kinds, block_count, addresses), submit_to_cpu, rank)
    expected, found = (Extents(ranks * size, spare) for _ in range(2))
    save, load = (data.draw(transfers(block_count)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        # Pieces of registered memory that end between some of the slots.
        patch.setattr(host_registration, "PIECE_BYTES", data.draw(st.sampled_from([1, 1 << 36])))
        assert by_view.save(expected, save) == by_address.save(found, save)
        assert found.raw.equal(expected.raw)
        assert by_view.load(expected, load) == by_address.load(found, load)
    assert addresses.equal(views)
    assert found.raw.equal(expected.raw)
