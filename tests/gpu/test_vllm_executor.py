"""vLLM's half at a rank on CUDA tensors, without vLLM."""

from collections.abc import Callable

import pytest

from vllm_rig.block_layouts import LAYOUTS, Layout
from vllm_rig.executor_copies import COPY_CHECKS, copies_of, rates

MIB = 1 << 20
BLOCKS, BLOCK_BYTES = 64, MIB
# Most bytes of the device that a transfer may use, since vLLM did not budget for them.
BOUND = 32 * MIB
# torch's allocator rounds: up to 1 MiB of a large piece of memory counts as used.
ROUNDING = 2 * MIB
REASON = "torch copies the whole stretch through one temporary on the device"
BOUNDED = [
    pytest.param(LAYOUTS["block first"], id="block first"),
    *(
        pytest.param(LAYOUTS[name], id=name, marks=pytest.mark.xfail(reason=REASON, strict=True))
        for name in ("layer first", "keys first")
    ),
]


@pytest.mark.parametrize("memory_device", ["cpu", "cuda"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("check", COPY_CHECKS, ids=lambda each: each.__name__)
def test_blocks_are_copied(
    check: Callable[[Layout, str, str], None], layout: Layout, memory_device: str
) -> None:
    """Between a GPU's blocks and slots of the host or of the same GPU, in the step's order."""
    check(layout, "cuda", memory_device)


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_peak_is_what_the_layout_says(
    layout: Layout, record_property: Callable[[str, object], None], *, to_blocks: bool
) -> None:
    """A copy uses the temporary that follows from its layout, and no other memory."""
    copies, peak = copies_of(layout, BLOCKS, BLOCK_BYTES, to_blocks=to_blocks, device="cuda")
    expected = max(each.device_temporary for each in copies)
    way = "load" if to_blocks else "save"
    record_property("summary", f"{way} of 64 MiB, {layout.__name__}: peak {peak / MIB:.1f} MiB")
    assert abs(peak - expected) <= ROUNDING


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
@pytest.mark.parametrize("layout", BOUNDED)
def test_the_peak_is_bounded(layout: Layout, *, to_blocks: bool) -> None:
    """A long transfer needs no more of the device's memory than a short one."""
    _, peak = copies_of(layout, BLOCKS, BLOCK_BYTES, to_blocks=to_blocks, device="cuda")
    assert peak <= BOUND


@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_all_bytes_move_and_their_rate_is_printed(
    layout: Layout, record_property: Callable[[str, object], None], *, pinned: bool
) -> None:
    """A save and a load of 256 MiB move all bytes; prints GB/s of each."""
    found = rates(layout, 4 * BLOCKS, BLOCK_BYTES, "cuda", pinned=pinned)
    kind = "pinned" if pinned else "pageable"
    figures = ", ".join(f"{way} {rate:.1f} GB/s" for way, rate in found.items())
    record_property("summary", f"{layout.__name__}, {kind} slots: {figures}")
    assert set(found) == {"save", "load"}
