"""The rules for vLLM's half at a rank on its blocks, on any device, without vLLM.

``device`` is where an engine's blocks are, ``memory_device`` where the store's slots are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import torch

from kvstore_client.testing import wait_until
from kvstore_vllm.blocks import block_copier
from kvstore_vllm.rank.plan_executor import PlanExecutor
from kvstore_vllm.step_plan import BlockTransfer, StepPlan
from vllm_rig.block_layouts import Blocks, Layout, Slots, content, slots, transfer

LIMIT = 60.0
BLOCKS = 24
# Whole 8-byte words of every layer's part.
BLOCK_BYTES = 4096
# A tenth of a second of a device's clock.
CYCLES = 200_000_000


@contextmanager
def running_executor(blocks: Blocks) -> Iterator[PlanExecutor]:
    """Returns a half that is closed at the end."""
    executor = PlanExecutor(blocks.copier)
    yield executor
    executor.close()


def load_beside(executor: PlanExecutor, memory: Slots, wanted: BlockTransfer) -> None:
    """Load beside a step, and return once the load was reported as successful."""
    executor.load(StepPlan("engine", loads=[wanted]), memory)
    await_load(executor, wanted)


def await_load(executor: PlanExecutor, wanted: BlockTransfer) -> None:
    """Returns once a load was reported; fails if it failed."""
    assert wait_until(lambda: wanted.request_id in executor.take_finished()[1], LIMIT)
    report = executor.take_report()
    assert (dict(report.ended), report.failed) == ({wanted.job: 1}, set())


def save(executor: PlanExecutor, memory: Slots, wanted: BlockTransfer) -> None:
    """Saves, and returns once the save was reported as successful."""
    executor.save(StepPlan("engine", saves=[wanted]), memory)
    report = executor.take_report()
    assert (dict(report.ended), report.failed) == ({wanted.job: 1}, set())


def bytes_come_back(layout: Layout, device: str, memory_device: str) -> None:
    """Saved blocks come back from their slots, into other blocks, and nothing beside them moves."""
    blocks = layout(BLOCKS, BLOCK_BYTES, device)
    memory = slots(BLOCKS, BLOCK_BYTES, memory_device)
    written = content(BLOCKS, BLOCK_BYTES, device)
    blocks.by_block.copy_(written.view(blocks.by_block.shape))
    with running_executor(blocks) as executor:
        save(executor, memory, transfer(1, range(3, 11), first_slot=5))
        assert memory.tensor.to(device)[5:13].equal(written[3:11])
        assert not memory.tensor[:5].any()
        assert not memory.tensor[13:].any()
        blocks.raw.zero_()
        load_beside(executor, memory, transfer(2, range(14, 22), first_slot=5))
    assert blocks.by_block[14:22].reshape(8, BLOCK_BYTES).equal(written[3:11])
    assert not blocks.by_block[:14].any()
    assert not blocks.by_block[22:].any()


def a_load_comes_after_the_step_s_earlier_work(
    layout: Layout, device: str, memory_device: str
) -> None:
    """A load beside a step overwrites what the step queued for the blocks before it.

    On a GPU the load also ends while the step's later work is still under way.
    """
    blocks = layout(BLOCKS, BLOCK_BYTES, device)
    memory = slots(BLOCKS, BLOCK_BYTES, memory_device)
    written = content(BLOCKS, BLOCK_BYTES, memory_device)
    memory.tensor.copy_(written)
    wanted = transfer(2, range(BLOCKS))
    with running_executor(blocks) as executor:
        # Loads the kernels and fills torch's pool of the stream: either may wait for the device.
        load_beside(executor, memory, transfer(1, range(BLOCKS)))
        _work(device)
        blocks.raw.fill_(0x55)
        executor.load(StepPlan("engine", loads=[wanted]), memory)
        _work(device, times=20)
        await_load(executor, wanted)
        assert device == "cpu" or not torch.cuda.current_stream().query()
    assert blocks.by_block.reshape(BLOCKS, BLOCK_BYTES).equal(written.to(device))


def a_saved_block_may_be_overwritten(layout: Layout, device: str, memory_device: str) -> None:
    """A save copies the work that the step queued before it, and not what it queues right after."""
    blocks = layout(BLOCKS, BLOCK_BYTES, device)
    memory = slots(BLOCKS, BLOCK_BYTES, memory_device)
    written = content(BLOCKS, BLOCK_BYTES, device)
    blocks.raw.zero_()
    with running_executor(blocks) as executor:
        _work(device)
        blocks.by_block.copy_(written.view(blocks.by_block.shape))
        save(executor, memory, transfer(1, range(BLOCKS)))
        blocks.raw.fill_(0x55)
        _synchronize(device)
    assert memory.tensor.equal(written.to(memory_device))


# Each holds for every layout, device and device of slots.
COPY_CHECKS: list[Callable[[Layout, str, str], None]] = [
    bytes_come_back,
    a_load_comes_after_the_step_s_earlier_work,
    a_saved_block_may_be_overwritten,
]


class Copy(NamedTuple):
    """One copy of a transfer: whether its bytes lie together on each side, and how many."""

    blocks_together: bool
    slots_together: bool
    byte_count: int

    @property
    def device_temporary(self) -> int:
        """Bytes that torch allocates for a copy between the blocks and the host.

        ATen's ``copy_kernel_cuda`` makes a side contiguous, as a whole, if it is not.
        """
        return 0 if self.blocks_together else self.byte_count


@contextmanager
def recorded_copies(*, to_blocks: bool) -> Iterator[list[Copy]]:
    """Returns the copies of the loads or saves within the step that the block of code runs."""
    found: list[Copy] = []
    copy = block_copier.copy_with_team

    def recorded(target: torch.Tensor, source: torch.Tensor) -> None:
        blocks, pages = (target, source) if to_blocks else (source, target)
        found.append(Copy(blocks.is_contiguous(), pages.is_contiguous(), blocks.nbytes))
        copy(target, source)

    with patch.object(block_copier, "copy_with_team", recorded):
        yield found


def copies_of(
    layout: Layout, block_count: int, block_bytes: int, *, to_blocks: bool, device: str = "cpu"
) -> tuple[list[Copy], int]:
    """Copies all blocks to slots of the host, or back; returns the copies, and the device's peak.

    The peak is of bytes that torch allocated on the device beside the blocks; 0 on a CPU.
    """
    blocks = layout(block_count, block_bytes, device)
    memory = slots(block_count, block_bytes, "cpu")
    wanted = transfer(1, range(block_count))
    before = _reset_peak(device)
    with recorded_copies(to_blocks=to_blocks) as copies, running_executor(blocks) as executor:
        if to_blocks:
            executor.load(StepPlan("engine", load_async=False, loads=[wanted]), memory)
        else:
            executor.save(StepPlan("engine", saves=[wanted]), memory)
        assert not executor.take_report().failed
    _synchronize(device)
    return copies, 0 if device == "cpu" else torch.cuda.max_memory_allocated() - before


def rates(
    layout: Layout, block_count: int, block_bytes: int, device: str, *, pinned: bool
) -> dict[str, float]:
    """Returns GB/s of a save and of a load of all blocks, as the half counts them.

    The best of four rounds. ``pinned``: the slots are in pinned memory of torch's.
    """
    blocks = layout(block_count, block_bytes, device)
    memory = slots(block_count, block_bytes, "cpu")
    if pinned:
        memory = Slots(memory.tensor.pin_memory())
    wanted = transfer(1, range(block_count))
    found: dict[str, float] = {}
    for _ in range(4):
        with running_executor(blocks) as executor:
            save(executor, memory, wanted)
            load_beside(executor, memory, wanted)
            for way in ("save", "load"):
                assert executor.counts[f"{way}_bytes"] == memory.tensor.nbytes
                rate = memory.tensor.nbytes / executor.counts[f"{way}_microseconds"] / 1e3
                found[way] = max(found.get(way, 0.0), rate)
    return found


def _work(device: str, times: int = 1) -> None:
    """Queues some tenths of a second of work; a CPU has no queue."""
    if device != "cpu":
        torch.cuda._sleep(times * CYCLES)


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def _reset_peak(device: str) -> int:
    if device == "cpu":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
