"""The engine's own pages, for sequences that get none from the store."""

from collections.abc import Iterable
from typing import Final

import torch

from inference_worker.errors import ArenaExhaustedError
from inference_worker.pages.layout import PageLayout, PageRef

PRIVATE_EXTENT: Final = -1


class PrivateArena:
    """Pages of the store's layout in this process's own memory, enough for one sequence.

    An engine therefore never waits for the store while it holds pages. The lowest free slot is
    always used first, so runs are deterministic. Not thread-safe: one engine thread uses it.
    """

    def __init__(
        self, layout: PageLayout, max_tokens: int, device: torch.device | str = "cpu"
    ) -> None:
        """Allocates pages for at least ``max_tokens`` tokens; raises ``ValueError`` below 1."""
        if max_tokens < 1:
            raise ValueError(f"a private arena holds at least 1 token, not {max_tokens}")
        count = layout.pages_for(max_tokens)
        dtype: torch.dtype = getattr(torch, layout.dtype)
        self._tensor = torch.zeros((count, *layout.page_shape), dtype=dtype, device=device)
        self._unused = list(range(count - 1, -1, -1))
        self._used: set[int] = set()

    @property
    def tensor(self) -> torch.Tensor:
        """The pages, ``[slots, *page_shape]``, for ``PagePool.add_extent(PRIVATE_EXTENT, ...)``."""
        return self._tensor

    @property
    def slot_count(self) -> int:
        """The number of slots, used or not."""
        return self._tensor.shape[0]

    @property
    def used_count(self) -> int:
        """Slots allocated and not released."""
        return len(self._used)

    def allocate(self, count: int) -> list[PageRef]:
        """Allocates ``count`` slots, all or none; raises ``ArenaExhaustedError``."""
        if count > len(self._unused):
            raise ArenaExhaustedError(count, len(self._unused))
        slots = [self._unused.pop() for _ in range(count)]
        self._used.update(slots)
        return [PageRef(PRIVATE_EXTENT, slot) for slot in slots]

    def release(self, pages: Iterable[PageRef]) -> None:
        """Releases slots, all or none; raises ``ValueError`` for a slot that is not allocated."""
        pages = list(pages)
        slots = {page.slot for page in pages if page.extent == PRIVATE_EXTENT}
        if len(slots) != len(pages) or not slots <= self._used:
            raise ValueError(f"not all of {pages} are allocated slots of the private arena")
        self._used -= slots
        self._unused.extend(slots)
        self._unused.sort(reverse=True)
