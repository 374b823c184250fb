"""All memory for a model's pages: write tokens, gather pages, copy a page, view rows."""

from collections.abc import Iterable
from typing import Final

import torch

from inference_worker.errors import LayoutMismatchError
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.distances import PageDistances
from inference_worker.pages.extents import ExtentRows, PoolExtents, find_rows
from inference_worker.pages.layout import PageLayout, PageRef

KV_FACTOR: Final = 2


class PagePool:
    """Extents by key, each a tensor ``[slots, layers, 2, page_tokens, kv_heads, head_dim]``.

    The tensors are views of memory that others own. The store's extents have keys from 0, the
    engine's private arena has a negative one. All extents are on one device. Not thread-safe: one
    engine thread uses it.
    """

    def __init__(self, layout: PageLayout, device: torch.device | str = "cpu") -> None:
        """Starts without any extent; raises ``ValueError`` if K and V are not both in a page."""
        if layout.kv_factor != KV_FACTOR:
            raise ValueError(
                f"this pool keeps keys and values, a kv factor of 2, not {layout.kv_factor}"
            )
        self._layout = layout
        # A tensor's device has a number, which ``device`` may lack.
        self._device = torch.empty(0, device=device).device
        self._dtype: torch.dtype = getattr(torch, layout.dtype)
        self._extents = PoolExtents(layout, self._device)
        self._distances: PageDistances | None = None

    @property
    def layout(self) -> PageLayout:
        """The layout that all extents share."""
        return self._layout

    @property
    def device(self) -> torch.device:
        """The device that all extents are on."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all keys and values."""
        return self._dtype

    @property
    def extents(self) -> frozenset[int]:
        """The keys of the extents in the pool now."""
        return self._extents.keys

    @property
    def distances(self) -> PageDistances:
        """The places of block tables' pages, on the device; created at the first use."""
        if self._distances is None:
            self._distances = PageDistances(self._layout, self._extents, self._device)
        return self._distances

    def add_extent(self, key: int, pages: torch.Tensor) -> None:
        """Adds an extent; its memory must stay mapped until it is removed.

        Raises ``LayoutMismatchError`` if the tensor is not contiguous pages of this layout on this
        device, and ``ValueError`` if the key is in use.
        """
        self._extents.add(key, pages)

    def remove_extent(self, key: int) -> None:
        """Drops the view of an extent, so that its memory can be unmapped.

        Block tables with a page of it must not be used any more. Raises ``UnknownExtentError``.
        """
        self._extents.remove(key)

    def use_extent(self, key: int, pages: torch.Tensor) -> None:
        """Adds an extent, or counts one more use of it; the last :meth:`leave_extent` removes it.

        Raises the errors of :meth:`add_extent`, and ``LayoutMismatchError`` if the key is in use
        for other memory, such as that of a store before it restarted.
        """
        self._extents.use(key, pages)

    def leave_extent(self, key: int) -> None:
        """Ends one use of an extent; raises ``KeyError`` if it is not in use."""
        self._extents.leave(key)

    def page(self, ref: PageRef) -> torch.Tensor:
        """Views one page, in the layout's shape; raises ``UnknownExtentError``."""
        return self._extents.pages(ref.extent)[ref.slot]

    def rows(self, extent: int) -> torch.Tensor:
        """Views an extent as ``[slots * layers * kv_factor, page_tokens * kv_heads * head_dim]``.

        The K or V (``kv`` 0 or 1) of a slot's layer is row
        ``(slot * layers + layer) * kv_factor + kv``.
        Raises ``UnknownExtentError``.
        """
        return self._extents.pages(extent).view(
            -1, self._layout.page_tokens * self._layout.token_values
        )

    def page_rows(self, extents: torch.Tensor, slots: torch.Tensor) -> ExtentRows:
        """Finds pages to gather: int64 ``[pages]`` each, as a block table names them."""
        return find_rows(extents, slots * self._layout.rows_per_page, self._device)

    def token_rows(self, spans: Iterable[tuple[BlockTable, int, int]]) -> ExtentRows:
        """Finds positions ``[start, end)`` of tables to write, one span after the other.

        Raises ``IndexError`` beyond a table.
        """
        size = self._layout.page_tokens
        extents, rows = [], []
        for table, start, end in spans:
            if not 0 <= start <= end <= table.token_capacity:
                raise IndexError(f"[{start}, {end}) is not in {len(table)} pages")
            positions = torch.arange(start, end)
            pages = positions // size
            extents.append(table.extents[pages])
            first = table.slots[pages] * (self._layout.rows_per_page * size)
            rows.append(first + positions % size)
        return find_rows(torch.cat(extents), torch.cat(rows), self._device)

    def write(self, layer: int, tokens: ExtentRows, key: torch.Tensor, value: torch.Tensor) -> None:
        """Writes keys and values ``[tokens, kv_heads, head_dim]`` to places from ``token_rows``.

        Touches no other position. Raises ``LayoutMismatchError`` if the shapes do not fit, and
        ``UnknownExtentError``.
        """
        layout = self._layout
        wanted = (tokens.count, layout.kv_head_count, layout.head_dim)
        if key.shape != wanted or value.shape != wanted:
            raise LayoutMismatchError(
                f"keys {tuple(key.shape)} and values {tuple(value.shape)}, not {wanted}"
            )
        for kv, source in enumerate((key, value)):
            rows = source.reshape(-1, layout.token_values)
            offset = (layer * layout.kv_factor + kv) * layout.page_tokens
            for extent, places, ours in tokens.shares:
                into = self._extents.pages(extent).view(-1, layout.token_values)
                into.index_copy_(0, places + offset, rows[ours])

    def gather(self, layer: int, pages: ExtentRows) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies K and V of pages from ``page_rows``: two ``[tokens, kv_heads, head_dim]``.

        Tokens that were not written yet have whatever their slot holds. Raises
        ``UnknownExtentError``.
        """
        first = layer * self._layout.kv_factor
        return self._gather(first, pages), self._gather(first + 1, pages)

    def _gather(self, offset: int, pages: ExtentRows) -> torch.Tensor:
        layout = self._layout
        shape = (pages.count, layout.page_tokens * layout.token_values)
        taken = torch.empty(shape, dtype=self._dtype, device=self._device)
        for extent, rows, places in pages.shares:
            if isinstance(places, slice):
                torch.index_select(self.rows(extent), 0, rows + offset, out=taken[places])
            else:
                taken.index_copy_(0, places, self.rows(extent).index_select(0, rows + offset))
        return taken.view(-1, layout.kv_head_count, layout.head_dim)

    def copy_page(self, source: PageRef, target: PageRef) -> None:
        """Copies a whole page to another slot, in any extent; raises ``UnknownExtentError``."""
        self.page(target).copy_(self.page(source))
