"""SGLang's recurrent states as planes of slots."""

from types import SimpleNamespace

import pytest
import torch

from kvstore_sglang.engine.device_pool import UnsupportedPool
from kvstore_sglang.engine.state_pool import StatePool
from sglang_rig.pools import FULL_LAYERS, STATE_NUMBERS, WINDOW_LAYERS, state_pools

SLOTS = 4


def test_a_slot_has_all_states_of_a_layer() -> None:
    """Planes share the pool's memory; layers of attention and empty tensors have none."""
    _, requests = state_pools(SLOTS)
    pool = StatePool(requests)
    assert list(pool.layers) == [n for n in range(WINDOW_LAYERS) if n not in FULL_LAYERS]
    assert {tuple(plane.shape) for planes in pool.layers.values() for plane in planes} == {
        (SLOTS, 4 * STATE_NUMBERS),
        (SLOTS, 12),
    }
    [second, _] = pool.layers[2]
    second[3] = 0
    temporal = requests.mamba_pool.mamba_cache.temporal
    assert not temporal[1, 3].any()
    assert temporal[1, 2].any()
    assert pool.page_numbers(torch.tensor([3, 1])) == [3, 1]


def test_the_facts_are_shapes_and_types() -> None:
    """States of other shapes or types are no states of this model."""
    _, requests = state_pools(SLOTS)
    facts = StatePool(requests).facts
    assert facts == "(2, 250) of float32, (3, 2) of bfloat16"


@pytest.mark.parametrize("side", ["mamba_ckpt_pool", "short_conv_pool", "ngram_pool"])
def test_states_in_several_pools_are_refused(side: str) -> None:
    """One of them alone would be a wrong state."""
    _, requests = state_pools(SLOTS)
    setattr(requests, side, SimpleNamespace(enabled=True))
    with pytest.raises(UnsupportedPool, match="kept in several pools"):
        StatePool(requests)


def test_states_that_lie_apart_are_refused() -> None:
    """A view of another order has no bytes of a slot together."""
    _, requests = state_pools(SLOTS)
    states = requests.mamba_pool.mamba_cache
    states.temporal = states.temporal.transpose(2, 3)
    with pytest.raises(UnsupportedPool, match="--enable-unified-memory"):
        StatePool(requests)
