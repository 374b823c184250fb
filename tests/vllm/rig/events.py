"""Events of the store's pages by vLLM's own types, and requests that they name."""

from types import SimpleNamespace

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.request import Request

from kvstore_vllm.store_events import BlockSizes, StoreEvents


def events_of(sizes: BlockSizes, *, enabled: bool | None) -> StoreEvents:
    """Returns events as a configuration has them; None: it has none of KV events."""
    config = None if enabled is None else SimpleNamespace(enable_kv_cache_events=enabled)
    spec = FullAttentionSpec(
        block_size=sizes.block_tokens, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    group = KVCacheGroupSpec(["layer"], spec)
    return StoreEvents(SimpleNamespace(kv_events_config=config), group, 0, sizes)


def make_request(hash_tokens: int, count: int, salt: str | None = None) -> Request:
    """Makes a request of ``count`` tokens, with a hash for each ``hash_tokens``."""
    init_none_hash(sha256)
    return Request(
        request_id="r",
        prompt_token_ids=list(range(count)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(hash_tokens, sha256),
    )
