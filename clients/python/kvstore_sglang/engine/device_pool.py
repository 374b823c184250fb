"""SGLang's KV pool of one rank as planes of pages, and the layout of the store's pages for it."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from kvstore_client import PagedContent, PageLayout

# The classes of pools that keep every token of every layer, by the attributes with their tensors.
POOL_BUFFERS: Final = {
    "MHATokenToKVPool": ("k_buffer", "v_buffer"),
    "MLATokenToKVPool": ("kv_buffer",),
}
# Tensors that quantized pools keep beside those, without which a page means nothing.
SCALES: Final = ("k_scale_buffer", "native_k_scale_buffer", "kv_scale_buffer")


class UnsupportedPool(ValueError):
    """The pool's memory cannot be kept in pages; the message says why and what to do."""


class LayerPlanes(NamedTuple):
    """One layer's keys and values, or its one latent: each ``[pages, bytes of a page]`` of uint8.

    A plane shares the pool's memory.
    """

    planes: tuple[torch.Tensor, ...]


class DevicePool:
    """The memory of one rank's KV pool.

    ``page_tokens`` is SGLang's page size. Raises ``UnsupportedPool`` for a pool that is not plain:
    other classes, scales beside the values, layers of different shapes, or planes that are not
    contiguous.
    """

    def __init__(self, pool: Any, page_tokens: int) -> None:  # noqa: ANN401  # a KVCache of SGLang's
        name = type(pool).__name__
        if name not in POOL_BUFFERS:
            raise UnsupportedPool(
                f"the KV pool is a {name}, and KvstoreLinker takes {' and '.join(POOL_BUFFERS)}: "
                "models with sparse attention, for example, need another cache, such as "
                "--enable-hierarchical-cache"
            )
        if any(getattr(pool, scale, None) is not None for scale in SCALES):
            raise UnsupportedPool(
                "the KV pool keeps scales beside its values, which a page does not have: set "
                "another --kv-cache-dtype"
            )
        buffers: list[Sequence[torch.Tensor]] = [
            getattr(pool, attribute) for attribute in POOL_BUFFERS[name]
        ]
        every = [tensor for buffer in buffers for tensor in buffer]
        first = every[0]
        for tensor in every:
            if tensor.shape != first.shape or tensor.dtype != first.dtype:
                raise UnsupportedPool(
                    f"the KV pool has tensors {tuple(first.shape)} of {first.dtype} and "
                    f"{tuple(tensor.shape)} of {tensor.dtype}, and a page has one shape for all "
                    "layers, keys and values: this model cannot use KvstoreLinker"
                )
            if not tensor.is_contiguous() or tensor.shape[0] % page_tokens:
                raise UnsupportedPool(
                    f"a tensor of {tuple(tensor.shape)} with strides {tensor.stride()} has no "
                    f"whole pages of {page_tokens} tokens: set --page-size to a divisor"
                )
        self.page_tokens = page_tokens
        self.device = first.device
        self._shape = (len(buffers[0]), len(buffers), *first.shape[1:])
        self._dtype = str(first.dtype).removeprefix("torch.")
        self.layers = tuple(
            LayerPlanes(tuple(_pages(tensor, page_tokens) for tensor in tensors))
            for tensors in zip(*buffers, strict=True)
        )
        self.page_count = first.shape[0] // page_tokens

    @property
    def page_bytes(self) -> int:
        """The bytes of a page: all its planes together."""
        return sum(plane.shape[1] for layer in self.layers for plane in layer.planes)

    @property
    def facts(self) -> str:
        """The shape of a page and the type of its elements; other pages share nothing with it."""
        return f"{self._shape} of {self._dtype}"

    @property
    def layout(self) -> PageLayout:
        """The layout of a page: ``[layers, keys and values, tokens, heads, dim]``.

        Raises ``UnsupportedPool`` for an element type that the store does not know.
        """
        layer_count, kv_factor, *head = self._shape
        heads, dim = head if len(head) == 2 else (1, head[0])  # noqa: PLR2004
        content = PagedContent(layer_count, heads, dim, self._dtype, kv_factor)
        try:
            return PageLayout.paged(self.page_tokens, content)
        except ValueError as error:
            raise UnsupportedPool(f"the KV pool's {error}: set --kv-cache-dtype") from error

    def page_numbers(self, slots: torch.Tensor) -> list[int]:
        """Returns the page of each run of ``page_tokens`` slots, which are whole pages in order.

        Raises ``ValueError`` for slots that are not.
        """
        runs = slots.view(-1, self.page_tokens)
        first = runs[:, 0]
        whole = torch.arange(self.page_tokens, dtype=runs.dtype, device=runs.device)
        if not torch.equal(runs, first[:, None] + whole) or (first % self.page_tokens).any():
            raise ValueError(
                f"slots that begin with {first.tolist()} are no whole pages of "
                f"{self.page_tokens} tokens"
            )
        return (first // self.page_tokens).tolist()


def _pages(tensor: torch.Tensor, page_tokens: int) -> torch.Tensor:
    return tensor.view(torch.uint8).view(tensor.shape[0] // page_tokens, -1)
