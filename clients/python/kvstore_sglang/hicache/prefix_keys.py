"""A correction of SGLang: the hashes of the prefix that a prefetch goes on from.

SGLang 0.5.23 passes the hashes of the nodes above the last one, without the last one's own. The
storage would then look for pages after a prefix that is too short, and find none.
"""

import sys
from collections.abc import Callable
from typing import Any, Final

CACHE: Final = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
TARGET: Final = f"{CACHE}.get_prefix_hash_values"
# The module with our storage, which is loaded if an engine uses it.
STORAGE: Final = "kvstore_sglang.hicache.storage"


def with_last_node(original: Callable[..., Any], cache: Any, node_id: Any) -> list[str]:  # noqa: ANN401  # SGLang's own
    """Returns the hashes of all pages up to a node's end, if the storage is ours."""
    found: list[str] = original(cache, node_id)
    storage = getattr(getattr(cache, "cache_controller", None), "storage_backend", None)
    if storage is None or not _is_ours(storage):
        return found
    own: list[str] = cache.tree_core.get_hash_values(node_id)
    return [*found, *own]


def _is_ours(storage: Any) -> bool:  # noqa: ANN401  # a HiCacheStorage
    """Returns whether a storage is ours, or SGLang's injector of failures around it."""
    loaded = sys.modules.get(STORAGE)
    if loaded is None:
        return False
    return any(
        isinstance(each, loaded.KvstoreHiCache)
        for each in (storage, getattr(storage, "_backend", None))
    )
