"""SGLang's pool of recurrent states of one rank as planes of slots."""

from typing import Any, Final

import torch

from kvstore_sglang.engine.device_pool import UnsupportedPool

# Parts of SGLang's pool of requests that keep states in another form, or more of them.
SIDE_POOLS: Final = ("short_conv_pool", "ngram_pool")


class StatePool:
    """The recurrent states of one rank: a slot has those of all layers after one token.

    ``layers`` has the planes of each layer of the model that has a state, each ``[slots, bytes]``
    of uint8. A plane shares the pool's memory. Raises ``UnsupportedPool`` for states that are not
    whole in their slots.
    """

    def __init__(self, requests: Any) -> None:  # noqa: ANN401  # a HybridReqToTokenPool
        sides = [getattr(requests, name, None) for name in SIDE_POOLS]
        if requests.mamba_ckpt_pool is not None or any(each and each.enabled for each in sides):
            raise UnsupportedPool(
                "the recurrent states are kept in several pools, as int8 checkpoints for example, "
                "and KvstoreLinker takes one: leave --enable-int8-mamba-checkpoint out"
            )
        pool = requests.mamba_pool
        tensors = [
            each for each in (pool.mamba_cache.temporal, *pool.mamba_cache.conv) if each.numel()
        ]
        self.facts = ", ".join(
            f"{tuple(each.shape[2:])} of {str(each.dtype).removeprefix('torch.')}"
            for each in tensors
        )
        self.layers = {
            layer: tuple(_plane(each[number]) for each in tensors)
            for layer, number in sorted(requests.mamba_map.items())
        }

    def page_numbers(self, slots: torch.Tensor) -> list[int]:
        """Returns the numbers of the planes' rows: a slot is one row."""
        return [int(slot) for slot in slots.tolist()]


def _plane(states: torch.Tensor) -> torch.Tensor:
    if not states.is_contiguous():
        raise UnsupportedPool(
            f"a layer's states of {tuple(states.shape)} have strides {states.stride()}, and a page "
            "needs those of a slot together: leave --enable-unified-memory out"
        )
    return states.view(torch.uint8).view(states.shape[0], -1)
