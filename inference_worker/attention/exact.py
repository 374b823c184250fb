"""Attention of each sequence in whole pieces, whose sizes depend on where a piece is alone."""

from typing import Final, NamedTuple

import torch

from inference_worker.attention.attention import Terms
from inference_worker.attention.extent_rows import ExtentRows
from inference_worker.attention.readings import attend_piece, lowest_seen, piece_mask
from inference_worker.engine.step import Step, StepPart

# Queries that attend at once, from a multiple of this in their sequence.
PIECE_TOKENS: Final = 16


class _Piece(NamedTuple):
    """Tokens ``part`` of a sequence, at ``rows`` of the step, in the piece from ``first`` on."""

    part: StepPart
    rows: slice
    first: int


class _Keys(NamedTuple):
    """What a piece reads in a layer of some window, and who sees what of it."""

    pages: ExtentRows
    tokens: slice
    padded_count: int
    mask: torch.Tensor | None


class ExactAttention:
    """Attends so that an answer depends on the query and what it sees, to the bit.

    Each piece has its full number of queries, and of keys up to its end: what is not computed, or
    not there yet, is zeros that nobody sees. So every tensor has the same shape and strides
    whatever else is in the step. Rows behind the step's tokens are padding and answered with
    zeros. One engine thread uses it, for one step.
    """

    def __init__(self, step: Step) -> None:
        """Attends for the parts of ``step``."""
        self._step = step
        self._writes = step.pool.token_rows((p.table, p.start, p.end) for p in step.parts)
        self._pieces: list[_Piece] = []
        begin = 0
        for part in step.parts:
            for first in range(part.start // PIECE_TOKENS * PIECE_TOKENS, part.end, PIECE_TOKENS):
                start, end = max(part.start, first), min(part.end, first + PIECE_TOKENS)
                rows = slice(begin + start - part.start, begin + end - part.start)
                self._pieces.append(_Piece(part, rows, first))
            begin += part.count
        self._keys: dict[int | None, list[_Keys]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends as :meth:`~inference_worker.attention.attention.StepAttention.attend` says."""
        pool, computed = self._step.pool, slice(self._step.token_count)
        pool.write(layer, self._writes, *(x.transpose(0, 1)[computed] for x in (key, value)))
        heads, tokens, head_dim = query.shape
        answer = query.new_zeros((tokens, heads, head_dim))
        for piece, seen in zip(self._pieces, self._seen_in(terms.window), strict=True):
            offset = max(piece.part.start - piece.first, 0)
            within = slice(offset, offset + piece.rows.stop - piece.rows.start)
            queries = query.new_zeros((heads, PIECE_TOKENS, head_dim))
            queries[:, within] = query[:, piece.rows]
            found = (each[seen.tokens] for each in pool.gather(layer, seen.pages))
            keys, values = (_padded(each, seen.padded_count) for each in found)
            attended = attend_piece(queries, keys, values, seen.mask, terms)
            answer[piece.rows] = attended[:, within].transpose(0, 1)
        return answer

    def _seen_in(self, window: int | None) -> list[_Keys]:
        """Looks up what the pieces read in layers of this window, once a step."""
        if window not in self._keys:
            self._keys[window] = [self._keys_of(piece, window) for piece in self._pieces]
        return self._keys[window]

    def _keys_of(self, piece: _Piece, window: int | None) -> _Keys:
        pool, table = self._step.pool, piece.part.table
        end = piece.first + PIECE_TOKENS
        lowest, highest = lowest_seen(piece.first, window), min(end, piece.part.end)
        first_page = lowest // table.page_tokens
        pages = slice(first_page, pool.layout.pages_for(highest))
        skipped = lowest - first_page * table.page_tokens
        return _Keys(
            pool.page_rows(table.extents[pages], table.slots[pages]),
            slice(skipped, skipped + highest - lowest),
            end - lowest,
            piece_mask(pool, piece.first, end, lowest, window),
        )


def _padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Copies ``[tokens, kv_heads, dim]`` and put zeros behind."""
    padded = tokens.new_zeros((count, *tokens.shape[1:]))
    padded[: tokens.shape[0]] = tokens
    return padded
