"""The half at a rank copies blocks of every layout; tests/gpu has the same on CUDA tensors."""

from collections.abc import Callable

import pytest

from vllm_rig.block_layouts import LAYOUTS, Layout
from vllm_rig.half_copies import HALF_CHECKS, copies_of, rates

BLOCKS, BLOCK_BYTES = 16, 4096
WHOLE = BLOCKS * BLOCK_BYTES
REASON = "torch copies the whole stretch through one temporary: pieces of a bounded size do not"
BOUNDED = [
    pytest.param(LAYOUTS["block first"], id="block first"),
    *(
        pytest.param(LAYOUTS[name], id=name, marks=pytest.mark.xfail(reason=REASON, strict=True))
        for name in ("layer first", "keys first")
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("check", HALF_CHECKS, ids=lambda each: each.__name__)
def test_blocks_are_copied(check: Callable[[Layout, str, str], None], layout: Layout) -> None:
    """Bytes come back; a load comes after the step's work, an overwrite after the save."""
    check(layout, "cpu", "cpu")


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
@pytest.mark.parametrize(
    ("name", "temporary"), [("layer first", WHOLE), ("block first", 0), ("keys first", WHOLE)]
)
def test_a_temporary_follows_from_the_layout(name: str, temporary: int, *, to_blocks: bool) -> None:
    """Blocks whose parts lie apart are copied through a temporary of the whole stretch on a GPU."""
    copies, _ = copies_of(LAYOUTS[name], BLOCKS, BLOCK_BYTES, to_blocks=to_blocks)
    assert [each.device_temporary for each in copies] == [temporary]
    assert [each.byte_count for each in copies] == [WHOLE]
    assert all(each.slots_together for each in copies)


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
@pytest.mark.parametrize("layout", BOUNDED)
def test_a_temporary_is_smaller_than_the_transfer(layout: Layout, *, to_blocks: bool) -> None:
    """A long transfer needs no more of the device's memory than a short one."""
    copies, _ = copies_of(layout, BLOCKS, BLOCK_BYTES, to_blocks=to_blocks)
    assert max(each.device_temporary for each in copies) <= WHOLE // 2


def test_rates_are_those_of_whole_transfers() -> None:
    """Both ways are measured; tests/gpu prints the rates of a device."""
    found = rates(LAYOUTS["block first"], 64, 1 << 16, "cpu", pinned=False)
    assert set(found) == {"load", "save"}
    assert min(found.values()) > 0
