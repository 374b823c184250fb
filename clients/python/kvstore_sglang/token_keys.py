"""Token keys between SGLang's tree and the linker.

SGLang's own wrapper asks by hashes of the uncached pages, and saves by those of one node. Neither
names its parent, so a tree of prefixes cannot find the place. Everything else is SGLang's.
"""

import inspect
import logging
from typing import Any, Final

from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchResult
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    ExternalCacheHitMarker,
    UnifiedCacheLinkerWrapper,
    _PendingOffload,
)
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

_logger = logging.getLogger(__name__)

# The names of the arguments that this module passes or takes.
SIGNATURES: Final = {
    UnifiedRadixCache.insert: ("self", "params"),
    UnifiedRadixCache.take_events: ("self",),
    UnifiedCacheLinkerWrapper.__init__: ("self", "cache", "cache_linker"),
    UnifiedCacheLinkerWrapper.match: ("self", "key", "req", "result"),
    UnifiedCacheLinkerWrapper.load_back: ("self", "req"),
    UnifiedCacheLinkerWrapper.release_request: ("self", "rid"),
    UnifiedCacheLinkerWrapper._offload_node: ("self", "node_id", "transfers"),  # noqa: SLF001
    UnifiedCacheLinkerWrapper._sync_restorable_prefix: (  # noqa: SLF001
        *("self", "restorable", "num_pages", "device_hit_pages"),
    ),
    RadixKey.raw_token_ids: ("self",),
}
FIELDS: Final = {
    ExternalCacheHitMarker: {"tail_hashes", "device_hit_len"},
    _PendingOffload: {"lock_node_id", "lock_params", "publish_node_ids"},
    MatchResult: {"best_match_node", "last_host_node", "host_hit_length", "device_prefix_len"},
    InsertParams: {"key"},
}


class ChangedInterface(RuntimeError):
    """A part of SGLang that the wrapper stands on has changed; the message names it."""


def require_signatures() -> None:
    """Raises ``ChangedInterface`` unless SGLang's methods have the expected arguments."""
    for function, expected in SIGNATURES.items():
        found = tuple(inspect.signature(inspect.unwrap(function)).parameters)
        if found != expected:
            raise ChangedInterface(
                f"{function.__qualname__} of this SGLang has the arguments {', '.join(found)}, and "
                f"kvstore_sglang knows {', '.join(expected)}: use a version that it was tested with"
            )
    for kind, expected_fields in FIELDS.items():
        missing = sorted(each for each in expected_fields if not hasattr(kind, each))
        if missing:
            raise ChangedInterface(
                f"{kind.__name__} of this SGLang has no {', '.join(missing)}: use a version that "
                "kvstore_sglang was tested with"
            )


class TokenKeys:
    """The methods of SGLang's wrapper that ask one cache's linker by tokens. One thread uses it.

    Whatever one rank knows alone, such as a failure of its store, changes no branch here: every
    rank takes part in the same reductions.
    """

    def __init__(self, wrapper: Any) -> None:  # noqa: ANN401  # a UnifiedCacheLinkerWrapper
        self._wrapper = wrapper
        self._cache = wrapper.cache
        self._linker = wrapper.cache_linker
        self._insert = wrapper.cache.insert
        self._take_events = wrapper.cache.take_events
        self._release_request = wrapper.release_request
        self._inserting: Any = None

    def attach(self) -> None:
        """Takes the place of the methods of SGLang's wrapper, and watches inserts and events."""
        self._wrapper.match = self.match
        self._wrapper.release_request = self.release_request
        self._wrapper._offload_node = self.offload_node  # noqa: SLF001  # it has no other name
        self._cache.insert = self.insert
        self._cache.take_events = self.take_events

    def match(self, key: Any, req: Any, result: Any) -> Any:  # noqa: ANN401  # SGLang's own
        """Offers the pages that the store has after those of the device."""
        page_tokens = self._cache.page_size
        device_tokens = result.device_prefix_len
        whole = len(key) // page_tokens * page_tokens
        # The answer of an earlier round is none of this one.
        self._wrapper.hit_markers.pop(req.rid, None)
        if device_tokens >= whole:
            self._linker.drop(req.rid)
            return result
        first = device_tokens // page_tokens
        tokens = key.raw_token_ids()[:whole]
        mine = self._linker.find(req.rid, key.extra_key, key.cache_salt, tokens, first)
        found = self._wrapper._sync_restorable_prefix(  # noqa: SLF001  # as its own match
            list(range(1, mine + 1)), num_pages=whole // page_tokens - first, device_hit_pages=0
        )
        if not found:
            return result
        numbers = [str(first + each) for each in range(found)]
        self._wrapper.hit_markers[req.rid] = ExternalCacheHitMarker(numbers, device_tokens)
        return result._replace(
            last_host_node=result.best_match_node, host_hit_length=found * page_tokens
        )

    def release_request(self, rid: str) -> None:
        """Ends a request that was aborted."""
        self._release_request(rid)
        if rid not in self._wrapper.inflight_load_rids:
            self._linker.drop(rid)

    def insert(self, params: Any) -> Any:  # noqa: ANN401  # SGLang's own
        """Inserts a sequence, whose nodes SGLang offers meanwhile to :meth:`offload_node`."""
        before, self._inserting = self._inserting, params
        try:
            return self._insert(params)
        finally:
            self._inserting = before

    def take_events(self) -> list[Any]:
        """Returns the KV events of SGLang's tree, and then those of the store's pages."""
        return [*self._take_events(), *self._linker.take_events()]

    def offload_node(self, node_id: Any, transfers: Any) -> None:  # noqa: ANN401  # SGLang's own
        """Saves a node's pages, whose tokens are in the insert under way."""
        del transfers
        key = self._inserting.key if self._inserting is not None else None
        if key is None:
            return
        tree = self._cache.tree_core
        # The lock keeps the whole path: the store may lack pages above the node's too.
        lock = self._cache.inc_lock_ref(node_id).to_dec_params()
        slots = tree.collect_full_device_indices(node_id, tree.root_node_handle(key.extra_key))
        end = len(slots)
        queued = len(key) >= end and self._linker.save(
            key.extra_key, key.cache_salt, key.raw_token_ids()[:end], slots
        )
        if not queued:
            self._cache.dec_lock_ref(node_id, lock)
            return
        tree.mark_external_linker_offload_pending(node_id)
        self._wrapper.pending_offloads.append(_PendingOffload(node_id, lock, [node_id]))
