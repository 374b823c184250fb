"""The offloading manager and its ranks with vLLM's own types, on a real store.

Between a hit and its copy everything happens to the store that can. vLLM asserts that each copy
succeeds, so a copy that cannot be made is reported otherwise, and no page is ever another's.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rig.asked import Asked
from rig.events import events_of
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    LookupResult,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from device.card import Card
from device.client_driver import client_driver
from kvstore_client import (
    AddressRange,
    ContiguousMemory,
    DatedRun,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
)
from kvstore_client.admin import connect_admin
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.memory.cuda import cuda_driver
from kvstore_client.memory.cuda.host_registration import host_registrar
from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.engine.store_access import ENGINES_HERE
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.offload.cpu_worker import HostCopyWorker
from kvstore_vllm.offload.held_copies import HeldCopies
from kvstore_vllm.offload.key_groups import EngineGroup, KeyGroups
from kvstore_vllm.offload.messages import OffloadReport, StorePages
from kvstore_vllm.offload.offload_connector import KvstoreOffloadingConnector
from kvstore_vllm.offload.offload_manager import KvstoreOffloadingManager
from kvstore_vllm.offload.region import StoreRegion
from kvstore_vllm.rank.rank_memory import RankMemory
from kvstore_vllm.scheduler.store_attachment import StoreAttachment
from kvstore_vllm.store_events import BlockSizes

PAGE, LAYER_BYTES, LAYERS, RANKS, BLOCKS = 4, 1024, 2, 2, 64
RANK_BYTES = LAYER_BYTES * LAYERS
ROW_BYTES = RANK_BYTES * RANKS
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
LAYOUT = PageLayout(PAGE, ROW_BYTES, OpaqueContent(b"rows"))
OTHERS = NamespaceIdentity(b"another of thirty-two bytes at mo", display_name="other")
OTHER = PageLayout(PAGE, 2 * ROW_BYTES, OpaqueContent(b"other rows"))
# Four extents of sixteen pages.
STORE = ("--tier1-bytes", str(64 * ROW_BYTES), "--extent-bytes", str(16 * ROW_BYTES))
TIMEOUT = 3.0
LIMIT = 20.0
ENGINES = count()


class Generating(Asked):
    """A request whose pages are all generated, so that some of them wait for others."""

    @property
    def num_prompt_tokens(self) -> int:
        """The number of the prompt's tokens."""
        return 1


class Rank:
    """One rank's blocks, and vLLM's worker over them."""

    def __init__(self, engine_id: str, rank: int, device: int | None) -> None:
        self.blocks = torch.randint(0, 255, (LAYERS, BLOCKS, LAYER_BYTES), dtype=torch.uint8)
        layers = [CanonicalKVCacheTensor(b.view(torch.int8), LAYER_BYTES) for b in self.blocks]
        refs = [CanonicalKVCacheRef(number, LAYER_BYTES) for number in range(LAYERS)]
        caches = CanonicalKVCaches(layers, [refs])

        def make(addresses: AddressRange) -> HostCopyWorker:
            return HostCopyWorker(caches, 1, StoreRegion(addresses, rank, rank * RANK_BYTES))

        self.copies = HeldCopies(RankMemory(None, engine_id, TIMEOUT, device=device), make)


@dataclass
class Engine:
    """A manager and its ranks in one process, and vLLM's connector as far as it matters here."""

    store: RunningStore
    engine_id: str = field(default_factory=lambda: f"engine {next(ENGINES)}")
    jobs: "count[int]" = field(default_factory=count)
    device: int | None = None
    events: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = [Rank(self.engine_id, number, self.device) for number in range(RANKS)]
        self.access = StoreAccess(
            str(self.store.runtime_dir),
            IDENTITY,
            LAYOUT,
            name="vllm tiny",
            call_timeout=TIMEOUT,
            device=ENGINES_HERE.device_of(self.engine_id),
            contiguous_memory=ContiguousMemory(),
        )
        self.counts: Counter[str] = Counter()
        self.manager = KvstoreOffloadingManager(
            PlannerSettings(page_tokens=PAGE, rank_count=RANKS, lookup_timeout=TIMEOUT),
            StoreAttachment(self.access, self.engine_id, RANKS, self.counts),
            b"",
            AdapterDigests(),
            self.counts,
            groups=KeyGroups.of([EngineGroup(0, PAGE, None)]),
            most_spare=16,
            events=events_of(BlockSizes(PAGE, PAGE, PAGE), enabled=True),
        )
        assert wait_until(lambda: self.access.usable and self.access.memory.failure is None)

    def arrive(self, asked: Asked) -> tuple[list[OffloadKey], ReqContext]:
        """Begins a request; returns vLLM's keys for its pages."""
        context = ReqContext(asked.request_id)
        keys = []
        for number in range(1, asked.num_tokens // PAGE + 1):
            digest = repr(asked.all_token_ids[: number * PAGE]).encode()[-28:].rjust(32)
            keys.append(make_offload_key(digest, 0))
            context.set_offload_key_position(keys[-1], number * PAGE)
        asked.block_hashes = [get_offload_block_hash(each) for each in keys]
        self.manager.arrived(asked)
        self.manager.on_new_request(context)
        return keys, context

    def hits(self, keys: Sequence[OffloadKey], context: ReqContext) -> int:
        """Waits for the answer as vLLM does; returns how many pages are loadable."""
        assert wait_until(lambda: self.manager.is_known(context.req_id), LIMIT)
        found = [self.manager.lookup(key, context) for key in keys]
        return found.index(LookupResult.MISS) if LookupResult.MISS in found else len(found)

    def save(self, asked: Asked, blocks: Sequence[int]) -> None:
        """Computes a request into blocks, and stores its pages."""
        keys, context = self.arrive(asked)
        start = self.hits(keys, context)
        self.manager.allocated(asked.request_id)
        stored = self.prepare(keys[start:], context)
        if stored.keys_to_store:
            places = [blocks[keys.index(key)] for key in stored.keys_to_store]
            self.copy(places, stored.store_spec, load=False)
            self.manager.complete_store(set(stored.keys_to_store), context)
        self.end(context)

    def prepare(self, keys: Sequence[OffloadKey], context: ReqContext) -> Any:  # noqa: ANN401
        """Asks for slots as vLLM does: again in the next step, if they are under way."""
        stored = None
        while stored is None:
            self.manager.begin_step(idle=True)
            stored = self.manager.prepare_store(keys, context)
        return stored

    def copy(self, blocks: Sequence[int], pages: StorePages, *, load: bool) -> set[str]:
        """Copies at both ranks, and reports; returns the requests whose loads failed."""
        job = next(self.jobs)
        spec = GPULoadStoreSpec(list(blocks), [len(blocks)], [0])
        report, requests = OffloadReport(), set()
        for rank in self.ranks:
            if load:
                assert rank.copies.submit_load(job, pages, spec)
            else:
                assert rank.copies.submit_store(job, spec, pages)
            [ended] = rank.copies.get_finished()
            assert ended.success
            failed = rank.copies.take_failed()
            requests |= failed.request_ids
            report = report.aggregate(OffloadReport(failed=failed.numbers))
        self.manager.reported(report, requests)
        return requests

    def load(self, keys: Sequence[OffloadKey], context: ReqContext, blocks: Sequence[int]) -> bool:
        """Loads pages into blocks; returns whether that succeeded."""
        pages = self.manager.prepare_load(keys, context)
        self.manager.allocated(context.req_id)
        failed = self.copy(blocks, pages, load=True)
        self.manager.complete_load(set(keys), context)
        return not failed

    def end(self, context: ReqContext) -> None:
        """Ends a request, and steps until nothing of it is left."""
        self.manager.on_request_finished(context)

        def idle() -> bool:
            self.manager.begin_step(idle=True)
            self.manager.on_schedule_end(None)  # type: ignore[arg-type]
            self.manager.publish_copied()
            self.events += self.manager.take_kv_events()
            return not self.manager.has_pending_work()

        assert wait_until(idle, LIMIT)

    def same(self, blocks: Sequence[int], others: Sequence[int]) -> bool:
        """Returns whether blocks have the bytes of others, at each rank."""
        return all(
            torch.equal(rank.blocks[:, list(blocks)], rank.blocks[:, list(others)])
            for rank in self.ranks
        )

    def close(self) -> None:
        """Ends the engine."""
        for rank in self.ranks:
            rank.copies.shutdown()
        self.manager.shutdown()
        ENGINES_HERE.remove(self.engine_id)


def prompt(number: int, pages: int) -> list[int]:
    """Returns the tokens of a prompt that shares nothing with others, and one token more."""
    return [number * 1_000 + each for each in range(pages * PAGE + 1)]


@pytest.fixture
def store() -> Iterator[RunningStore]:
    """Provides a store of four extents."""
    with running_store(*STORE) as running:
        yield running


@pytest.fixture
def engine(store: RunningStore) -> Iterator[Engine]:
    """Provides an engine of two ranks."""
    made = Engine(store)
    with ExitStack() as stack:
        stack.callback(made.close)
        yield made


def holds(store: RunningStore) -> tuple[int, int]:
    """Returns the numbers of pins and reservations in a store."""
    with connect_admin(store.runtime_dir) as admin:
        stats = admin.stats()
    return stats.pin_count, stats.reservation_count


def hit(engine: Engine, number: int = 1) -> tuple[list[OffloadKey], ReqContext]:
    """Stores eight pages from blocks 0 to 7, and looks them up for another request."""
    engine.save(Asked(f"first {number}", prompt(number, 8)), range(8))
    keys, context = engine.arrive(Asked(f"second {number}", prompt(number, 8)))
    assert engine.hits(keys, context) == 8
    return keys, context


def test_pages_come_back_as_they_were(engine: Engine, store: RunningStore) -> None:
    """Both ranks get their own bytes back, events name the keys, and nothing stays held."""
    keys, context = hit(engine)
    [event] = engine.events
    assert event.block_hashes == [
        maybe_convert_block_hash(get_offload_block_hash(each)) for each in keys
    ]
    assert list(event.token_ids) == prompt(1, 8)[: 8 * PAGE]
    assert engine.load(keys[2:], context, range(40, 46))
    assert engine.same(range(2, 8), range(40, 46))
    engine.end(context)
    assert wait_until(lambda: holds(store) == (0, 0), LIMIT)
    assert engine.counts["loaded_tokens_1"] == 6 * PAGE


def test_pages_that_the_disk_alone_had_are_told_from_others(tmp_path: Path) -> None:
    """The first load after a restart of the store is the disk's, for vLLM and in the counts."""
    slab = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(4 << 20))
    with running_store(*STORE, *slab, "--tier3-write", "through") as store:
        engine = Engine(store)
        tokens = prompt(1, 8)
        engine.save(Asked("first", tokens), range(8))
        assert wait_until(lambda: tokens_on_disk(store, tokens) == 8 * PAGE, LIMIT)
        for name, source, tier in (
            ("memory", CacheHitSource.HOST, 1),
            ("disk", CacheHitSource.DISK, 3),
        ):
            keys, context = engine.arrive(Asked(name, tokens))
            assert engine.hits(keys, context) == 8
            pages = engine.manager.prepare_load(keys, context)
            engine.manager.allocated(name)
            assert {engine.manager.get_load_source(key, context) for key in keys} == {source}
            assert not engine.copy(range(40, 48), pages, load=True)
            engine.manager.complete_load(set(keys), context)
            assert engine.counts[f"loaded_tokens_{tier}"] == 8 * PAGE
            engine.end(context)
            store.restart()
            assert wait_until(lambda: attached(engine), LIMIT)
        engine.close()


def attached(engine: Engine) -> bool:
    """Steps; returns whether the engine uses the store."""
    step(engine)
    return engine.access.usable and not engine.access.memory.failure


def tokens_on_disk(store: RunningStore, tokens: Sequence[int]) -> int:
    """Returns how many tokens of a prompt the store's disk has."""
    with connect_admin(store.runtime_dir) as admin:
        [namespace] = admin.namespaces()
        return admin.peek_prefix(namespace.namespace_id, tokens).tier_3_token_count


def test_memory_is_registered_with_the_device_of_the_ranks(
    store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mapped memory is registered once, by the client, until it is unmapped."""
    card = Card()
    monkeypatch.setattr(cuda_driver, "_load", lambda: client_driver(card))
    host_registrar.cache_clear()
    engine = Engine(store, device=0)
    try:
        keys, context = hit(engine)
        addresses = engine.access.memory.address_range
        assert addresses is not None
        extents = addresses.extents.values()
        assert extents
        assert {each.address: each.size_bytes for each in extents} == card.registered
        assert engine.load(keys, context, range(40, 48))
        assert engine.same(range(8), range(40, 48))
        engine.end(context)
    finally:
        engine.close()
        host_registrar.cache_clear()
    assert wait_until(lambda: not addresses.extents and not card.registered, LIMIT)
    assert not card.capture_broken


def test_vllms_worker_registers_no_memory_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds its rows, and leaves the registration to the client. It never reads rows by kernel.

    A kernel on the device would need registered memory, which the device may have refused.
    """
    directions: list[dict[str, Any]] = []

    class Direction:
        """Notes what one direction's copies are made from, which needs blocks on a device."""

        def __init__(self, **of: Any) -> None:  # noqa: ANN401  # vLLM's
            directions.append(of)

        def shutdown(self) -> None:
            """Has no copies to wait for."""

    def refuse(address: int, size: int) -> bool:
        raise AssertionError(f"{size} bytes at {address} are registered twice")

    monkeypatch.setattr(gpu_worker, "PIN_MEMORY", True)
    monkeypatch.setattr(gpu_worker, "host_register", refuse)
    monkeypatch.setattr(gpu_worker, "SingleDirectionOffloadingHandler", Direction)
    blocks = torch.zeros((BLOCKS, LAYER_BYTES), dtype=torch.int8)
    layers = [CanonicalKVCacheTensor(blocks, LAYER_BYTES)] * LAYERS
    refs = [CanonicalKVCacheRef(number, LAYER_BYTES) for number in range(LAYERS)]
    addresses = AddressRange(1, ROW_BYTES, ContiguousMemory(reserved_bytes=1 << 30))
    region = StoreRegion(addresses, 1, RANK_BYTES)
    worker = gpu_worker.CPUOffloadingWorker(CanonicalKVCaches(layers, [refs]), 1, 0, region)
    assert [each["host_memory_is_pinned"] for each in directions] == [False, False]
    begin = addresses.base + RANK_BYTES
    for each in directions:
        rows = each["cpu_tensors"]
        assert [row.data_ptr() for row in rows] == [begin, begin + LAYER_BYTES]
        assert {row.shape for row in rows} == {(addresses.row_count, LAYER_BYTES)}
    worker.shutdown()


def test_another_engine_gets_them(engine: Engine, store: RunningStore) -> None:
    """A page is found by its tokens, whoever stored it; a page that parts is not."""
    engine.save(Asked("first", prompt(1, 8)), range(8))
    other = Engine(store)
    try:
        tokens = [*prompt(1, 5)[:-1], *prompt(2, 3)]
        keys, context = other.arrive(Asked("second", tokens))
        assert other.hits(keys, context) == 5
        assert other.load(keys[:5], context, range(5))
        assert torch.equal(other.ranks[1].blocks[:, :5], engine.ranks[1].blocks[:, :5])
        other.end(context)
    finally:
        other.close()


def test_what_is_not_loaded_is_given_back(engine: Engine, store: RunningStore) -> None:
    """A request that ends, or gets blocks without a load, holds nothing any more."""
    _, context = hit(engine)
    assert holds(store)[0] == 1
    engine.end(context)
    assert wait_until(lambda: holds(store) == (0, 0), LIMIT)
    keys, context = engine.arrive(Asked("third", prompt(1, 8)))
    assert engine.hits(keys, context) == 8
    engine.manager.allocated("third")
    assert wait_until(lambda: holds(store)[0] == 0, LIMIT)
    engine.end(context)


def test_a_store_killed_after_the_hit(engine: Engine, store: RunningStore) -> None:
    """Held pages stay mapped: the copy is right, or it is reported; later requests miss."""
    keys, context = hit(engine)
    store.kill()
    if engine.load(keys, context, range(40, 48)):
        assert engine.same(range(8), range(40, 48))
    engine.end(context)
    keys, context = engine.arrive(Asked("later", prompt(1, 8)))
    assert engine.hits(keys, context) == 0
    assert not engine.prepare(keys, context).keys_to_store
    engine.end(context)
    store.start()
    assert wait_until(lambda: engine.access.usable and not engine.access.memory.failure, LIMIT)
    keys, context = hit(engine, 2)
    assert engine.load(keys, context, range(40, 48))
    assert engine.same(range(8), range(40, 48))
    engine.end(context)


def test_a_store_killed_and_started_before_the_copies(engine: Engine, store: RunningStore) -> None:
    """Slots and pages of the earlier session are neither written nor read in the new one."""
    keys, context = hit(engine)
    fresh, writing = engine.arrive(Asked("writing", prompt(3, 4)))
    assert engine.hits(fresh, writing) == 0
    stored = engine.prepare(fresh, writing)
    assert len(stored.keys_to_store) == 4
    pages = engine.manager.prepare_load(keys, context)
    engine.manager.allocated(context.req_id)
    store.restart()
    if not engine.copy(range(40, 48), pages, load=True):
        assert engine.same(range(8), range(40, 48))
    engine.manager.complete_load(set(keys), context)
    engine.end(context)
    engine.copy(range(4), stored.store_spec, load=False)
    engine.manager.complete_store(set(stored.keys_to_store), writing)
    engine.end(writing)
    assert wait_until(lambda: engine.access.usable and not engine.access.memory.failure, LIMIT)
    for number in (1, 3):
        asked = Asked(f"after {number}", prompt(number, 4))
        keys, context = engine.arrive(asked)
        assert engine.hits(keys, context) == 0
        engine.end(context)


def test_a_store_that_hangs_costs_a_request_its_timeout(
    engine: Engine, store: RunningStore
) -> None:
    """A stopped store is a miss in bounded time, and a copy of what was held goes on."""
    keys, context = hit(engine)
    late, waiting = engine.arrive(Asked("late", prompt(1, 8)))
    store.suspend()
    try:
        assert engine.load(keys, context, range(40, 48))
        assert engine.same(range(8), range(40, 48))
        other, asking = engine.arrive(Asked("asking", prompt(1, 8)))
        began = time.monotonic()
        engine.hits(late, waiting)
        assert engine.hits(other, asking) == 0
        assert not engine.prepare(other, asking).keys_to_store
        assert time.monotonic() - began < 3 * TIMEOUT
    finally:
        store.resume()
    for each in (context, waiting, asking):
        engine.end(each)
    assert wait_until(lambda: holds(store) == (0, 0), LIMIT)


def test_held_pages_survive_eviction_and_extents_that_go(
    engine: Engine, store: RunningStore
) -> None:
    """Other pages push everything out, and another layout takes extents; the hit stays right."""
    keys, context = hit(engine)
    for number in range(2, 12):
        engine.save(Asked(f"other {number}", prompt(number, 8)), range(8, 16))
    before = extent_count(store)
    access = StoreAccess(
        str(store.runtime_dir), OTHERS, OTHER, name="another layout", call_timeout=TIMEOUT
    )
    try:
        assert wait_until(lambda: access.usable and access.memory.failure is None, LIMIT)
        with access.memory.acquire(prompt(1, 8), total_page_count=8) as acquired:
            assert wait_until(lambda: extent_count(store) < before, LIMIT)
            assert engine.load(keys, context, range(40, 48))
            assert engine.same(range(8), range(40, 48))
            assert acquired.failure is None
    finally:
        access.close()
    engine.end(context)
    lost, again = engine.arrive(Asked("lost", prompt(2, 8)))
    assert engine.hits(lost, again) == 0
    engine.end(again)


def extent_count(store: RunningStore) -> int:
    """Returns how many extents have rows of the engine's size."""
    with connect_admin(store.runtime_dir) as admin:
        arenas = admin.stats().arenas
    return sum(each.extent_count for each in arenas if each.slot_bytes == ROW_BYTES)


def test_pages_that_are_not_mapped_are_never_copied(engine: Engine) -> None:
    """An unknown extent, a slot that no extent has, and pages that are not held all fail."""
    before = engine.ranks[0].blocks.clone()
    [extent_id] = list(engine.access.memory.extents)[:1] or [0]
    runs = [(DatedRun(99, [0]),), (DatedRun(extent_id, [1 << 20]),), None]
    for number, each in enumerate(runs):
        pages = StorePages(1_000 + number, "a request", each)
        for rank in engine.ranks:
            assert rank.copies.submit_load(number, pages, GPULoadStoreSpec([3], [1], [0]))
            assert rank.copies.take_failed().block_ids == {3}
            assert len(rank.copies.get_finished()) == 1
        assert engine.copy([3], pages, load=True) == {"a request"}
        assert not engine.copy([3], pages, load=False)
    assert torch.equal(before, engine.ranks[0].blocks)


def test_a_copy_planned_before_the_weights_changed_fails(engine: Engine) -> None:
    """Pages of other weights are not loaded; a later plan, which knows of the change, is."""
    keys, context = hit(engine)
    for rank in engine.ranks:
        rank.copies._weights.count += 1
    assert not engine.load(keys, context, range(40, 48))
    engine.end(context)
    for rank in engine.ranks:
        rank.copies.known_changes = 1
    keys, context = hit(engine, 2)
    assert engine.load(keys, context, range(40, 48))
    engine.end(context)


def test_a_failed_load_is_computed_and_not_tried_again(engine: Engine) -> None:
    """After one failure the request's pages are misses, and their holds are released."""
    keys, context = hit(engine)
    for rank in engine.ranks:
        rank.copies._fault_fraction = 1.0
    assert not engine.load(keys, context, range(40, 48))
    assert engine.counts["loads_failed"] == 1
    assert engine.hits(keys, context) == 0
    engine.end(context)


def test_a_failed_save_is_not_published(engine: Engine) -> None:
    """If one rank could not write, no engine ever finds the page."""
    keys, context = engine.arrive(Asked("first", prompt(1, 8)))
    engine.hits(keys, context)
    stored = engine.prepare(keys, context)
    number = stored.store_spec.number
    engine.manager.reported(OffloadReport(failed={number}), set())
    engine.manager.complete_store(set(stored.keys_to_store), context)
    engine.end(context)
    keys, context = engine.arrive(Asked("second", prompt(1, 8)))
    assert engine.hits(keys, context) == 0
    engine.end(context)


def test_after_a_load_that_failed_in_a_step_nothing_under_way_is_published(engine: Engine) -> None:
    """Other requests may have computed on the blocks; what comes later is stored again."""
    keys, context = engine.arrive(Asked("first", prompt(1, 8)))
    engine.hits(keys, context)
    stored = engine.prepare(keys, context)
    engine.manager.store_nothing_under_way()
    engine.copy(range(8), stored.store_spec, load=False)
    engine.manager.complete_store(set(stored.keys_to_store), context)
    assert not engine.prepare(keys, context).keys_to_store
    engine.end(context)
    for name, found in (("second", 0), ("third", 8)):
        keys, context = engine.arrive(Asked(name, prompt(1, 8)))
        assert engine.hits(keys, context) == found
        engine.end(context)
        engine.save(Asked(f"{name} again", prompt(1, 8)), range(8))


def test_a_page_without_all_its_blocks_is_not_published(engine: Engine) -> None:
    """A block that vLLM left out has slid out of a window: the slot has older bytes there."""
    keys, context = engine.arrive(Asked("first", prompt(1, 2)))
    engine.hits(keys, context)
    stored = engine.prepare(keys, context)
    engine.copy([3], stored.store_spec, load=False)
    engine.manager.complete_store(set(stored.keys_to_store), context)
    engine.end(context)
    keys, context = engine.arrive(Asked("second", prompt(1, 2)))
    assert engine.hits(keys, context) == 0
    engine.end(context)


def test_after_a_reset_nothing_older_hits(engine: Engine, store: RunningStore) -> None:
    """Copies under way hold their pages until ranks flushed; older pages are never found."""
    keys, context = hit(engine)
    pages = engine.manager.prepare_load(keys, context)
    fresh, writing = engine.arrive(Asked("writing", prompt(3, 4)))
    engine.hits(fresh, writing)
    stored = engine.prepare(fresh, writing)
    engine.manager.reset_cache()
    [announced], [gone] = engine.events, engine.manager.take_kv_events()
    assert gone.block_hashes == announced.block_hashes[::-1]
    assert holds(store)[0] == 1
    assert not engine.copy(range(40, 48), pages, load=True)
    assert engine.same(range(8), range(40, 48))
    engine.copy(range(4), stored.store_spec, load=False)
    for rank in (0, 0, 1):
        assert engine.manager.has_pending_work()
        engine.manager.reported(OffloadReport(flushed={rank: engine.manager.reset_count}), set())
    engine.manager.on_request_finished(context)
    engine.end(writing)
    assert wait_until(lambda: holds(store) == (0, 0), LIMIT)
    for number in (1, 3):
        keys, context = engine.arrive(Asked(f"after {number}", prompt(number, 4)))
        assert engine.hits(keys, context) == 0
        engine.end(context)


def test_each_rank_has_to_flush_each_reset(engine: Engine, store: RunningStore) -> None:
    """A rank that flushed two resets does not count for another one."""
    keys, context = hit(engine)
    engine.manager.prepare_load(keys, context)
    for _ in range(2):
        engine.manager.reset_cache()
        engine.manager.reported(OffloadReport(flushed={0: engine.manager.reset_count}), set())
    assert holds(store)[0] == 1
    both = OffloadReport(flushed={0: 2}).aggregate(OffloadReport(flushed={1: 2}))
    assert both.flushed == {0: 2, 1: 2}
    engine.manager.reported(both, set())
    engine.end(context)
    assert wait_until(lambda: holds(store) == (0, 0), LIMIT)


def test_a_reset_may_follow_another_before_a_step() -> None:
    """The scheduler of vLLM keeps the copies to flush of both."""
    scheduler = object.__new__(OffloadingConnectorScheduler)
    scheduler.__dict__ |= {
        "_current_batch_load_jobs": {},
        "_current_batch_jobs_to_flush": set(),
        "_current_batch_allocated_block_ids": set(),
        "_jobs": {1: None, 2: None},
        "_req_status": {},
        "_job_counter": 3,
        "_block_id_to_pending_jobs": {},
        "_chunks_being_loaded": None,
        "_events_tracker": SimpleNamespace(reset=lambda: None),
        "manager": SimpleNamespace(reset_cache=lambda: None),
    }
    connector = object.__new__(KvstoreOffloadingConnector)
    connector.connector_scheduler = scheduler
    assert connector.reset_cache()
    scheduler._jobs[4] = None
    assert connector.reset_cache()
    assert scheduler._current_batch_jobs_to_flush == {1, 2, 4}


def test_a_dry_store_keeps_the_beginning(engine: Engine) -> None:
    """If slots lack, the first pages are stored, and vLLM does not ask for the others again."""
    asked = Asked("long", prompt(1, 30))
    keys, context = engine.arrive(asked)
    engine.hits(keys, context)
    stored = engine.prepare(keys, context)
    assert stored.keys_to_store == keys[:16]
    engine.copy(range(16), stored.store_spec, load=False)
    engine.manager.complete_store(set(stored.keys_to_store), context)
    assert engine.prepare(keys[16:], context).keys_to_store == []
    engine.end(context)
    keys, context = engine.arrive(Asked("again", prompt(1, 30)))
    assert engine.hits(keys, context) == 16
    engine.end(context)


def test_a_store_that_restarts_under_load_is_used_again(
    engine: Engine, store: RunningStore
) -> None:
    """A request that runs on through a restart keeps nothing of the earlier session."""
    _, context = engine.arrive(Asked("running", prompt(1, 4)))
    assert wait_until(lambda: engine.manager.is_known("running"), LIMIT)
    assert wait_until(lambda: holds(store)[1] == 1, LIMIT)
    step(engine)
    store.restart()

    def attached() -> bool:
        step(engine)
        return engine.access.usable and not engine.access.memory.failure

    assert wait_until(attached, LIMIT)
    hit(engine, 2)
    engine.end(context)


def test_pages_that_wait_for_others_do_not_outlive_their_session(
    engine: Engine, store: RunningStore
) -> None:
    """A generated page of an earlier session is given up, while its request runs on."""
    asked = Generating("generating", prompt(1, 4))
    keys, context = engine.arrive(asked)
    engine.hits(keys, context)
    stored = engine.prepare(keys[:1], context)
    engine.copy([0], stored.store_spec, load=False)
    engine.manager.complete_store(set(stored.keys_to_store), context)
    store.restart()

    def attached() -> bool:
        step(engine)
        return engine.access.usable and not engine.access.memory.failure

    assert wait_until(attached, LIMIT)
    engine.end(context)


def step(engine: Engine) -> None:
    """Steps while a request runs."""
    engine.manager.begin_step(idle=False)
    engine.manager.on_schedule_end(None)  # type: ignore[arg-type]
    engine.manager.publish_copied()


def test_plans_without_copies_are_not_remembered(engine: Engine) -> None:
    """Pages that the store has, or cannot take, leave nothing behind in the scheduler."""
    keys, context = hit(engine)
    engine.manager.allocated(context.req_id)
    for _ in range(3):
        assert not engine.prepare(keys, context).keys_to_store
    assert not engine.manager._copies
    engine.end(context)
