"""MLA on several ranks: every rank has the same latent, and the store keeps it once.

vLLM's CPU build runs no such model. Its configuration, its memory, its half at each rank and this
package's manager run here on a real store, step by step as an engine's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from rig.asked import Asked
from rig.caches import BLOCK_TOKENS, EngineCaches, RankCaches, save_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import TransferJob
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LookupResult,
    OffloadKey,
    ReqContext,
    make_offload_key,
)

from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.offload.messages import OffloadReport, OffloadStep
from kvstore_vllm.offload.offload_manager import KvstoreOffloadingManager

LATENT, RANKS, PAGES = 576, 2, 3
NAMES = tuple(f"model.layers.{number}.self_attn.attn" for number in range(4))
LAYER_BYTES = LATENT * 4 * BLOCK_TOKENS
STORED, LOADED = [3, 6, 1], [5, 2, 7]
LIMIT = 20.0
TOKENS = list(range(PAGES * BLOCK_TOKENS + 1))
ON = {"canonical_layout": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides a folder of a model with MLA."""
    return save_config("deepseek-v2", tmp_path_factory.mktemp("compressed"))


@pytest.fixture
def store() -> Iterator[RunningStore]:
    """Provides a store."""
    with running_store("--tier1-bytes", "64MiB") as running:
        yield running


def caches(folder: Path, ranks: int, **extra: object) -> EngineCaches:
    """Configures an engine of so many ranks."""
    spec = MLAAttentionSpec(
        block_size=BLOCK_TOKENS,
        num_kv_heads=1,
        head_size=LATENT,
        dtype=torch.float32,
        max_tp_shards=1,
    )
    layers = dict.fromkeys(NAMES, spec)
    return EngineCaches.of(folder, layers, ranks=ranks, layout="LBNHC", extra=extra)


@dataclass
class Engine:
    """The manager and the ranks of an engine, and vLLM's scheduler as far as it matters here."""

    caches: EngineCaches
    ranks: list[RankCaches] = field(init=False)
    manager: KvstoreOffloadingManager = field(init=False)
    jobs: "count[int]" = field(default_factory=count)

    def __post_init__(self) -> None:
        self.ranks = list(self.caches.ranks())
        manager = self.caches.spec.get_manager()
        assert isinstance(manager, KvstoreOffloadingManager)
        self.manager = manager
        access = ENGINES_HERE.get(self.caches.engine_id)
        assert access is not None
        assert wait_until(lambda: access.usable and access.memory.failure is None, LIMIT)

    def arrive(self, name: str) -> tuple[list[OffloadKey], ReqContext]:
        """Begins a request, and waits until its lookup is answered."""
        context = ReqContext(name)
        keys = []
        for number in range(1, PAGES + 1):
            keys.append(make_offload_key(bytes([number]) * 32, 0))
            context.set_offload_key_position(keys[-1], number * BLOCK_TOKENS)
        self.manager.arrived(Asked(name, TOKENS))
        self.manager.on_new_request(context)
        assert wait_until(lambda: self.manager.is_known(name), LIMIT)
        return keys, context

    def hits(self, keys: list[OffloadKey], context: ReqContext) -> int:
        """Returns how many pages are loadable."""
        return sum(self.manager.lookup(key, context) is LookupResult.HIT for key in keys)

    def save(self, name: str) -> list[OffloadReport]:
        """Stores a request's blocks in two steps; returns each rank's report of the second."""
        keys, context = self.arrive(name)
        stored: Any = None
        while stored is None:
            self.manager.begin_step(idle=True)
            stored = self.manager.prepare_store(keys, context)
        self.manager.allocated(name)
        assert stored.keys_to_store == keys
        job = TransferJob(name, plan(STORED), stored.store_spec)
        reports = self.step(OffloadStep({}, {next(self.jobs): job}))
        self.manager.complete_store(set(keys), context)
        self.end(context)
        return reports

    def load(self, name: str) -> list[OffloadReport]:
        """Loads a request's blocks at all ranks; returns each rank's report."""
        keys, context = self.arrive(name)
        assert self.hits(keys, context) == PAGES
        pages = self.manager.prepare_load(keys, context)
        self.manager.allocated(name)
        job = TransferJob(name, pages, plan(LOADED))
        reports = self.step(OffloadStep({next(self.jobs): job}, {}))
        self.manager.complete_load(set(keys), context)
        self.end(context)
        return reports

    def step(self, work: OffloadStep) -> list[OffloadReport]:
        """Runs a step and an idle one at each rank, as vLLM's runner does."""
        reports = []
        for rank in self.ranks:
            worker = rank.connector_worker
            for each in (work, OffloadStep({}, {})):
                worker.handle_preemptions(each)
                worker.start_kv_transfers(each)
                worker.prepare_store_kv(each)
            worker.get_finished(set())
            meta = worker.build_connector_worker_meta()
            failed = worker.worker.take_failed()  # type: ignore[union-attr]
            assert meta is not None
            reports.append(OffloadReport(meta.completed_jobs, meta.transfer_stats, failed.numbers))
            self.manager.reported(reports[-1], failed.request_ids)
        return reports

    def end(self, context: ReqContext) -> None:
        """Ends a request, and steps until nothing of it is left."""
        self.manager.on_request_finished(context)

        def idle() -> bool:
            self.manager.begin_step(idle=True)
            self.manager.on_schedule_end(None)  # type: ignore[arg-type]
            self.manager.publish_copied()
            return not self.manager.has_pending_work()

        assert wait_until(idle, LIMIT)

    def close(self) -> None:
        """Ends the engine."""
        for rank in self.ranks:
            rank.connector_worker.shutdown()
        self.manager.shutdown()


def plan(blocks: list[int]) -> GPULoadStoreSpec:
    """Returns vLLM's plan for blocks from a request's beginning."""
    return GPULoadStoreSpec(blocks, [len(blocks)], [0])


def test_a_page_has_one_copy_for_all_ranks(folder: Path) -> None:
    """A row has the bytes of one rank, each rank finds them at its beginning, and rank 0 writes."""
    two = caches(folder, 2)
    row = two.spec.row
    assert row.row_bytes == len(NAMES) * LAYER_BYTES
    ranks = list(two.ranks())
    specs = [rank.connector_worker.spec for rank in ranks]
    assert [spec.replicated_layout for spec in specs] == [True, True]
    assert [spec.row.begin(number) for number, spec in enumerate(specs)] == [0, 0]
    assert [rank.connector_worker._is_store_writer for rank in ranks] == [True, False]


def test_other_numbers_of_ranks_share_only_with_the_setting(folder: Path) -> None:
    """The bytes are the same, and still the rows are told apart unless operators ask for it."""
    layouts = [caches(folder, ranks).spec.row.layout for ranks in (1, 2, 4)]
    assert len(set(layouts)) == 3
    assert {layout.page_bytes for layout in layouts} == {len(NAMES) * LAYER_BYTES}
    shared = [caches(folder, ranks, **ON).spec.row.layout for ranks in (1, 2, 4)]
    assert len(set(shared)) == 1
    assert not set(shared) & set(layouts)


@pytest.mark.parametrize("canonical", [False, True])
def test_one_rank_writes_each_page_and_all_read_it(
    folder: Path, store: RunningStore, *, canonical: bool
) -> None:
    """Every rank acknowledges each copy, and the pages' bytes are written once.

    Without the canonical layout rank 0 writes all of them. With it the ranks take turns.
    """
    extra: dict[str, object] = {"runtime_dir": str(store.runtime_dir), "lookup_timeout": LIMIT}
    engine = Engine(caches(folder, RANKS, **extra, **(ON if canonical else {})))
    try:
        truth = torch.rand((len(NAMES), PAGES, 1, BLOCK_TOKENS, LATENT))
        for rank in engine.ranks:
            for layer, name in enumerate(NAMES):
                rank.layers[name][STORED] = truth[layer]
        stored = engine.save("first")
        [done] = [report.completed_jobs for report in stored[:1]]
        assert [report.completed_jobs for report in stored] == [done] * RANKS
        assert list(done.values()) == [1]
        written = [report.transfer_stats.store.bytes for report in stored]
        assert sum(written) == PAGES * len(NAMES) * LAYER_BYTES
        assert canonical or written[1] == 0
        assert not any(report.failed for report in stored)
        read = engine.load("second")
        assert [len(report.completed_jobs) for report in read] == [1] * RANKS
        for rank, report in zip(engine.ranks, read, strict=True):
            assert report.transfer_stats.load.bytes == PAGES * len(NAMES) * LAYER_BYTES
            for layer, name in enumerate(NAMES):
                assert torch.equal(rank.layers[name][LOADED], truth[layer])
    finally:
        engine.close()


def test_a_page_that_its_writer_could_not_copy_is_not_published(
    folder: Path, store: RunningStore
) -> None:
    """The other rank acknowledges the copy without one, and still nobody finds the page."""
    extra: dict[str, object] = {"runtime_dir": str(store.runtime_dir), "lookup_timeout": LIMIT}
    engine = Engine(caches(folder, RANKS, **extra))
    try:
        writer = engine.ranks[0].connector_worker.worker
        # As if its weights had changed after the plan was made.
        writer._weights.count += 1  # type: ignore[union-attr]
        stored = engine.save("first")
        assert [bool(report.failed) for report in stored] == [True, False]
        assert [len(report.completed_jobs) for report in stored] == [1] * RANKS
        keys, context = engine.arrive("second")
        assert engine.hits(keys, context) == 0
        engine.end(context)
    finally:
        engine.close()
