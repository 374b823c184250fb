"""Copies between pages and rows of layers: one indexed copy for each layer and extent."""

from collections.abc import Iterator, Sequence

import torch

from kvstore_client import Namespace, Pages, Source
from kvstore_transformers.token_layer import TokenLayer


def copy_out(namespace: Namespace, pages: Pages, layers: Sequence[TokenLayer]) -> None:
    """Copies whole pages, a sequence's first ones, into the first rows of each layer.

    The layers must have room for them, and the caller must hold the pages. Raises ``KeyError`` if
    a page is no longer mapped.
    """
    for stored, slots, first, last in _runs(namespace, pages, 0):
        for number, layer in enumerate(layers):
            for kv in (0, 1):
                rows = layer.rows[kv, first:last].view(slots.shape[0], -1)
                places = slots + number * 2 + kv
                if stored.device == rows.device:
                    torch.index_select(stored, 0, places, out=rows)
                else:
                    rows.copy_(stored.index_select(0, places))


def copy_source(
    namespace: Namespace, source: Source, layers: Sequence[TokenLayer], begin: int
) -> None:
    """Copies the valid tokens of a source page into each layer's rows from ``begin`` on.

    Raises as :func:`copy_out`.
    """
    page = namespace.page_tensor(source.page)
    end = begin + source.token_count
    for number, layer in enumerate(layers):
        layer.rows[:, begin:end].copy_(page[number, :, : source.token_count])


def copy_in(
    namespace: Namespace, pages: Pages, layers: Sequence[TokenLayer], first_page: int
) -> None:
    """Fills reserved pages, a sequence's from ``first_page`` on, with the rows of each layer.

    Returns after the pages are written. Raises as :func:`copy_out`.
    """
    for stored, slots, first, last in _runs(namespace, pages, first_page):
        for number, layer in enumerate(layers):
            for kv in (0, 1):
                rows = layer.rows[kv, first:last].view(slots.shape[0], -1)
                stored.index_copy_(0, slots + number * 2 + kv, rows.to(stored.device))


def _runs(
    namespace: Namespace, pages: Pages, first_page: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
    """Yields the operands of the copies, for each run of pages in one extent.

    These are the extent as rows, the first row of each page, and the first and end token of the
    run in the sequence. The rows are ``[slots * layers * 2, tokens * kv_heads * head_dim]``.
    """
    page_tokens = namespace.layout.page_tokens
    first = first_page * page_tokens
    for extent_id, slots in pages.runs:
        extent = namespace.extent_tensor(extent_id)
        rows_per_page = extent.shape[1] * extent.shape[2]
        stored = extent.view(extent.shape[0] * rows_per_page, -1)
        places = torch.tensor(slots, dtype=torch.int64, device=extent.device) * rows_per_page
        last = first + len(slots) * page_tokens
        yield stored, places, first, last
        first = last
