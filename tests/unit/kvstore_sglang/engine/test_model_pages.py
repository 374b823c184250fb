"""The pages of a model's components, read of SGLang's pools."""

import pytest
import torch

from kvstore_client import GroupWindow, OpaqueContent, PagedContent
from kvstore_sglang.engine.device_pool import UnsupportedPool
from kvstore_sglang.engine.model_pages import STATE_POOL, SWA_POOL, ModelPages
from sglang_rig.pools import (
    DIM,
    FULL_LAYERS,
    HEADS,
    LAYERS,
    PAGE,
    STATE_NUMBERS,
    WINDOW_HEADS,
    WINDOW_LAYERS,
    WINDOW_PAGES,
    SWAKVPool,
    params_of,
    plain_pages,
    plain_pool,
    state_pools,
    window_pages,
    window_pool,
)

PAGES, FLOAT = 4, 4


def test_plain_pages_are_the_path_alone() -> None:
    """The store knows their shape, and no match names a group."""
    pages = plain_pages(plain_pool(PAGES))
    assert pages.layout.content == PagedContent(LAYERS, HEADS, DIM, "float32")
    assert (pages.layer_count, pages.windows, dict(pages.others)) == (LAYERS, (), {})
    assert pages.needed(SWA_POOL, 9) == 0


def test_windows_hang_off_the_path_in_groups() -> None:
    """A page of three layers with three heads fills more than two slots of the path's pages."""
    pages = window_pages(window_pool(PAGES))
    path_bytes = len(FULL_LAYERS) * 2 * PAGE * HEADS * DIM * FLOAT
    window_bytes = (WINDOW_LAYERS - len(FULL_LAYERS)) * 2 * PAGE * WINDOW_HEADS * DIM * FLOAT
    assert pages.layout.page_bytes == path_bytes
    groups = tuple(range(1, 1 + -(-window_bytes // path_bytes)))
    assert pages.others[SWA_POOL].groups == groups
    assert pages.windows == tuple(GroupWindow(group, WINDOW_PAGES) for group in groups)
    assert pages.layer_count == WINDOW_LAYERS
    assert sorted(pages.path.pieces) == sorted(FULL_LAYERS)
    assert sorted([*pages.path.pieces, *pages.others[SWA_POOL].pieces]) == list(
        range(WINDOW_LAYERS)
    )
    assert [pages.needed(SWA_POOL, count) for count in (1, 9)] == [1, WINDOW_PAGES]


def test_engines_with_other_windows_share_no_pages() -> None:
    """The layout tells apart which layers have windows, and their shapes."""
    contents = set()
    for change in ("none", "heads", "layers", "type"):
        pool = window_pool(PAGES)
        if change == "heads":
            sliding = pool.swa_kv_pool
            sliding.k_buffer = [each[:, :1].contiguous() for each in sliding.k_buffer]
            sliding.v_buffer = [each[:, :1].contiguous() for each in sliding.v_buffer]
        if change == "type":
            sliding = pool.swa_kv_pool
            sliding.k_buffer = [each.bfloat16() for each in sliding.k_buffer]
            sliding.v_buffer = [each.bfloat16() for each in sliding.v_buffer]
        if change == "layers":
            mapping = pool.layers_mapping
            mapping[0], mapping[1] = mapping[1], mapping[0]
        content = window_pages(pool).layout.content
        assert isinstance(content, OpaqueContent)
        contents.add(content.fingerprint)
    assert len(contents) == 4


def test_a_state_hangs_off_the_page_it_ends_with() -> None:
    """A match needs the one at its end, in as many groups as it fills slots."""
    pool, requests = state_pools(PAGES)
    pages = ModelPages.read(params_of(pool, req_to_token_pool=requests), ["FULL", "MAMBA"])
    states = pages.others[STATE_POOL]
    state_bytes = (WINDOW_LAYERS - len(FULL_LAYERS)) * (STATE_NUMBERS * FLOAT + 12)
    assert states.groups == tuple(range(1, 1 + -(-state_bytes // pages.layout.page_bytes)))
    assert pages.windows == tuple(GroupWindow(group, 1) for group in states.groups)
    assert (pages.layer_count, pages.needed(STATE_POOL, 9)) == (WINDOW_LAYERS, 1)
    assert sorted(pages.path.pieces) == sorted(FULL_LAYERS)
    assert states.page_numbers(torch.tensor([3])) == [3]
    requests.mamba_pool.mamba_cache.temporal = requests.mamba_pool.mamba_cache.temporal.bfloat16()
    other = ModelPages.read(params_of(pool, req_to_token_pool=requests), ["FULL", "MAMBA"])
    assert other.layout.content != pages.layout.content


def test_states_beside_another_pool_are_refused() -> None:
    """Windows and states together, for example."""
    _, requests = state_pools(PAGES)
    params = params_of(window_pool(PAGES), req_to_token_pool=requests)
    with pytest.raises(UnsupportedPool, match="a SWAKVPool, and KvstoreLinker takes recurrent"):
        ModelPages.read(params, ["FULL", "MAMBA"])


class UnifiedSWAAllocator:
    """An allocator of another kind."""

    def get_kvcache(self) -> SWAKVPool:
        """Returns the pool."""
        return window_pool(PAGES)


def test_windows_that_no_page_has_are_refused() -> None:
    """Each sentence names the kind of pool, or the flag to leave out."""
    pool = window_pool(PAGES)
    only_windows = SWAKVPool(pool.full_kv_pool, pool.swa_kv_pool, {0: (0, True)})
    refused = {
        "the KV pool is a MHATokenToKVPool": params_of(plain_pool(PAGES)),
        "leave --enable-unified-memory out": params_of(
            pool, token_to_kv_pool_allocator=UnifiedSWAAllocator()
        ),
        "all layers have sliding windows": params_of(only_windows),
        "--enable-decoder-swa-bounded-replay": params_of(pool, decoder_swa_bounded_replay=True),
        "not in the prefix tree": params_of(pool, swa_gates_prefix_match=False),
    }
    for sentence, params in refused.items():
        with pytest.raises(UnsupportedPool, match=sentence):
            ModelPages.read(params, ["FULL", "SWA"])


def test_slots_of_windows_are_those_of_their_own_pool() -> None:
    """Each pool has its own numbers of pages."""
    pages = window_pages(window_pool(PAGES))
    slots = torch.arange(2 * PAGE, 3 * PAGE)
    assert pages.others[SWA_POOL].page_numbers(slots) == [2]
