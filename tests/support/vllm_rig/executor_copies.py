"""The rules for vLLM's half at a rank on its blocks, on any device, without vLLM.

``queue`` runs the engine's steps. ``place`` is where the store's slots are: ``cpu``, ``cuda``, or
``registered``, which is memory of the host that a GPU copies at full speed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from kvstore_client import Client, ClientConfig, NamespaceIdentity, OpaqueContent, PageLayout
from kvstore_client.engines.store_access import copies_are_done
from kvstore_client.testing import wait_until
from kvstore_client.values.packed_tokens import TOKEN_BYTES, pack_tokens
from kvstore_vllm.rank.plan_executor import MappedPages, PlanExecutor
from kvstore_vllm.step_plan import BlockTransfer, StepPlan
from vllm_rig.block_layouts import Layout, Slots, content, slots, transfer
from vllm_rig.step_queues import LIMIT, StepQueue

BLOCKS = 24
# Whole 8-byte words of every layer's part.
BLOCK_BYTES = 4096
PAGE_TOKENS = 16


def load_beside(executor: PlanExecutor, memory: MappedPages, wanted: BlockTransfer) -> None:
    """Load beside a step, and return once the load was reported as successful."""
    executor.load(StepPlan("engine", loads=[wanted]), memory)
    await_load(executor, wanted)


def await_load(executor: PlanExecutor, wanted: BlockTransfer) -> None:
    """Returns once a load was reported; fails if it failed."""
    assert wait_until(lambda: wanted.request_id in executor.take_finished()[1], LIMIT)
    report = executor.take_report()
    assert (dict(report.ended), report.failed) == ({wanted.job: 1}, set())


def save(executor: PlanExecutor, memory: MappedPages, wanted: BlockTransfer) -> None:
    """Saves, and returns once the save was reported as successful."""
    executor.save(StepPlan("engine", saves=[wanted]), memory)
    await_save(executor, wanted)


def await_save(executor: PlanExecutor, wanted: BlockTransfer) -> None:
    """Returns once a save was reported; fails if it failed."""

    def is_reported() -> bool:
        executor.take_finished()
        report = executor.take_report()
        assert not report.failed
        return report.ended[wanted.job] == 1

    assert wait_until(is_reported, LIMIT)


def bytes_come_back(layout: Layout, queue: StepQueue, place: str) -> None:
    """Saved blocks come back from their slots, into other blocks, and nothing beside them moves."""
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    blocks.by_block.copy_(written.view(blocks.by_block.shape))
    with queue.executor(blocks.planes) as executor:
        save(executor, memory, transfer(1, range(3, 11), first_slot=5))
        assert memory.tensor.to(queue.device)[5:13].equal(written[3:11])
        assert not memory.tensor[:5].any()
        assert not memory.tensor[13:].any()
        blocks.raw.zero_()
        load_beside(executor, memory, transfer(2, range(14, 22), first_slot=5))
    assert blocks.by_block[14:22].reshape(8, BLOCK_BYTES).equal(written[3:11])
    assert not blocks.by_block[:14].any()
    assert not blocks.by_block[22:].any()


def a_load_comes_after_the_step_s_earlier_work(
    layout: Layout, queue: StepQueue, place: str
) -> None:
    """A load beside a step overwrites what the step queued for the blocks before it.

    On a GPU the load also ends while the step's later work is still under way.
    """
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    memory.tensor.copy_(written)
    wanted = transfer(2, range(BLOCKS))
    with queue.executor(blocks.planes) as executor:
        # Loads the kernels and fills torch's pool of the stream: either may wait for the device.
        load_beside(executor, memory, transfer(1, range(BLOCKS)))
        queue.queue(lambda: blocks.raw.fill_(0x55))
        executor.load(StepPlan("engine", loads=[wanted]), memory)
        queue.keep_busy()
        await_load(executor, wanted)
        assert queue.is_busy == queue.is_late
    assert blocks.by_block.reshape(BLOCKS, BLOCK_BYTES).equal(written.to(queue.device))
    queue.wait()


def a_load_within_a_step_is_complete(layout: Layout, queue: StepQueue, place: str) -> None:
    """A load that is part of a step follows the step's earlier work, and ends before it returns."""
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    memory.tensor.copy_(written)
    with queue.executor(blocks.planes) as executor:
        queue.queue(lambda: blocks.raw.fill_(0x55))
        plan = StepPlan("engine", load_async=False, loads=[transfer(1, range(BLOCKS))])
        executor.load(plan, memory)
        assert blocks.by_block.reshape(BLOCKS, BLOCK_BYTES).equal(written.to(queue.device))
        assert executor.take_finished() == (set(), set())
        assert dict(executor.take_report().ended) == {1: 1}


def a_save_does_not_wait_for_its_step(layout: Layout, queue: StepQueue, place: str) -> None:
    """A save on a device begins after the step's work, and its end is reported later."""
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    wanted = transfer(1, range(BLOCKS))
    with queue.executor(blocks.planes) as executor:
        save(executor, memory, transfer(2, range(BLOCKS)))
        queue.keep_busy()
        queue.queue(lambda: blocks.by_block.copy_(written.view(blocks.by_block.shape)))
        executor.save(StepPlan("engine", saves=[wanted]), memory)
        # Requests without saves are not waited for.
        executor.wait_for_saves({"another"})
        assert queue.is_busy == queue.is_late
        executor.take_finished()
        assert bool(executor.take_report()) != queue.is_late
        queue.go_on()
        if queue.is_late:
            await_save(executor, wanted)
    assert memory.tensor.equal(written.to(memory.tensor.device))


def a_preempted_block_may_be_overwritten(layout: Layout, queue: StepQueue, place: str) -> None:
    """Work that is queued once saves were waited for does not reach the store."""
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    wanted = transfer(1, range(BLOCKS))
    with queue.executor(blocks.planes) as executor:
        queue.keep_busy()
        queue.queue(lambda: blocks.by_block.copy_(written.view(blocks.by_block.shape)))
        executor.save(StepPlan("engine", saves=[wanted]), memory)
        queue.go_on()
        executor.wait_for_saves({"another", wanted.request_id})
        queue.queue(lambda: blocks.raw.fill_(0x55))
        queue.wait()
        executor.take_finished()
        assert dict(executor.take_report().ended) == {1: 1}
    assert memory.tensor.equal(written.to(memory.tensor.device))


def a_load_does_not_wait_for_a_save(layout: Layout, queue: StepQueue, place: str) -> None:
    """A load ends while a save waits for the step: each direction has its own stream."""
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    memory = slots(BLOCKS, BLOCK_BYTES, place)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    memory.tensor.copy_(written)
    saved, loaded = transfer(1, range(4), first_slot=4), transfer(2, range(8, 12), first_slot=8)
    with queue.executor(blocks.planes) as executor:
        load_beside(executor, memory, transfer(3, range(8, 12)))
        executor.load(StepPlan("engine", loads=[loaded]), memory)
        queue.keep_busy()
        executor.save(StepPlan("engine", saves=[saved]), memory)
        assert wait_until(lambda: loaded.request_id in executor.take_finished()[1], LIMIT)
        assert queue.is_busy == queue.is_late
    assert blocks.by_block[8:12].reshape(4, BLOCK_BYTES).equal(written[8:12].to(queue.device))
    queue.wait()


Check = Callable[[Layout, StepQueue, str], None]
# Each holds for every layout, queue and place of slots.
COPY_CHECKS: list[Check] = [
    bytes_come_back,
    a_load_comes_after_the_step_s_earlier_work,
    a_load_within_a_step_is_complete,
    a_preempted_block_may_be_overwritten,
]
# These do not hold for pageable memory of the host: the driver may make every thread wait for such
# a copy.
BESIDE_CHECKS: list[Check] = [
    a_save_does_not_wait_for_its_step,
    a_load_does_not_wait_for_a_save,
]


def pages_go_through_a_store(
    layout: Layout, queue: StepQueue, runtime_dir: str, device: int | None
) -> None:
    """Pages that one engine saved in a real store come into other blocks.

    ``device`` is the GPU with which the store's memory is registered, if there is one.
    """
    blocks = layout(BLOCKS, BLOCK_BYTES, queue.device)
    written = content(BLOCKS, BLOCK_BYTES, queue.device)
    blocks.by_block.copy_(written.view(blocks.by_block.shape))
    # A salt of its own, because tests share a store.
    identity = NamespaceIdentity(model_digest=bytes(32), salt=layout.__name__.encode())
    page = PageLayout(PAGE_TOKENS, BLOCK_BYTES, OpaqueContent(bytes(32)))
    tokens = pack_tokens(range(6 * PAGE_TOKENS + 1))
    others = (9, 8, 13, 14, 15, 20)
    config = ClientConfig(
        call_timeout=LIMIT, wait_for_device=copies_are_done, host_memory_device=device
    )
    with Client(runtime_dir, config) as client, queue.executor(blocks.planes) as executor:
        namespace = client.namespace(identity, page)
        assert namespace.wait_open(LIMIT), namespace.failure
        with namespace.reserve(start_page=0, page_count=6) as reservation:
            runs = tuple(reservation.pages.dated_runs)
            save(executor, namespace, BlockTransfer(1, "saved", tuple(range(2, 8)), runs))
            reservation.insert(tokens[: 6 * PAGE_TOKENS * TOKEN_BYTES], position=0)
        blocks.raw.zero_()
        with namespace.match(tokens) as match:
            assert match.page_count == 6
            runs = tuple(match.pages.dated_runs)
            extent = namespace.extent_tensor(runs[0].extent_id)
            assert extent.is_pinned() == (device is not None)
            del extent
            load_beside(executor, namespace, BlockTransfer(2, "loaded", others, runs))
        assert blocks.by_block[list(others)].reshape(6, BLOCK_BYTES).equal(written[2:8])


def peak_of(
    layout: Layout, queue: StepQueue, block_count: int, block_bytes: int, *, to_blocks: bool
) -> int:
    """Copies all blocks to slots of the host, or back; returns the device's peak beside them.

    That is the most bytes that torch had allocated on the device, less those before; 0 on a CPU.
    """
    blocks = layout(block_count, block_bytes, queue.device)
    memory = slots(block_count, block_bytes, "cpu")
    wanted = transfer(1, range(block_count))
    with queue.executor(blocks.planes) as executor:
        before = _reset_peak(queue)
        (load_beside if to_blocks else save)(executor, memory, wanted)
        queue.wait()
        return 0 if queue.device == "cpu" else torch.cuda.max_memory_allocated() - before


class Rates(NamedTuple):
    """GB/s of a save and of a load."""

    save: float
    load: float


def rates(layout: Layout, queue: StepQueue, memory: Slots) -> Rates:
    """Returns the rates of a save and of a load of as many blocks as there are slots.

    They are as the half counts them; the best of four rounds.
    """
    block_count, block_bytes = memory.tensor.shape
    blocks = layout(block_count, block_bytes, queue.device)
    wanted = transfer(1, range(block_count))
    best = {"save": 0.0, "load": 0.0}
    for _ in range(4):
        with queue.executor(blocks.planes) as executor:
            save(executor, memory, wanted)
            load_beside(executor, memory, wanted)
            for way, found in best.items():
                assert executor.counts[f"{way}_bytes"] == memory.tensor.nbytes
                microseconds = max(executor.counts[f"{way}_microseconds"], 1)
                best[way] = max(found, memory.tensor.nbytes / microseconds / 1e3)
    return Rates(best["save"], best["load"])


def copy_ceiling(byte_count: int) -> Rates:
    """Returns the rates of one copy of as many bytes between the GPU and torch's pinned memory."""
    pinned = torch.empty(byte_count, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(byte_count, dtype=torch.uint8, device="cuda")

    def rate(target: torch.Tensor, source: torch.Tensor) -> float:
        found = 0.0
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            found = max(found, byte_count / begin.elapsed_time(end) / 1e6)
        return found

    return Rates(rate(pinned, device), rate(device, pinned))


def _reset_peak(queue: StepQueue) -> int:
    if queue.device == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
