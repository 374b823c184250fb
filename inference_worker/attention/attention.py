"""The attention function that keeps a transformers model's keys and values in pages.

A model calls it once a layer, with the new tokens' rotated queries, keys and values.
It writes K and V into the pages that the step names, and attends to each sequence's pages.
The model itself needs no cache, no mask and no edit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface

ATTENTION_NAME: Final = "kvstore_paged"
ATTENTION_KEYWORD: Final = "kvstore_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parameters of a layer's attention.

    Scores are multiplied by ``scale``, then bent by ``softcap * tanh(score / softcap)``. A query
    sees itself and the ``window - 1`` tokens before it. ``sinks`` ``[heads]`` are one more score of
    each head, without a value.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class StepAttention(Protocol):
    """Writes one step's keys and values into pages, and attends to them."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends causally over pages, for one layer.

        ``query`` is ``[heads, tokens, head_dim]``, ``key`` and ``value`` the same with the kv
        heads; the answer is ``[tokens, heads, head_dim]``, contiguous. Writes only the positions of
        the step's parts.
        """
        ...


# A few models drop keywords that they do not know, so layers find the step here too.
_current: ContextVar[StepAttention | None] = ContextVar("kvstore_attention", default=None)


def register_attention() -> None:
    """Registers ``ATTENTION_NAME`` with transformers; may be repeated.

    The name is left out of the mask registry on purpose: then no layer builds a mask.
    """
    AttentionInterface.register(ATTENTION_NAME, paged_attention)


@contextmanager
def running(attention: StepAttention) -> Iterator[StepAttention]:
    """Makes a step's attention known to this thread's layers, even if a model drops the keyword."""
    token = _current.set(attention)
    try:
        yield attention
    finally:
        _current.reset(token)


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
    """Attends causally over pages, for one layer, as transformers calls it.

    ``query`` is ``[1, heads, tokens, head_dim]``, ``key`` and ``value`` the same with the kv
    heads; the answer is ``[1, tokens, heads, head_dim]``.
    Raises ``RuntimeError`` outside a step, or when the model built a mask of its own.
    """
    attention: StepAttention | None = keywords.get(ATTENTION_KEYWORD) or _current.get()
    if attention is None:
        raise RuntimeError(f"{ATTENTION_NAME} was called outside a step")
    if attention_mask is not None:
        raise RuntimeError(f"{ATTENTION_NAME} masks by position, and was given a mask")
    terms = Terms(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return attention.attend(layer, query[0], key[0], value[0], terms).unsqueeze(0), None
