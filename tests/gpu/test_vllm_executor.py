"""vLLM's half at a rank on CUDA tensors, without vLLM."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvstore_client.testing import RunningStore
from kvstore_vllm.blocks.block_geometry import pieces_of
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.rank.rank_role import RankRole
from kvstore_vllm.step_plan import StepPlan
from vllm_rig.block_layouts import LAYOUTS, CacheTensor, Layout, content, slots, transfer
from vllm_rig.driver_copies import DriverCopies
from vllm_rig.executor_copies import (
    BESIDE_CHECKS,
    COPY_CHECKS,
    Check,
    copy_ceiling,
    pages_go_through_a_store,
    peak_of,
    rates,
)
from vllm_rig.step_queues import CudaQueue

MIB = 1 << 20
BLOCKS, BLOCK_BYTES = 64, MIB

pytestmark = pytest.mark.store("--tier1-bytes", "64MiB", "--extent-bytes", "16MiB")


@pytest.mark.parametrize("place", ["cpu", "registered", "cuda"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("check", COPY_CHECKS, ids=lambda each: each.__name__)
def test_blocks_are_copied(check: Check, layout: Layout, place: str) -> None:
    """Between a GPU's blocks and slots of the host or of the same GPU, in the step's order."""
    check(layout, CudaQueue(), place)


@pytest.mark.parametrize("place", ["registered", "cuda"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("check", BESIDE_CHECKS, ids=lambda each: each.__name__)
def test_blocks_are_copied_beside_steps(check: Check, layout: Layout, place: str) -> None:
    """No transfer waits for a step that it does not need, nor for the other direction."""
    check(layout, CudaQueue(), place)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_pages_go_through_a_store_in_registered_memory(layout: Layout, store: RunningStore) -> None:
    """The memory of a real store is registered, and the GPU copies to it and from it."""
    pages_go_through_a_store(layout, CudaQueue(), str(store.runtime_dir), 0)


def test_a_rank_saves_what_was_there_before_a_preemption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is poisoned right after the hook of preemptions does not reach the store."""
    count, size = 24, 4096
    raw, queue = torch.zeros((count, size), dtype=torch.uint8, device="cuda"), CudaQueue()
    memory, written = slots(count, size, "registered"), content(count, size, "cuda")
    facts: Any = SimpleNamespace(
        engine_id="engine",
        tensor_parallel_size=1,
        zeroes_blocks=False,
        pieces=pieces_of([CacheTensor(["a"], count * size, size)], count),
    )
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=0), device_config=SimpleNamespace(device_type="cuda")
    )
    monkeypatch.setattr(ENGINES_HERE, "get", {"engine": SimpleNamespace(memory=memory)}.get)
    side = RankRole(config, ConnectorSettings(), facts, DriverCopies())
    side.register({"a": raw})
    wanted = transfer(1, range(count))
    queue.keep_busy()
    raw.copy_(written)
    side.save(StepPlan("engine", saves=[wanted]))
    assert queue.is_busy
    side.prepare(StepPlan("engine", preempted={wanted.request_id}))
    raw.fill_(0x55)
    side.take_finished()
    assert dict(side.take_report().ended) == {wanted.job: 1}
    queue.wait()
    side.close()
    assert memory.tensor.equal(written.cpu())


@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_transfer_uses_no_memory_of_the_device(layout: Layout, *, to_blocks: bool) -> None:
    """A transfer allocates nothing on the device, which vLLM has budgeted for, in any layout."""
    peak = peak_of(layout, CudaQueue(), BLOCKS, BLOCK_BYTES, to_blocks=to_blocks)
    assert peak == 0


@pytest.mark.parametrize("place", ["cpu", "registered"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_all_bytes_move_and_their_rate_is_printed(
    layout: Layout, record_property: Callable[[str, object], None], place: str
) -> None:
    """A save and a load of 256 MiB move all bytes; prints GB/s beside one copy of as many bytes."""
    memory = slots(4 * BLOCKS, BLOCK_BYTES, place)
    assert memory.tensor.is_pinned() == (place == "registered")
    found, ceiling = rates(layout, CudaQueue(), memory), copy_ceiling(memory.tensor.nbytes)
    figures = ", ".join(
        f"{way} {rate:.1f} GB/s ({rate / most:.0%} of {most:.1f})"
        for way, rate, most in zip(found._fields, found, ceiling, strict=True)
    )
    record_property("summary", f"{layout.__name__}, {place} slots: {figures}")
    assert min(found) > 0
