"""The attention function that keeps a transformers model's keys and values in pages.

A model calls it once a layer, with the new tokens' rotated queries, keys and values.
It writes K and V into the pages that the step names, and attends to each sequence's pages.
The model itself needs no cache, no mask and no edit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from inference_worker.step import Step, StepPart

ATTENTION_NAME: Final = "kvstore_paged"
STEP_KEYWORD: Final = "kvstore_step"
# A window smaller than this is not worth a piece of queries of its own.
MIN_PIECE: Final = 128

# A few models drop keywords they do not know, so the step is reachable this way too.
_current_step: ContextVar[Step | None] = ContextVar("kvstore_step", default=None)


def register_attention() -> None:
    """Make ``ATTENTION_NAME`` known to transformers; may be repeated.

    The name is left out of the mask registry on purpose: then no layer gets a mask built.
    """
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


@contextmanager
def running(step: Step) -> Iterator[None]:
    """Let the attention of this thread find ``step`` even where a model drops the keyword."""
    token = _current_step.set(step)
    try:
        yield
    finally:
        _current_step.reset(token)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **keywords: Any,  # noqa: ANN401 - whatever else a model passes
) -> tuple[torch.Tensor, None]:
    """Attend causally over pages, for one layer.

    ``query`` is ``[1, heads, tokens, head_dim]``, ``key`` and ``value`` the same with the kv
    heads; the answer is ``[1, tokens, heads, head_dim]``.
    Writes only positions from each part's start on.
    Raises ``RuntimeError`` outside a step, or when the model built a mask of its own.
    """
    step = keywords.get(STEP_KEYWORD) or _current_step.get()
    if step is None:
        msg = f"{ATTENTION_NAME} was called outside a step"
        raise RuntimeError(msg)
    if attention_mask is not None:
        msg = f"{ATTENTION_NAME} masks by position, and was given a mask"
        raise RuntimeError(msg)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    answer = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    begin = 0
    for part in step.parts:
        here = slice(begin, begin + part.count)
        begin += part.count
        step.pool.write(
            layer,
            part.table,
            part.start,
            key[0, :, here].transpose(0, 1),
            value[0, :, here].transpose(0, 1),
        )
        for first, last in _pieces(part, sliding_window):
            rows = slice(here.start + first - part.start, here.start + last - part.start)
            lowest = 0 if sliding_window is None else max(0, first - sliding_window + 1)
            keys, values = _read(step, layer, part, lowest, last)
            span = _Span(first, last, lowest, sliding_window)
            attended = _attend(query[0, :, rows], keys, values, span, scale, softcap, s_aux)
            answer[0, rows] = attended.transpose(0, 1)
    return answer, None


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
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attend with ``[heads, queries, dim]`` to ``[kv_heads, keys, dim]``, heads in groups."""
    kv_heads, count = keys.shape[:2]
    # A kv head's group of query heads shares its keys without a copy: batch is the kv head.
    grouped = query.unflatten(0, (kv_heads, -1))
    shape = (kv_heads, grouped.shape[1], count, keys.shape[-1])
    shared_keys, shared_values = (x.unsqueeze(1).expand(shape) for x in (keys, values))
    if softcap is None and sinks is None:
        mask = None if span.is_square or span.is_open else span.mask(query.device)
        attended = scaled_dot_product_attention(
            grouped,
            shared_keys,
            shared_values,
            attn_mask=mask,
            is_causal=span.is_square and not span.is_open,
            scale=scale,
        )
        return attended.flatten(0, 1)
    scores = (grouped @ shared_keys.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~span.mask(query.device), -torch.inf)
    if sinks is not None:
        column = sinks.float().view(kv_heads, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :count].to(values.dtype)
    return (weights @ shared_values).flatten(0, 1)
