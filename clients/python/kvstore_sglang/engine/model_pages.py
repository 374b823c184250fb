"""The pages of all components of one rank's model, and how the store keeps them.

The pages of full attention are the path of a sequence in the store. Those of other components hang
off it as KV cache groups: docs/hybrid-models.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

import torch

from kvstore_client import GroupWindow, OpaqueContent, PageLayout
from kvstore_client.engines.canonical import framed
from kvstore_sglang.engine.component_pages import ComponentPages, cut
from kvstore_sglang.engine.device_pool import DevicePool, UnsupportedPool

MARK: Final = b"kvstore_sglang hybrid page 1"
# SGLang's names of components, and of their pools.
FULL, SWA = "FULL", "SWA"
KV_POOL, SWA_POOL = "kv", "swa"
# The class of a pool with sliding windows, and of its allocator.
WINDOW_POOL: Final = "SWAKVPool"
WINDOW_ALLOCATOR: Final = "SWATokenToKVPoolAllocator"
# The group of the path, and of the first page that hangs off it.
PATH, FIRST_GROUP = 0, 1


@dataclass(frozen=True)
class ModelPages:
    """The pages of one rank's model: ``path`` and, by the names of their pools, ``others``.

    ``layer_count`` counts the layers of the model. ``page_count`` are those of the path's pool.
    """

    device: torch.device
    layout: PageLayout
    layer_count: int
    path: ComponentPages
    others: Mapping[str, ComponentPages]

    @classmethod
    def read(cls, params: Any, components: Sequence[str]) -> Self:  # noqa: ANN401  # a CacheInitParams
        """Returns the pages of the pools that SGLang made.

        Raises ``UnsupportedPool`` for a pool that cannot be kept in pages.
        """
        kvcache = params.token_to_kv_pool_allocator.get_kvcache()
        if SWA in components:
            return cls._with_windows(kvcache, params)
        pool = DevicePool(kvcache, params.page_size)
        layers = dict(enumerate(pool.layers))
        path = _path(pool, {number: layer.planes for number, layer in layers.items()})
        return cls(pool.device, pool.layout, len(pool.layers), path, {})

    @property
    def windows(self) -> tuple[GroupWindow, ...]:
        """The groups that a match names."""
        return tuple(window for each in self.others.values() for window in each.windows)

    def needed(self, pool: str, page_count: int) -> int:
        """Returns how many of ``page_count`` new pages a request needs of a pool; 0 without it."""
        return self.others[pool].needed(page_count) if pool in self.others else 0

    @classmethod
    def _with_windows(cls, kvcache: Any, params: Any) -> Self:  # noqa: ANN401  # SGLang's own
        _require_plain_windows(kvcache, params)
        page_tokens = params.page_size
        full = DevicePool(kvcache.full_kv_pool, page_tokens)
        sliding = DevicePool(kvcache.swa_kv_pool, page_tokens)
        layers: dict[str, dict[int, tuple[torch.Tensor, ...]]] = {KV_POOL: {}, SWA_POOL: {}}
        for layer, (number, slides) in sorted(kvcache.layers_mapping.items()):
            pool, name = (sliding, SWA_POOL) if slides else (full, KV_POOL)
            layers[name][layer] = pool.layers[number].planes
        slot_bytes = full.page_bytes
        pieces, part_count = cut(layers[SWA_POOL], slot_bytes)
        window = -(-params.swa_retain_window // page_tokens)
        groups = tuple(range(FIRST_GROUP, FIRST_GROUP + part_count))
        hanging = ComponentPages(SWA_POOL, groups, window, pieces, sliding.page_numbers)
        facts = [
            f"{name} {sorted(layers[name])} {pool.facts}"
            for name, pool in ((KV_POOL, full), (SWA_POOL, sliding))
        ]
        content = OpaqueContent(sha256(framed(MARK, *(each.encode() for each in facts))).digest())
        return cls(
            full.device,
            PageLayout(page_tokens, slot_bytes, content),
            max(kvcache.layers_mapping) + 1,
            _path(full, layers[KV_POOL]),
            {SWA_POOL: hanging},
        )


def _path(pool: DevicePool, layers: Mapping[int, Sequence[torch.Tensor]]) -> ComponentPages:
    pieces, _ = cut(layers, pool.page_bytes)
    return ComponentPages(KV_POOL, (PATH,), 0, pieces, pool.page_numbers)


def _require_plain_windows(kvcache: Any, params: Any) -> None:  # noqa: ANN401  # SGLang's own
    """Raises ``UnsupportedPool`` for sliding windows that SGLang keeps in another way."""
    name = type(kvcache).__name__
    if name != WINDOW_POOL:
        raise UnsupportedPool(
            f"the KV pool is a {name}, and KvstoreLinker takes sliding windows in a {WINDOW_POOL}: "
            "this model cannot use it"
        )
    allocator = type(params.token_to_kv_pool_allocator).__name__
    if allocator != WINDOW_ALLOCATOR:
        raise UnsupportedPool(
            f"the pool of sliding windows has a {allocator}, and KvstoreLinker takes a "
            f"{WINDOW_ALLOCATOR}: leave --enable-unified-memory out"
        )
    if not kvcache.full_layer_nums:
        raise UnsupportedPool(
            "all layers have sliding windows, and KvstoreLinker needs one of full attention, whose "
            "pages are the path of a sequence: this model cannot use it"
        )
    if not params.swa_gates_prefix_match or params.decoder_swa_bounded_replay:
        raise UnsupportedPool(
            "the windows are kept for each request and not in the prefix tree, so no page has "
            "them: leave --enable-decoder-swa-bounded-replay out"
        )
