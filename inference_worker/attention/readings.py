"""Which pages a step's queries read, and how they attend to them once these are copied out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from inference_worker.attention.attention import Terms
from inference_worker.attention.dense import attend_dense, mask_of
from inference_worker.attention.extent_rows import ExtentRows, upload
from inference_worker.engine.step import StepPart
from inference_worker.pages.pool import PagePool

# Queries of a prefill that attend at once, to all keys that the last of them sees.
PIECE: Final = 128
# Decodes attend together where none has to be padded by more than this share, or these pages.
PADDING: Final = 0.25
PADDED_PAGES: Final = 4
# Keys copied out at once for decodes: what is read again at once is still near the processor.
GROUP_BYTES: Final = 2 << 20


class Reading(Protocol):
    """Queries of a step that attend together, the same in each layer of one window."""

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends with the rows of ``[heads, tokens, dim]``; fills those of ``answer``."""
        ...


class Piece(NamedTuple):
    """Neighbouring queries of a step, and the keys that they see; without a mask it is causal."""

    queries: slice
    keys: slice
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillReading:
    """Several tokens of one sequence: its pages are copied out once for all pieces of them."""

    pool: PagePool
    pages: ExtentRows
    pieces: tuple[Piece, ...]

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends as :meth:`Reading.attend` says."""
        keys, values = self.pool.gather(layer, self.pages)
        for piece in self.pieces:
            attended = attend_piece(
                query[:, piece.queries], keys[piece.keys], values[piece.keys], piece.mask, terms
            )
            answer[piece.queries] = attended.transpose(0, 1)


def attend_piece(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    terms: Terms,
) -> torch.Tensor:
    """Attends with ``[heads, queries, dim]`` of one sequence to ``[keys, kv_heads, dim]``."""
    # A kv head's group of query heads shares its keys without a copy: batch is the kv head.
    grouped = query.unflatten(0, (keys.shape[1], -1))
    keys, values = (
        x.transpose(0, 1).unsqueeze(1).expand(-1, grouped.shape[1], -1, -1) for x in (keys, values)
    )
    sinks = None if terms.sinks is None else terms.sinks.view(*grouped.shape[:2], 1, 1)
    return attend_dense(grouped, keys, values, mask, terms, sinks).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class DecodeReading:
    """One query each of several sequences, whose pages are padded to the same number."""

    pool: PagePool
    queries: torch.Tensor
    pages: ExtentRows
    # Rows of padding and of what no query sees: a slot may hold anything there.
    unseen: torch.Tensor
    mask: torch.Tensor

    def attend(self, layer: int, query: torch.Tensor, answer: torch.Tensor, terms: Terms) -> None:
        """Attends as :meth:`Reading.attend` says."""
        count = self.queries.shape[0]
        keys, values = (
            x.index_fill_(0, self.unseen, 0.0).unflatten(0, (count, -1)).transpose(1, 2)
            for x in self.pool.gather(layer, self.pages)
        )
        # The heads that share a kv head are rows, so that its keys are read once for all.
        grouped = query.index_select(1, self.queries).transpose(0, 1)
        grouped = grouped.unflatten(1, (keys.shape[1], -1))
        sinks = None if terms.sinks is None else terms.sinks.view(*grouped.shape[1:3], 1)
        attended = attend_dense(grouped, keys, values, self.mask, terms, sinks)
        answer.index_copy_(0, self.queries, attended.flatten(1, 2))


def prefill_reading(pool: PagePool, part: StepPart, begin: int, window: int | None) -> Reading:
    """Cuts a part's queries so that those of a piece share few keys that they do not need.

    The part's tokens begin at row ``begin`` of the step.
    """
    page_tokens = pool.layout.page_tokens
    first_page = lowest_seen(part.start, window) // page_tokens
    pages = slice(first_page, pool.layout.pages_for(part.end))
    # Of the keys that torch's own causal attention leaves out, nothing is read.
    size = part.count if part.start == 0 and window is None else PIECE
    pieces = []
    for first in range(part.start, part.end, size):
        last = min(first + size, part.end)
        lowest = lowest_seen(first, window)
        piece = Piece(
            slice(begin + first - part.start, begin + last - part.start),
            slice(lowest - first_page * page_tokens, last - first_page * page_tokens),
            piece_mask(pool, first, last, lowest, window),
        )
        pieces.append(piece)
    rows = pool.page_rows(part.table.extents[pages], part.table.slots[pages])
    return PrefillReading(pool, rows, tuple(pieces))


def piece_mask(
    pool: PagePool, first: int, last: int, lowest: int, window: int | None
) -> torch.Tensor | None:
    """Says what queries ``[first, last)`` see of keys ``[lowest, last)``; None: it is causal."""
    if first == lowest and (window is None or last - first <= window):
        return None
    # All see the keys before the first of them, but for a window.
    begin = first if window is None else lowest
    queries = torch.arange(first, last).unsqueeze(1)
    keys = torch.arange(begin, last).unsqueeze(0)
    mask = torch.zeros((last - first, last - lowest), dtype=pool.dtype)
    mask[:, begin - lowest :] = mask_of(_seen(queries, keys, window), pool.dtype)
    return upload(mask, pool.device)


def decode_readings(
    pool: PagePool, parts: Sequence[StepPart], begins: Sequence[int], window: int | None
) -> Iterator[Reading]:
    """Groups parts of one token each, that are at the rows ``begins`` of the step."""
    page_tokens = pool.layout.page_tokens
    firsts = [lowest_seen(part.start, window) // page_tokens for part in parts]
    counts = [
        pool.layout.pages_for(part.end) - first for part, first in zip(parts, firsts, strict=True)
    ]
    page_bytes = pool.layout.page_tokens * pool.layout.token_bytes
    for group in _groups(counts, max(1, GROUP_BYTES // page_bytes)):
        tables = [parts[i].table for i in group]
        # Padding is the last page again.
        columns = torch.arange(counts[group[0]])
        own = torch.tensor([[firsts[i], counts[i], len(parts[i].table)] for i in group])
        begin = own[:, 2].cumsum(0) - own[:, 2] + own[:, 0]
        taken = (begin[:, None] + torch.minimum(columns, own[:, 1:2] - 1)).flatten()
        extents = torch.cat([table.extents for table in tables])[taken]
        slots = torch.cat([table.slots for table in tables])[taken]
        keys = own[:, :1] * page_tokens + torch.arange(columns.shape[0] * page_tokens)
        seen = _seen(torch.tensor([[parts[i].start] for i in group]), keys, window)
        yield DecodeReading(
            pool,
            upload(torch.tensor([begins[i] for i in group]), pool.device),
            pool.page_rows(extents, slots),
            upload((~seen).flatten().nonzero().flatten(), pool.device),
            upload(mask_of(seen[:, None, None], pool.dtype), pool.device),
        )


def lowest_seen(first: int, window: int | None) -> int:
    """Says which is the first position that a query at ``first`` sees."""
    return 0 if window is None else max(0, first - window + 1)


def _seen(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def _groups(counts: Sequence[int], most: int) -> Iterable[list[int]]:
    """Puts what has about as many pages together, ``most`` pages at once with the padding."""
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
