"""A rank answers every plan, also if nothing can be copied."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvstore_client import DatedRun
from kvstore_client.testing import wait_until
from kvstore_vllm.blocks.block_geometry import BlockPiece
from kvstore_vllm.blocks.descriptor_copier import submit_to_cpu
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.rank.rank_memory import RankMemory, selected_gpu
from kvstore_vllm.rank.rank_role import RankRole
from kvstore_vllm.rank.weight_changes import WeightChanges
from kvstore_vllm.step_plan import BlockTransfer, StepPlan
from vllm_rig.block_layouts import slots, transfer

LOAD, SAVE = 1, 2
RUNS = (DatedRun(5, (0, 1), (0, 0)),)
LAYER_BYTES, BLOCKS = 64, 4


@dataclass
class Facts:
    """The fields of ``EngineFacts`` for one layer of four blocks."""

    engine_id: str = "an engine without a scheduler half here"
    tensor_parallel_size: int = 1
    zeroes_blocks: bool = False
    pieces: list[BlockPiece] = field(
        default_factory=lambda: [BlockPiece(("a",), 0, 256, 0, 1, LAYER_BYTES, BLOCKS)]
    )


def rank(kv_caches: dict[str, torch.Tensor], *, zeroes_blocks: bool = False) -> RankRole:
    """A rank with some memory."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=0), device_config=SimpleNamespace(device_type="cpu")
    )
    facts: Any = Facts(zeroes_blocks=zeroes_blocks)
    side = RankRole(config, ConnectorSettings(), facts, submit_to_cpu)
    side.register(kv_caches)
    return side


@pytest.mark.parametrize(("device_type", "device"), [("cuda", 3), ("cpu", None)])
def test_a_client_in_this_process_knows_the_device_of_the_rank(
    device_type: str, device: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device that vLLM selected is the one whose memory the scheduler's client registers."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    config = SimpleNamespace(device_config=SimpleNamespace(device_type=device_type))
    RankMemory(None, "an engine with both halves here", 1.0, device=selected_gpu(config))
    assert ENGINES_HERE.device_of("an engine with both halves here") == device
    ENGINES_HERE.remove("an engine with both halves here")


@pytest.mark.parametrize("load_async", [True, False])
@pytest.mark.parametrize(
    "kv_caches",
    [{}, {"a": torch.zeros(16, dtype=torch.uint8)}, {"a": torch.zeros(256, dtype=torch.uint8)}],
    ids=["no layer", "too small", "no store"],
)
def test_what_cannot_be_copied_is_reported(
    kv_caches: dict[str, torch.Tensor], *, load_async: bool
) -> None:
    """Failed copies are reported, so no request waits for its load and no block is held forever."""
    side = rank(kv_caches)
    load = BlockTransfer(LOAD, "loading", (2, 3), RUNS)
    save = BlockTransfer(SAVE, "saving", (0, 1), RUNS)
    plan = StepPlan("engine", load_async=load_async, loads=[load], saves=[save], let_go={"ended"})
    side.load(plan)
    side.save(plan)
    side.close()
    let_go, received = side.take_finished()
    assert let_go == {"ended"}
    assert received == ({"loading"} if load_async else set())
    assert side.take_failed_blocks() == {2, 3}
    report = side.take_report()
    assert set(report.ended) == report.failed == {LOAD, SAVE}
    assert report.disagrees == (kv_caches.get("a", torch.zeros(0)).nbytes < BLOCKS * LAYER_BYTES)


@pytest.mark.parametrize("zeroes_blocks", [False, True], ids=["plain blocks", "zeroed blocks"])
def test_loads_begin_before_the_forward_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, *, zeroes_blocks: bool
) -> None:
    """A load is made once: before the forward, or after a step that zeroes blocks began."""
    blocks = torch.zeros((BLOCKS, LAYER_BYTES), dtype=torch.uint8)
    memory = slots(BLOCKS, LAYER_BYTES, "cpu")
    memory.tensor.fill_(7)
    monkeypatch.setattr(ENGINES_HERE, "get", lambda _: SimpleNamespace(memory=memory))
    side = rank({"a": blocks}, zeroes_blocks=zeroes_blocks)
    plan = StepPlan("engine", loads=[transfer(LOAD, range(1, 3))])
    side.prepare(plan)
    loaded = not zeroes_blocks and wait_until(lambda: side.take_finished()[1] == {"request 1"})
    assert bool(blocks[1:3].all()) == loaded != zeroes_blocks
    side.load(plan)
    assert loaded or wait_until(lambda: side.take_finished()[1] == {"request 1"})
    side.close()
    assert blocks[:, 0].tolist() == [0, 7, 7, 0]
    assert side.counts["load_bytes"] == 2 * LAYER_BYTES


def test_a_step_waits_for_saves_of_preempted_requests_first() -> None:
    """Saves are waited for before a load may overwrite their blocks."""
    side = rank({"a": torch.zeros(BLOCKS * LAYER_BYTES, dtype=torch.uint8)})
    calls: list[object] = []
    executor: Any = SimpleNamespace(
        wait_for_saves=calls.append, load=lambda plan, _: calls.append(plan)
    )
    side._executor = executor
    plan = StepPlan("engine", loads=[transfer(LOAD, range(1))], preempted={"r"})
    side.prepare(plan)
    assert calls == [{"r"}, plan]


class Slots:
    """A store's memory of one extent, as ``RankMemory`` gives it to a rank."""

    def __init__(self) -> None:
        self.mapped = self
        self.slots = torch.full((4, LAYER_BYTES), 7, dtype=torch.uint8)

    def follow(self, *_: object, **__: object) -> None:
        """Stays as it is."""

    def take_joined(self) -> dict[bytes, int]:
        """Says nothing of leases."""
        return {}

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns the one extent."""
        del extent_id
        return self.slots

    def fill_page_tables(self, *_: object) -> None:
        """Does nothing: the slots are touched."""

    def recycled(self, runs: object) -> list[object]:
        """Says that no slot was reused."""
        del runs
        return []

    def close(self) -> None:
        """Has nothing to close."""


def rank_with_slots() -> tuple[RankRole, WeightChanges]:
    """A rank that reaches a store's memory, and its count of changes."""
    weights = WeightChanges()
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(rank=0), device_config=SimpleNamespace(device_type="cpu")
    )
    facts: Any = Facts()
    side = RankRole(config, ConnectorSettings(), facts, submit_to_cpu, weights)
    memory: Any = Slots()
    side._memory = memory
    side.register({"a": torch.zeros(256, dtype=torch.uint8)})
    return side, weights


@pytest.mark.parametrize("known", [0, 1, 2])
def test_what_was_planned_before_the_weights_changed_fails(known: int) -> None:
    """Such a plan's pages, and its blocks, belong to other weights than those of its namespace."""
    side, weights = rank_with_slots()
    weights.count = 1
    load = BlockTransfer(LOAD, "loading", (2, 3), RUNS)
    save = BlockTransfer(SAVE, "saving", (0, 1), RUNS)
    plan = StepPlan("engine", load_async=False, loads=[load], saves=[save], weight_changes=known)
    side.load(plan)
    side.save(plan)
    side.close()
    assert side.take_failed_blocks() == (set() if known == 1 else {2, 3})
    report = side.take_report()
    assert report.failed == (set() if known == 1 else {LOAD, SAVE})
    assert report.weight_changes == 1


@pytest.mark.parametrize("changes", [0, 1])
def test_a_load_under_way_fails_as_the_weights_change(changes: int) -> None:
    """Its request is computed with the new weights, from its first token on."""
    side, weights = rank_with_slots()
    load = BlockTransfer(LOAD, "loading", (2, 3), RUNS)
    side.load(StepPlan("engine", loads=[load]))
    weights.count += changes
    side.close()
    _, received = side.take_finished()
    assert received == {"loading"}
    assert side.take_failed_blocks() == ({2, 3} if changes else set())
    assert side.take_report().failed == ({LOAD} if changes else set())
    assert not side.take_report().failed
