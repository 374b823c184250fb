"""The hooks in SGLang: token keys for the linker, and news of other weights."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_rig.counters import LayerWiseLoadCounter
from sglang_rig.stand_ins import (
    HookRegistry,
    InsertParams,
    MatchResult,
    RadixKey,
    SchedulerWeightUpdaterManager,
    UnifiedCacheLinkerWrapper,
    UnifiedRadixCache,
    sglang_stand_ins,
)

PAGE = 4
TOKENS = array("q", range(14))


@dataclass
class Linker:
    """A linker that notes what it is asked."""

    found: int = 0
    saves: bool = True
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    saved: list[tuple[Any, ...]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def find(self, *arguments: object) -> int:
        """Returns the number of found pages."""
        self.asked.append(arguments)
        return self.found

    def save(self, extra_key: object, salt: object, tokens: Sequence[int], slots: object) -> bool:
        """Notes a save."""
        self.saved.append((extra_key, salt, list(tokens), slots))
        return self.saves

    def take_events(self) -> list[str]:
        """Returns events of the store."""
        return ["the store's"]

    def drop(self, rid: str) -> None:
        """Notes the end of a request."""
        self.dropped.append(rid)

    def cancel_queued_load(self, rid: str) -> bool:
        """Cancels no load."""
        return rid == "queued"


@pytest.fixture
def registry() -> Iterator[HookRegistry]:
    """Provides SGLang's registry of hooks, with SGLang's other modules."""
    with sglang_stand_ins(LayerWiseLoadCounter) as made:
        yield made


@pytest.fixture
def plugin(registry: HookRegistry) -> ModuleType:
    """Provides the plugin, loaded beside the stand-ins."""
    assert not registry.refuses
    return import_module("kvstore_sglang.plugin")


@pytest.fixture
def cache(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> UnifiedRadixCache:
    """Provides a tree whose linker is ours."""
    monkeypatch.setattr(import_module("kvstore_sglang.linker"), "KvstoreLinker", Linker)
    plugin.require_installed()
    made = UnifiedRadixCache(torch.arange(8, 16), PAGE)
    made.init_cache_linker(Linker())  # type: ignore[arg-type]
    return made


def match(cache: UnifiedRadixCache, device_tokens: int, found: int) -> MatchResult:
    """Matches a request of 14 tokens, of which the device has some and the store more."""
    cache.linker.cache_linker.found = found
    result = MatchResult(device_prefix_len=device_tokens)
    key = RadixKey(TOKENS, "adapter", "salt")
    answer = cache.linker.match(key, SimpleNamespace(rid="request"), result)
    assert isinstance(answer, MatchResult)
    return answer


def test_a_lookup_has_the_tokens_of_whole_pages(cache: UnifiedRadixCache) -> None:
    """The linker gets the request's keys and what the device has; SGLang gets numbers of pages."""
    answer = match(cache, PAGE, 2)
    asked = cache.linker.cache_linker.asked
    assert asked == [("request", "adapter", "salt", TOKENS[:12], 1)]
    assert (answer.host_hit_length, answer.last_host_node) == (8, "best")
    assert cache.linker.hit_markers == {"request": (["1", "2"], PAGE)}


def test_a_miss_leaves_sglang_s_own_match(cache: UnifiedRadixCache) -> None:
    """The marker of an earlier round goes too."""
    match(cache, 0, 2)
    assert match(cache, 0, 0) == MatchResult()
    assert cache.linker.hit_markers == {}


def test_whatever_the_device_has_is_not_looked_up(cache: UnifiedRadixCache) -> None:
    """A request whose whole pages are in the device's tree needs nothing, and holds nothing."""
    assert match(cache, 12, 3).host_hit_length == 0
    assert cache.linker.cache_linker.asked == []
    assert cache.linker.cache_linker.dropped == ["request"]


def test_an_inserted_node_is_saved_with_its_whole_path(cache: UnifiedRadixCache) -> None:
    """The path is locked until SGLang hears of the save's end."""
    assert cache.insert(InsertParams(RadixKey(TOKENS, "adapter", None))) == "inserted"
    [(extra_key, salt, tokens, slots)] = cache.linker.cache_linker.saved
    assert (extra_key, salt, tokens) == ("adapter", None, list(TOKENS[:8]))
    assert slots is cache.tree_core.slots
    assert cache.locked == cache.tree_core.offloading == ["node"]
    assert [each.lock_node_id for each in cache.linker.pending_offloads] == ["node"]


def test_events_of_the_store_follow_those_of_the_tree(cache: UnifiedRadixCache) -> None:
    """SGLang publishes both together."""
    assert cache.take_events() == ["the tree's", "the store's"]


@pytest.mark.parametrize("why", ["refused", "too short", "no insert"])
def test_a_node_that_is_not_saved_is_not_locked(cache: UnifiedRadixCache, why: str) -> None:
    """SGLang may evict it, and offers it again."""
    cache.linker.cache_linker.saves = why != "refused"
    if why == "no insert":
        cache.linker._offload_node("node", [])
    else:
        cache.insert(InsertParams(RadixKey(TOKENS if why == "refused" else TOKENS[:4])))
    assert cache.locked == cache.tree_core.offloading == cache.linker.pending_offloads == []


def test_an_aborted_request_releases_its_pages(cache: UnifiedRadixCache) -> None:
    """A request whose load has started keeps them until the load ended."""
    cache.linker.inflight_load_rids = ["queued", "started"]
    for rid in ("waiting", "queued", "started"):
        cache.linker.release_request(rid)
    assert cache.linker.cache_linker.dropped == ["waiting", "queued"]


def test_another_linker_is_left_alone(cache: UnifiedRadixCache) -> None:
    """Mooncake's linker, for example, is asked as before."""
    del cache
    other = UnifiedRadixCache(torch.arange(8), PAGE)
    other.init_cache_linker(SimpleNamespace())  # type: ignore[arg-type]
    assert match(other, 0, 3) == MatchResult()


def test_other_weights_are_told_before_they_are_there(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of SGLang's ways to change weights tells the linkers of the process."""
    told: list[int] = []
    linker = import_module("kvstore_sglang.linker")
    monkeypatch.setattr(linker, "weights_changed", lambda: told.append(1))
    plugin.require_installed()
    updater = SchedulerWeightUpdaterManager()
    assert updater.update_weights_from_disk("a") == "disk a"
    assert updater.update_weights_from_tensor("a") == "tensor a"
    assert len(told) == 2


def test_the_hooks_are_registered_once(plugin: ModuleType, registry: HookRegistry) -> None:
    """SGLang's plugin loader and the linker may both install them."""
    plugin.install()
    plugin.install()
    registry.apply_hooks()
    plugin.require_installed()
    assert UnifiedCacheLinkerWrapper.__init__.__wrapped__ is not None


def test_a_hook_that_is_not_applied_is_refused(plugin: ModuleType, registry: HookRegistry) -> None:
    """A linker without token keys would find nothing."""
    registry.refuses = True
    with pytest.raises(plugin.HooksMissing, match="has not applied the hook of sglang"):
        plugin.require_installed()


def test_an_untested_version_gets_no_hooks(
    plugin: ModuleType, registry: HookRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines without a linker of ours start as before."""
    monkeypatch.setattr(import_module("sglang.version"), "__version__", "0.6.0")
    monkeypatch.delenv("KVSTORE_SGLANG_ANY_VERSION", raising=False)
    plugin.install()
    registry.apply_hooks()
    assert not hasattr(UnifiedCacheLinkerWrapper.__init__, "__wrapped__")


def test_a_changed_signature_is_named(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not start with a method that takes other arguments."""

    def match_by_hashes(self: object, key: object, request: object) -> None:
        """Has other arguments."""

    monkeypatch.setattr(UnifiedCacheLinkerWrapper, "match", match_by_hashes)
    keys = import_module("kvstore_sglang.token_keys")
    with pytest.raises(keys.ChangedInterface, match="has the arguments self, key, request, and"):
        plugin.require_installed()


def test_a_missing_field_is_named(plugin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result without a field that is read is refused as well."""
    del plugin
    keys = import_module("kvstore_sglang.token_keys")
    monkeypatch.setitem(keys.FIELDS, MatchResult, {"prefix_length"})
    with pytest.raises(keys.ChangedInterface, match="MatchResult of this SGLang has no prefix_len"):
        keys.require_signatures()
