"""Sliding windows in a pool of their own, as SGLang's attention for a CPU has to read them.

A plugin of SGLang's. The backend ``torch_native`` of 0.5.23 writes keys and values of sliding
windows into their own pool, and then reads that pool at the places of the other one. It answers
right only while both pools happen to give the same places. SGLang's files stay as they are.
"""

from collections.abc import Callable
from typing import Any

import torch

READERS = ("_run_sdpa_forward_extend", "_run_sdpa_forward_decode")


def install() -> None:
    """Makes the attention read the pool of windows at that pool's own places."""
    from sglang.srt.layers.attention import torch_native_backend  # noqa: PLC0415  # where it is used

    backend = torch_native_backend.TorchNativeAttnBackend
    for name in READERS:
        setattr(backend, name, _translated(getattr(backend, name)))


def _translated(read: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a reader that translates the places of requests' tokens, for layers with windows."""

    def translated(
        self: Any,  # noqa: ANN401  # SGLang's own
        query: torch.Tensor,
        output: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        places: torch.Tensor,
        rows: torch.Tensor,
        *arguments: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> torch.Tensor:
        if self.use_sliding_window_kv_pool and _has(self.token_to_kv_pool.swa_kv_pool, keys):
            places = self.token_to_kv_pool.translate_loc_from_full_to_swa(places[rows].long())
            rows = torch.arange(len(rows), device=rows.device)
        return read(self, query, output, keys, values, places, rows, *arguments, **named)

    return translated


def _has(pool: Any, keys: torch.Tensor) -> bool:  # noqa: ANN401  # an MHATokenToKVPool
    return any(each.data_ptr() == keys.data_ptr() for each in pool.k_buffer)
