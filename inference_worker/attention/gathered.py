"""Attention that copies a layer's pages out first: for a CPU, and if no kernel fits.

A reading is a group of queries that attend together, planned once a step.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from inference_worker.attention.attention import Terms
from inference_worker.attention.dense import (
    attend_dense,
    attend_piece,
    lowest_seen,
    mask_of,
    piece_mask,
    seen_keys,
)
from inference_worker.attention.step import Step, StepPart
from inference_worker.pages.extents import ExtentRows, upload
from inference_worker.pages.pool import PagePool

# Queries of a prefill that attend at once, to all keys that the last of them sees.
PIECE: Final = 128
# Decodes attend together if none needs more padding than this share, or this many pages.
PADDING: Final = 0.25
PADDED_PAGES: Final = 4
# Bytes of keys copied out at once for decodes: small enough to stay in the processor's cache.
GROUP_BYTES: Final = 2 << 20


class Reading(Protocol):
    """Queries of a step that attend together, the same in each layer of one window."""

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends with the rows of ``[heads, tokens, dim]``; fills those of ``answer``."""
        ...


class AttentionPiece(NamedTuple):
    """Neighbouring queries of a step, and the keys that they see; without a mask it is causal."""

    queries: slice
    keys: slice
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillReading:
    """Several tokens of one sequence; its pages are copied out once for all pieces."""

    pool: PagePool
    pages: ExtentRows
    pieces: tuple[AttentionPiece, ...]

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends as :meth:`Reading.attend` says."""
        keys, values = self.pool.gather(layer, self.pages)
        for piece in self.pieces:
            attended = attend_piece(
                query[:, piece.queries], keys[piece.keys], values[piece.keys], piece.mask, terms
            )
            answer[piece.queries] = attended.transpose(0, 1)


@dataclass(frozen=True, slots=True)
class DecodeReading:
    """One query of each of several sequences; all are padded to the same number of pages."""

    pool: PagePool
    queries: torch.Tensor
    pages: ExtentRows
    # Rows of padding, and rows that no query sees: a slot may hold anything there.
    unseen: torch.Tensor
    mask: torch.Tensor

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends as :meth:`Reading.attend` says."""
        count = self.queries.shape[0]
        keys, values = (
            x.index_fill_(0, self.unseen, 0.0).unflatten(0, (count, -1)).transpose(1, 2)
            for x in self.pool.gather(layer, self.pages)
        )
        # The heads that share a kv head are rows, so that its keys are read once for all of them.
        grouped = query.index_select(1, self.queries).transpose(0, 1)
        grouped = grouped.unflatten(1, (keys.shape[1], -1))
        sinks = None if terms.sinks is None else terms.sinks.view(*grouped.shape[1:3], 1)
        attended = attend_dense(grouped, keys, values, self.mask, terms, sinks)
        answer.index_copy_(0, self.queries, attended.flatten(1, 2))


def prefill_reading(pool: PagePool, part: StepPart, begin: int, window: int | None) -> Reading:
    """Cuts a part's queries into pieces that read few keys in vain.

    The part's tokens begin at row ``begin`` of the step.
    """
    page_tokens = pool.layout.page_tokens
    first_page = lowest_seen(part.start, window) // page_tokens
    pages = slice(first_page, pool.layout.pages_for(part.end))
    # Torch's own causal attention does not read the keys that it masks.
    size = part.count if part.start == 0 and window is None else PIECE
    pieces = []
    for first in range(part.start, part.end, size):
        last = min(first + size, part.end)
        lowest = lowest_seen(first, window)
        piece = AttentionPiece(
            slice(begin + first - part.start, begin + last - part.start),
            slice(lowest - first_page * page_tokens, last - first_page * page_tokens),
            piece_mask(pool, first, last, lowest, window),
        )
        pieces.append(piece)
    rows = pool.page_rows(part.table.extents[pages], part.table.slots[pages])
    return PrefillReading(pool, rows, tuple(pieces))


def decode_readings(
    pool: PagePool, parts: Sequence[StepPart], begins: Sequence[int], window: int | None
) -> Iterator[Reading]:
    """Groups parts of one token each, which are at the rows ``begins`` of the step."""
    page_tokens = pool.layout.page_tokens
    firsts = [lowest_seen(part.start, window) // page_tokens for part in parts]
    counts = [
        pool.layout.pages_for(part.end) - first for part, first in zip(parts, firsts, strict=True)
    ]
    page_bytes = pool.layout.page_tokens * pool.layout.token_bytes
    for group in _groups(counts, max(1, GROUP_BYTES // page_bytes)):
        tables = [parts[i].table for i in group]
        # Padding repeats the last page.
        columns = torch.arange(counts[group[0]])
        own = torch.tensor([[firsts[i], counts[i], len(parts[i].table)] for i in group])
        begin = own[:, 2].cumsum(0) - own[:, 2] + own[:, 0]
        taken = (begin[:, None] + torch.minimum(columns, own[:, 1:2] - 1)).flatten()
        extents = torch.cat([table.extents for table in tables])[taken]
        slots = torch.cat([table.slots for table in tables])[taken]
        keys = own[:, :1] * page_tokens + torch.arange(columns.shape[0] * page_tokens)
        seen = seen_keys(torch.tensor([[parts[i].start] for i in group]), keys, window)
        yield DecodeReading(
            pool,
            upload(torch.tensor([begins[i] for i in group]), pool.device),
            pool.page_rows(extents, slots),
            upload((~seen).flatten().nonzero().flatten(), pool.device),
            upload(mask_of(seen[:, None, None], pool.dtype), pool.device),
        )


def _groups(counts: Sequence[int], most: int) -> Iterable[list[int]]:
    """Groups similar numbers of pages, at most ``most`` pages a group with the padding."""
    group: list[int] = []
    for i in sorted(range(len(counts)), key=counts.__getitem__, reverse=True):
        if group:
            widest = counts[group[0]]
            padding = widest - counts[i]
            if (len(group) + 1) * widest > most or padding > max(PADDED_PAGES, PADDING * widest):
                yield group
                group = []
        group.append(i)
    yield group


class GatheredAttention:
    """Gathers keys and values for one layer at a time, and keeps nothing of it.

    Sequences that compute one token attend together, the others one by one. What all layers share
    is computed once a step. Supports every device, page size and head size. One engine thread uses
    it, for one step.
    """

    def __init__(self, step: Step) -> None:
        """Attends for the parts of ``step``."""
        self._step = step
        self._writes = step.pool.token_rows(
            (part.table, part.start, part.end) for part in step.parts
        )
        self._readings: dict[int | None, list[Reading]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends as :meth:`~inference_worker.attention.attention.StepAttention.attend` says."""
        self._step.pool.write(layer, self._writes, key.transpose(0, 1), value.transpose(0, 1))
        answer = torch.empty_like(query.transpose(0, 1), memory_format=torch.contiguous_format)
        for reading in self._readings_of(terms.window):
            reading.attend(layer, query, answer, terms)
        return answer

    def _readings_of(self, window: int | None) -> list[Reading]:
        """Plans the readings of layers of this window, once a step."""
        if window not in self._readings:
            pool = self._step.pool
            found: list[Reading] = []
            decodes, begins = [], []
            begin = 0
            for part in self._step.parts:
                if part.count == 1:
                    decodes.append(part)
                    begins.append(begin)
                else:
                    found.append(prefill_reading(pool, part, begin, window))
                begin += part.count
            if decodes:
                found += decode_readings(pool, decodes, begins, window)
            self._readings[window] = found
        return self._readings[window]
