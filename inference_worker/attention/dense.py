"""Attention to keys and values that lie side by side, by torch's own operations."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference_worker.attention.attention import Terms
from inference_worker.pages.extents import upload
from inference_worker.pages.pool import PagePool


def attend_dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    terms: Terms,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with ``[a, b, rows, dim]`` to ``[a, b, keys, dim]``; returns the query's shape.

    ``mask``, added to the scores, is broadcast to ``[a, b, rows, keys]`` and of the query's dtype;
    None is a causal mask over as many keys as rows. ``sinks``, of ``terms``, are broadcast to ``[a,
    b, rows, 1]``.
    """
    if terms.softcap is None and sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, scale=terms.scale
        )
    if mask is None:
        mask = query.new_full((query.shape[2],) * 2, -torch.inf).triu(1)
    scores = (query @ keys.transpose(-1, -2)).float() * terms.scale
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:3], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values


def mask_of(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turns booleans (query sees key) into values to add to scores."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def attend_piece(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    terms: Terms,
) -> torch.Tensor:
    """Attends with ``[heads, queries, dim]`` of one sequence to ``[keys, kv_heads, dim]``."""
    # The query heads of a kv head share its keys without a copy: the batch is the kv head.
    grouped = query.unflatten(0, (keys.shape[1], -1))
    keys, values = (
        x.transpose(0, 1).unsqueeze(1).expand(-1, grouped.shape[1], -1, -1) for x in (keys, values)
    )
    sinks = None if terms.sinks is None else terms.sinks.view(*grouped.shape[:2], 1, 1)
    return attend_dense(grouped, keys, values, mask, terms, sinks).flatten(0, 1)


def piece_mask(
    pool: PagePool, first: int, last: int, lowest: int, window: int | None
) -> torch.Tensor | None:
    """Returns the mask of queries ``[first, last)`` for keys ``[lowest, last)``; None: causal."""
    if first == lowest and (window is None or last - first <= window):
        return None
    # Without a window, all queries see the keys before the first of them.
    begin = first if window is None else lowest
    queries = torch.arange(first, last).unsqueeze(1)
    keys = torch.arange(begin, last).unsqueeze(0)
    mask = torch.zeros((last - first, last - lowest), dtype=pool.dtype)
    mask[:, begin - lowest :] = mask_of(seen_keys(queries, keys, window), pool.dtype)
    return upload(mask, pool.device)


def lowest_seen(first: int, window: int | None) -> int:
    """Returns the first position that a query at ``first`` sees."""
    return 0 if window is None else max(0, first - window + 1)


def seen_keys(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Returns which positions ``keys`` each of the positions ``queries`` sees; they broadcast."""
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
