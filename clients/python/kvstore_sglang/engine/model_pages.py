"""The pages of all components of one rank's model, and how the store keeps them.

The pages of full attention are the path of a sequence in the store. Those of other components hang
off it as KV cache groups: docs/hybrid-models.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

import torch

from kvstore_client import GroupWindow, OpaqueContent, PageLayout
from kvstore_client.engines.canonical import framed
from kvstore_sglang.engine.component_pages import ComponentPages, cut
from kvstore_sglang.engine.device_pool import DevicePool, UnsupportedPool
from kvstore_sglang.engine.state_pool import StatePool

MARK: Final = b"kvstore_sglang hybrid page 1"
# SGLang's names of components, and of their pools.
SWA, MAMBA = "SWA", "MAMBA"
KV_POOL, SWA_POOL, STATE_POOL = "kv", "swa", "mamba"
# The classes of pools that are made of others: with sliding windows, and beside states.
WINDOW_POOL, LINEAR_POOL = "SWAKVPool", "HybridLinearKVPool"
WINDOW_ALLOCATOR: Final = "SWATokenToKVPoolAllocator"
# The group of the path, and of the first page that hangs off it.
PATH, FIRST_GROUP = 0, 1


class _Hanging(NamedTuple):
    """A component besides the path, not cut yet: the planes of each layer of the model."""

    name: str
    window: int
    layers: Mapping[int, Sequence[torch.Tensor]]
    page_slots: int
    page_numbers: Callable[[torch.Tensor], list[int]]
    facts: str


@dataclass(frozen=True)
class ModelPages:
    """The pages of one rank's model: ``path`` and, by the names of their pools, ``others``.

    ``layer_count`` counts the layers of the model, which a forward waits for one by one.
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
        if MAMBA in components:
            return cls._with_states(kvcache, params)
        pool = DevicePool(kvcache, params.page_size)
        layers = {number: layer.planes for number, layer in enumerate(pool.layers)}
        return cls(pool.device, pool.layout, len(pool.layers), _path(pool, layers), {})

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
        full = DevicePool(kvcache.full_kv_pool, params.page_size)
        sliding = DevicePool(kvcache.swa_kv_pool, params.page_size)
        path: dict[int, Sequence[torch.Tensor]] = {}
        windows: dict[int, Sequence[torch.Tensor]] = {}
        for layer, (number, slides) in sorted(kvcache.layers_mapping.items()):
            if slides:
                windows[layer] = sliding.layers[number].planes
            else:
                path[layer] = full.layers[number].planes
        window = -(-params.swa_retain_window // params.page_size)
        hanging = _Hanging(
            *(SWA_POOL, window, windows, params.page_size, sliding.page_numbers, sliding.facts)
        )
        return cls._of(full, path, hanging)

    @classmethod
    def _with_states(cls, kvcache: Any, params: Any) -> Self:  # noqa: ANN401  # SGLang's own
        name = type(kvcache).__name__
        if name != LINEAR_POOL:
            raise UnsupportedPool(
                f"the KV pool is a {name}, and KvstoreLinker takes recurrent states beside a "
                f"{LINEAR_POOL}: this model cannot use it"
            )
        full = DevicePool(kvcache.full_kv_pool, params.page_size)
        states = StatePool(params.req_to_token_pool)
        path = {
            layer: full.layers[number].planes
            for layer, number in sorted(kvcache.full_attention_layer_id_mapping.items())
        }
        hanging = _Hanging(*(STATE_POOL, 1, states.layers, 1, states.page_numbers, states.facts))
        return cls._of(full, path, hanging)

    @classmethod
    def _of(
        cls, full: DevicePool, path: Mapping[int, Sequence[torch.Tensor]], hanging: _Hanging
    ) -> Self:
        """Returns pages of a path and one component that hangs off it."""
        slot_bytes = full.page_bytes
        pieces, part_count = cut(hanging.layers, slot_bytes)
        groups = tuple(range(FIRST_GROUP, FIRST_GROUP + part_count))
        others = ComponentPages(
            *(hanging.name, groups, hanging.window, pieces),
            page_slots=hanging.page_slots,
            page_numbers=hanging.page_numbers,
        )
        facts = (
            f"{KV_POOL} {sorted(path)} {full.facts}",
            f"{hanging.name} {sorted(hanging.layers)} {hanging.facts}",
        )
        content = OpaqueContent(sha256(framed(MARK, *(each.encode() for each in facts))).digest())
        return cls(
            full.device,
            PageLayout(full.page_tokens, slot_bytes, content),
            max(*path, *hanging.layers) + 1,
            _path(full, path),
            {hanging.name: others},
        )


def _path(pool: DevicePool, layers: Mapping[int, Sequence[torch.Tensor]]) -> ComponentPages:
    pieces, _ = cut(layers, pool.page_bytes)
    return ComponentPages(KV_POOL, (PATH,), 0, pieces, pool.page_tokens, pool.page_numbers)


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
