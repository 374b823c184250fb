"""The layouts that the connector asks for are vLLM's own, placed as vLLM places them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, compute_layout_strides
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvstore_vllm.connector import KvstoreConnector
from kvstore_vllm.engine.connector_settings import LAYOUTS


def config(device_type: str, **extra: str) -> Any:  # noqa: ANN401  # a VllmConfig
    """Returns the fields of vLLM's configuration that are read."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
        device_config=SimpleNamespace(device_type=device_type),
    )


def test_every_layout_is_vllms() -> None:
    """The setting takes vLLM's names and no others."""
    assert set(LAYOUTS) == set(KVCacheLayout.__members__)


@pytest.mark.parametrize(
    ("device_type", "extra", "expected"),
    [
        ("cuda", {}, KVCacheLayout.BLNHC),
        ("cpu", {}, None),
        ("cuda", {"kv_cache_layout": "none"}, None),
        ("cuda", {"kv_cache_layout": "BLHNC"}, KVCacheLayout.BLHNC),
    ],
)
def test_the_layout_is_asked_for(
    device_type: str, extra: dict[str, str], expected: KVCacheLayout | None
) -> None:
    """The hook of vLLM returns the name of a layout whose blocks come first, on a GPU."""
    found = KvstoreConnector.get_required_kvcache_layout(config(device_type, **extra))
    assert found == (expected and expected.name)
    assert expected is None or expected.is_block_outermost


def test_a_block_of_the_default_layout_is_one_piece() -> None:
    """The strides of vLLM place all layers of a block side by side."""
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=4, head_size=32, head_size_v=32, dtype=torch.bfloat16
    )
    layers, blocks = 5, 7
    layer, block, *_ = compute_layout_strides(spec, blocks, layers, KVCacheLayout.BLNHC)
    assert layer == spec.page_size_bytes
    assert block == layers * spec.page_size_bytes
