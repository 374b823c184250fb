"""Attention that copies a layer's pages out before it attends: for a CPU, and to fall back to."""

from collections.abc import Iterator
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference_worker.attention import Terms
from inference_worker.step import Step, StepPart

# A window smaller than this is not worth a piece of queries of its own.
MIN_PIECE: Final = 128


class GatheredAttention:
    """Gathers each sequence's keys and values for the layer at hand; nothing of it stays.

    Knows every device, page size and head size. One engine thread uses it, for one step.
    """

    def __init__(self, step: Step) -> None:
        """Attend for the parts of ``step``."""
        self._step = step

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attend as :meth:`~inference_worker.attention.StepAttention.attend` says."""
        step = self._step
        answer = torch.empty_like(query.transpose(0, 1), memory_format=torch.contiguous_format)
        begin = 0
        for part in step.parts:
            here = slice(begin, begin + part.count)
            begin += part.count
            keys, values = (x[:, here].transpose(0, 1) for x in (key, value))
            step.pool.write(layer, part.table, part.start, keys, values)
            for first, last in _pieces(part, terms.window):
                rows = slice(here.start + first - part.start, here.start + last - part.start)
                lowest = 0 if terms.window is None else max(0, first - terms.window + 1)
                keys, values = _read(step, layer, part, lowest, last)
                span = _Span(first, last, lowest, terms.window)
                attended = _attend(query[:, rows], keys, values, span, terms)
                answer[rows] = attended.transpose(0, 1)
        return answer


class _Span:
    """Queries ``[first, last)`` that see keys ``[lowest, last)``, causally and within a window."""

    def __init__(self, first: int, last: int, lowest: int, window: int | None) -> None:
        self.is_square = first == lowest and (window is None or last - first <= window)
        # One query sees all keys given; so does nothing else.
        self.is_open = last - first == 1
        self._range = (first, last, lowest, window)

    def mask(self, device: torch.device) -> torch.Tensor:
        """Say which query (row) sees which key (column)."""
        first, last, lowest, window = self._range
        queries = torch.arange(first, last, device=device).unsqueeze(1)
        keys = torch.arange(lowest, last, device=device).unsqueeze(0)
        seen = keys <= queries
        return seen if window is None else seen & (keys > queries - window)


def _pieces(part: StepPart, window: int | None) -> Iterator[tuple[int, int]]:
    """Cut a part's queries so that those of a sliding layer share few keys they do not need."""
    size = part.count if window is None else max(window, MIN_PIECE)
    for first in range(part.start, part.end, size):
        yield first, min(first + size, part.end)


def _read(
    step: Step, layer: int, part: StepPart, lowest: int, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather positions ``[lowest, last)``: two ``[kv_heads, tokens, head_dim]``."""
    size = part.table.page_tokens
    first_page, last_page = lowest // size, -(-last // size)
    within = slice(lowest - first_page * size, last - first_page * size)
    keys, values = step.pool.gather(layer, part.table, first_page, last_page)
    return keys[within].transpose(0, 1), values[within].transpose(0, 1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: _Span,
    terms: Terms,
) -> torch.Tensor:
    """Attend with ``[heads, queries, dim]`` to ``[kv_heads, keys, dim]``, heads in groups."""
    kv_heads, count = keys.shape[:2]
    # A kv head's group of query heads shares its keys without a copy: batch is the kv head.
    grouped = query.unflatten(0, (kv_heads, -1))
    shape = (kv_heads, grouped.shape[1], count, keys.shape[-1])
    shared_keys, shared_values = (x.unsqueeze(1).expand(shape) for x in (keys, values))
    if terms.softcap is None and terms.sinks is None:
        mask = None if span.is_square or span.is_open else span.mask(query.device)
        attended = scaled_dot_product_attention(
            grouped,
            shared_keys,
            shared_values,
            attn_mask=mask,
            is_causal=span.is_square and not span.is_open,
            scale=terms.scale,
        )
        return attended.flatten(0, 1)
    scores = (grouped @ shared_keys.transpose(-1, -2)).float() * terms.scale
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    scores = scores.masked_fill(~span.mask(query.device), -torch.inf)
    if terms.sinks is not None:
        column = terms.sinks.float().view(kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :count].to(values.dtype)
    return (weights @ shared_values).flatten(0, 1)
