"""One layer's keys and values of one sequence, in the order of pages."""

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin


class TokenLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed
    """The keys and values of every token, also in a layer with a sliding window.

    ``rows`` is ``[2, capacity, kv_heads, head_dim]``, keys and then values. Its first ``count``
    tokens are valid. This is the order of a page, so pages are copied by runs of rows.

    Attention gets views of it, ``[1, kv_heads, tokens, head_dim]``: of all tokens, or with a
    ``window`` of the tokens that transformers' own sliding layer returns, so that its masks fit.
    The memory grows by an eighth, so a new token does not copy all earlier ones.
    """

    is_croppable = True

    def __init__(self, rows: torch.Tensor, window: int | None) -> None:
        """Begins without a token, in memory ``[2, capacity, kv_heads, head_dim]``."""
        super().__init__()
        self.rows = rows
        self.count = 0
        self.window = window
        self.is_sliding = window is not None
        self.dtype, self.device = rows.dtype, rows.device
        self.is_initialized = True
        self.resize(0)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing, because the layer has its memory already."""

    def resize(self, count: int) -> None:
        """Sets the number of valid tokens in ``rows``, after they were written."""
        self.count = count
        self.keys, self.values = self._tokens(0)

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *_arguments: Any,  # noqa: ANN401 - of other kinds of layer
        **_keywords: Any,  # noqa: ANN401
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values ``[1, kv_heads, n, head_dim]``; returns those for attention.

        Raises ``ValueError`` for another shape, dtype or device.
        """
        new = key_states.shape[2]
        _, _, heads, size = self.rows.shape
        wanted = ((1, heads, new, size), self.dtype, self.device)
        for states in (key_states, value_states):
            found = (tuple(states.shape), states.dtype, states.device)
            if found != wanted:
                raise ValueError(f"keys and values of one sequence are {wanted}, not {found}")
        begin, end = self.count, self.count + new
        self._make_room(end)
        self.rows[0, begin:end] = key_states[0].transpose(0, 1)
        self.rows[1, begin:end] = value_states[0].transpose(0, 1)
        self.resize(end)
        hidden = 0 if self.window is None else max(begin - self.window + 1, 0)
        return self._tokens(hidden)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many tokens attention gets with ``query_length`` more, and the first one."""
        hidden = 0 if self.window is None else max(self.count - self.window + 1, 0)
        return self.count + query_length - hidden, hidden

    def get_seq_length(self) -> int:
        """Returns the number of tokens."""
        return self.count

    def get_max_length(self) -> int:
        """Returns -1: the length is not bounded."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last ``-tokens_to_remove`` tokens.

        Raises ``ValueError`` for a positive number, and for more tokens than there are.
        """
        if not -self.count <= tokens_to_remove <= 0:
            raise ValueError(f"{tokens_to_remove} is not from {-self.count} to 0")
        self.resize(self.count + tokens_to_remove)

    def reset(self) -> None:
        """Removes all tokens."""
        self.resize(0)

    def reorder_cache(self, _beam_idx: torch.Tensor) -> None:
        """Raises ``ValueError``: there is one sequence."""
        raise ValueError("a prompt from the store is one sequence: it has no beams")

    def batch_repeat_interleave(self, _repeats: int) -> None:
        """Raises ``ValueError``: there is one sequence."""
        raise ValueError("a prompt from the store is one sequence: it cannot be repeated")

    def batch_select_indices(self, _indices: torch.Tensor) -> None:
        """Raises ``ValueError``: there is one sequence."""
        raise ValueError("a prompt from the store is one sequence: it is no batch to select from")

    def _make_room(self, count: int) -> None:
        if count <= self.rows.shape[1]:
            return
        grown = empty_rows(self.rows, count + count // 8)
        grown[:, : self.count] = self.rows[:, : self.count]
        self.rows = grown

    def _tokens(self, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.rows[:, first : self.count].transpose(1, 2).unsqueeze(1)
        return seen[0], seen[1]


def empty_rows(like: torch.Tensor, capacity: int) -> torch.Tensor:
    """Returns memory for ``capacity`` tokens, otherwise as ``like``: ``[2, any, heads, head_dim]``.

    It is no inference tensor, because those cannot be written outside of inference mode.
    """
    with torch.inference_mode(mode=False):
        shape = (like.shape[0], capacity, *like.shape[2:])
        return torch.empty(shape, dtype=like.dtype, device=like.device)
