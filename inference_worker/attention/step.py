"""One forward pass over parts of several sequences."""

from dataclasses import dataclass

import torch

from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.extents import upload
from inference_worker.pages.pool import PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """Tokens ``[start, start + count)`` of one sequence, to compute in this step.

    Positions below ``start`` are read from the table's pages and never written. The part's own
    positions are written, so their pages must belong to this engine and must not be published.
    """

    table: BlockTable
    start: int
    count: int
    wants_logits: bool = True

    @property
    def end(self) -> int:
        """The position after the last token computed."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Step:
    """A ragged batch: the tokens of all parts follow each other without padding.

    Raises ``ValueError`` for no part, a part without a token, too few pages for a part, or pages of
    another size than the pool's.
    """

    pool: PagePool
    parts: tuple[StepPart, ...]

    def __post_init__(self) -> None:
        """Refuses a step that cannot be computed."""
        if not self.parts:
            raise ValueError("a step has at least one part")
        for part in self.parts:
            if part.table.page_tokens != self.pool.layout.page_tokens:
                raise ValueError(
                    f"pages of {part.table.page_tokens} tokens in a pool of another size"
                )
            if part.start < 0 or part.count < 1 or part.end > part.table.token_capacity:
                raise ValueError(
                    f"tokens [{part.start}, {part.end}) are outside a table "
                    f"of {part.table.token_capacity} tokens"
                )

    @property
    def token_count(self) -> int:
        """All tokens of this step."""
        return sum(part.count for part in self.parts)

    def position_ids(self) -> torch.Tensor:
        """Each token's position in its own sequence: int64 ``[1, tokens]``."""
        ranges = [torch.arange(part.start, part.end) for part in self.parts]
        return upload(torch.cat(ranges), self.pool.device).unsqueeze(0)

    def logit_rows(self) -> torch.Tensor:
        """The last row of each part that wants logits: int64 ``[rows]``, in the parts' order."""
        rows, end = [], 0
        for part in self.parts:
            end += part.count
            if part.wants_logits:
                rows.append(end - 1)
        return upload(torch.tensor(rows, dtype=torch.int64), self.pool.device)
