"""A rank of a vLLM engine in a process of its own, without vLLM."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch

from kvstore_client import NamespaceIdentity
from kvstore_client.testing import wait_until
from kvstore_vllm.blocks.block_geometry import BlockPiece
from kvstore_vllm.blocks.descriptor_copier import submit_to_cpu
from kvstore_vllm.blocks.engine_layout import LayerFacts, LayoutFacts
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.rank.rank_role import RankRole
from kvstore_vllm.step_plan import BlockTransfer, StepPlan
from processes.resident_bytes import resident_bytes

PAGE_TOKENS, PAGE_BYTES, BLOCKS = 4, 256 << 10, 24
LAYOUT = LayoutFacts(PAGE_TOKENS, (LayerFacts("a", PAGE_BYTES, "uint8"),))
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
# Seconds; more than a busy machine needs.
LIMIT = 20.0


class RankWorker:
    """A rank with one layer of blocks, which are all ones."""

    def __init__(self, runtime_dir: str) -> None:
        piece = BlockPiece(("a",), 0, BLOCKS * PAGE_BYTES, 0, 1, PAGE_BYTES, BLOCKS)
        facts: Any = SimpleNamespace(
            engine_id="engine",
            tensor_parallel_size=1,
            pieces=[piece],
            layout=LAYOUT,
            zeroes_blocks=False,
        )
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(rank=0),
            device_config=SimpleNamespace(device_type="cpu"),
        )
        settings = ConnectorSettings(runtime_dir=runtime_dir, lookup_timeout=LIMIT)
        self.role = RankRole(config, settings, facts, submit_to_cpu)
        self.role.register({"a": torch.ones(BLOCKS * PAGE_BYTES, dtype=torch.uint8)})
        self._plan = StepPlan("engine", identity=IDENTITY, idle=True)

    def settle(self) -> None:
        """Does nothing: no command leaves anything behind."""

    def join(self, lease: bytes) -> bool:
        """Joins a lease as steps do, and returns whether it did."""
        self._plan.lease = lease

        def joined() -> bool:
            self.role.load(self._plan)
            return bool(self.role.take_report().joined)

        return wait_until(joined, LIMIT)

    def save(self, transfer: BlockTransfer) -> bool:
        """Saves blocks in a step, and returns whether all of them are saved."""
        plan = StepPlan("engine", lease=self._plan.lease, identity=IDENTITY, saves=[transfer])
        self.role.load(plan)
        self.role.save(plan)
        return not self.role.take_report().failed

    def resident(self) -> int:
        """Returns the bytes of extents in this process's page tables."""
        return resident_bytes("kvstore-extent")


@contextmanager
def rank_worker(pipe: Connection, runtime_dir: str) -> Iterator[RankWorker]:
    """Makes a rank, and closes it at the end."""
    del pipe
    worker = RankWorker(runtime_dir)
    yield worker
    worker.role.close()
