"""Attention to keys and values that lie side by side, by torch's own operations."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference_worker.attention.attention import Terms


def attend_dense(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    terms: Terms,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attends with ``[a, b, rows, dim]`` to ``[a, b, keys, dim]``; gives what the query is like.

    ``mask``, added to the scores, is broadcast to ``[a, b, rows, keys]`` and of the query's dtype;
    None is a causal mask over as many keys as rows. ``sinks``, of ``terms``, are broadcast to
    ``[a, b, rows, 1]``.
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
    """Turns who sees whom into what is added to scores."""
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)
