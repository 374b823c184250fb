"""The whole linker on a real store, behind stand-ins of SGLang's scheduler and tree."""

from array import array
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engines.connector_logs import forget_connector_logs
from kvstore_client.admin import connect_admin
from kvstore_client.engines import page_checks
from kvstore_client.testing import RunningStore, wait_until
from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.event_stand_ins import BlockRemoved, BlockStored, StorageMedium, block_hash
from sglang_rig.pools import PAGE, MHATokenToKVPool, page_of, plain_pool, slots_of, wipe
from sglang_rig.stand_ins import (
    InsertParams,
    MatchResult,
    RadixKey,
    SchedulerWeightUpdaterManager,
    ServerArgs,
    UnifiedRadixCache,
    sglang_stand_ins,
)

PAGES, LIMIT = 16, 30.0
TOKENS = array("q", range(3 * PAGE + 1))
pytestmark = pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")


class Server:
    """A scheduler with one rank: a pool, a tree, and the linker between them."""

    def __init__(self, linkers: ModuleType, runtime_dir: str, **arguments: Any) -> None:  # noqa: ANN401
        self.pool: MHATokenToKVPool = plain_pool(PAGES)
        self.pool.device = "cpu"  # type: ignore[attr-defined]
        allocator = SimpleNamespace(get_kvcache=lambda: self.pool)
        params = SimpleNamespace(
            token_to_kv_pool_allocator=allocator,
            page_size=PAGE,
            attn_tp_cache_group=None,
            tp_cache_group=None,
            enable_metrics=False,
            enable_kv_cache_events=True,
            dynamo_kv_event_format=False,
            kv_event_lora_names=None,
            is_eagle=False,
        )
        self.linker = linkers.KvstoreLinker(
            ServerArgs(**arguments),
            params,
            components=[SimpleNamespace(name="FULL")],
            extra_config={"runtime_dir": runtime_dir, "lookup_timeout": LIMIT},
        )
        # The tree has three pages, in pages 4, 5 and 9 of the pool.
        self.cache = UnifiedRadixCache(slots_of([4, 5, 9]), PAGE)
        self.cache.init_cache_linker(self.linker)

    def computed(self, key: RadixKey) -> bool:
        """Inserts a computed sequence; returns whether its pages are in the store."""
        self.cache.insert(InsertParams(key))
        assert wait_until(lambda: self.linker.num_completed_offloads() > 0, LIMIT)
        return bool(self.linker.pop_completed_offload())

    def found(self, key: RadixKey, rid: str = "request") -> int:
        """Matches a request; returns how many tokens the store has."""
        request = SimpleNamespace(rid=rid)
        return int(self.cache.linker.match(key, request, MatchResult()).host_hit_length)

    def loads(self, numbers: list[int], rid: str = "request") -> bool:
        """Loads found pages into pages of the pool."""
        marker = self.cache.linker.hit_markers[rid]
        transfer = SimpleNamespace(keys=marker.tail_hashes, device_indices=slots_of(numbers))
        assert self.linker.load(rid, [transfer])
        index = self.linker.start_layer_wise_loading()
        return bool(self.linker.finish_layer_wise_loading(index))


@pytest.fixture
def serve(fresh_store: RunningStore) -> Iterator[Callable[..., Server]]:
    """Provides a function that starts servers on one store."""
    with sglang_stand_ins(LayerWiseLoadCounter):
        linkers = import_module("kvstore_sglang")
        servers: list[Server] = []

        def start(**arguments: object) -> Server:
            servers.append(Server(linkers, str(fresh_store.runtime_dir), **arguments))
            return servers[-1]

        yield start
        for each in servers:
            each.linker.close()
        forget_connector_logs("kvstore_sglang")


def test_a_second_server_loads_what_the_first_computed(serve: Callable[..., Server]) -> None:
    """Its first request finds all whole pages, and they land as they were."""
    first, second = serve(), serve()
    assert first.found(RadixKey(TOKENS)) == 0
    assert first.computed(RadixKey(TOKENS))
    wipe(second.pool)
    assert second.found(RadixKey(TOKENS)) == 3 * PAGE
    assert second.loads([1, 2, 3])
    for target, source in zip((1, 2, 3), (4, 5, 9), strict=True):
        assert torch.equal(page_of(second.pool, target), page_of(first.pool, source))


def events_of(server: Server) -> list[BlockStored | BlockRemoved]:
    """Returns the events of the store's pages, after those of SGLang's tree."""
    first, *others = server.cache.take_events()
    assert first == "the tree's"
    return others


def test_events_name_the_pages_that_a_server_can_load(
    serve: Callable[..., Server], fresh_store: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that saved them and the one that found them announce and withdraw them."""
    monkeypatch.setattr(page_checks, "ROUND_SECONDS", 0.01)
    first, second = serve(), serve()
    assert first.computed(RadixKey(TOKENS))
    assert second.found(RadixKey(TOKENS)) == 3 * PAGE
    hashes = [block_hash(list(TOKENS[: (n + 1) * PAGE])) for n in range(3)]
    for each in (first, second):
        [stored] = events_of(each)
        assert isinstance(stored, BlockStored)
        assert (stored.block_hashes, stored.medium) == (hashes, "CPU_PINNED")
        assert stored.token_ids == list(TOKENS[: 3 * PAGE])
    second.linker.drop("request")
    with connect_admin(fresh_store.runtime_dir) as admin:
        [space] = [each for each in admin.namespaces() if each.cached_page_count]
        admin.evict_prefix(space.namespace_id, TOKENS[: 2 * PAGE])
    for each in (first, second):
        found: list[Any] = []
        assert wait_until(lambda each=each, found=found: found.extend(events_of(each)) or found)
        assert found == [BlockRemoved([hashes[2], hashes[1]], StorageMedium.CPU)]
    second.linker.reset()
    assert events_of(second) == [BlockRemoved([hashes[0]], StorageMedium.CPU)]


@pytest.mark.parametrize("change", ["flush", "weights"])
def test_after_a_change_nothing_of_before_is_found(
    change: str, serve: Callable[..., Server]
) -> None:
    """The engine shares with nobody from then on, but finds its own pages."""
    first, second = serve(), serve()
    assert first.computed(RadixKey(TOKENS))
    assert second.found(RadixKey(TOKENS)) == 3 * PAGE
    if change == "flush":
        second.linker.reset()
    else:
        SchedulerWeightUpdaterManager().update_weights_from_disk("other weights")
    assert second.found(RadixKey(TOKENS)) == 0
    assert second.computed(RadixKey(TOKENS))
    assert second.found(RadixKey(TOKENS), "another") == 3 * PAGE


def test_keys_and_types_separate_requests(serve: Callable[..., Server]) -> None:
    """Another extra key, another salt and another engine find nothing."""
    first, other = serve(), serve(dtype="bfloat16")
    assert first.computed(RadixKey(TOKENS, "a", "b"))
    for number, key in enumerate(((None, None), ("a", None), (None, "b"), ("b", "a"))):
        assert first.found(RadixKey(TOKENS, *key), str(number)) == 0
    assert first.found(RadixKey(TOKENS, "a", "b"), "same") == 3 * PAGE
    assert other.found(RadixKey(TOKENS, "a", "b")) == 0


def test_a_cancelled_load_is_none(serve: Callable[..., Server]) -> None:
    """An aborted request whose load waits is taken out, and its pages are released."""
    server = serve()
    assert server.computed(RadixKey(TOKENS))
    assert server.found(RadixKey(TOKENS)) == 3 * PAGE
    keys = server.cache.linker.hit_markers["request"].tail_hashes
    transfer = SimpleNamespace(keys=keys, device_indices=slots_of([1, 2, 3]))
    server.linker.load("request", [transfer])
    server.cache.linker.inflight_load_rids.append("request")
    server.cache.linker.release_request("request")
    assert server.linker.start_layer_wise_loading() == -1
    assert server.found(RadixKey(TOKENS), "later") == 3 * PAGE


def test_a_load_of_pages_that_are_not_held_fails(serve: Callable[..., Server]) -> None:
    """All ranks queue it, and hear of the failure together."""
    server = serve()
    transfer = SimpleNamespace(keys=["0"], device_indices=slots_of([1]))
    assert server.linker.load("unknown", [transfer])
    assert not server.linker.finish_layer_wise_loading(server.linker.start_layer_wise_loading())


def test_without_the_hook_the_linker_says_so(serve: Callable[..., Server]) -> None:
    """SGLang's own methods name no tokens."""
    server = serve()
    with pytest.raises(RuntimeError, match="looked up by hashes of 1 pools"):
        server.linker.lookup("request", [object()])
    with pytest.raises(RuntimeError, match="saved by hashes, in session s"):
        server.linker.offload([object()], session_id="s")


def test_an_unsupported_engine_does_not_start(serve: Callable[..., Server]) -> None:
    """The error names the flag."""
    with pytest.raises(ValueError, match="--pp-size is 2"):
        serve(pp_size=2)
