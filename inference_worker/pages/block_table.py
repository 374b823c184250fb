"""The pages that hold a sequence's keys and values."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from inference_worker.pages.layout import PageRef

# Others take it from here too.
__all__ = ["BlockTable", "PageRef"]


class BlockTable:
    """A sequence's pages in order: page ``i`` holds tokens ``[i * page_tokens, ...)``.

    The table only names pages; its user owns them. Not thread-safe: one engine thread uses it.
    """

    def __init__(self, page_tokens: int, pages: Iterable[PageRef] = ()) -> None:
        """Starts with ``pages``, of ``page_tokens`` tokens each."""
        self._page_tokens = page_tokens
        self._pages = list(pages)
        self._places: torch.Tensor | None = None
        self._replaced: list[int] = []
        # Grows with each change: results computed from the table are valid while it stays the same.
        self.version = 0

    def __len__(self) -> int:
        """Counts the pages."""
        return len(self._pages)

    def __getitem__(self, index: int) -> PageRef:
        """Returns the page at ``index``; raises ``IndexError`` outside the table."""
        return self._pages[index]

    def __iter__(self) -> Iterator[PageRef]:
        """Iterates over the pages in order."""
        return iter(self._pages)

    @property
    def page_tokens(self) -> int:
        """Tokens per page."""
        return self._page_tokens

    @property
    def token_capacity(self) -> int:
        """Tokens that fit into the pages the table has now."""
        return len(self._pages) * self._page_tokens

    def pages_from(self, index: int) -> Sequence[PageRef]:
        """Returns the pages from ``index`` on."""
        return self._pages[index:]

    def append(self, *pages: PageRef) -> None:
        """Adds pages at the end."""
        self._pages.extend(pages)
        self._places = None
        self.version += 1

    def replace(self, index: int, page: PageRef) -> PageRef:
        """Puts ``page`` at ``index``, if the store named another page. Returns the old page.

        Raises ``IndexError`` outside the table.
        """
        old = self._pages[index]
        self._pages[index] = page
        self._places = None
        self._replaced.append(index)
        self.version += 1
        return old

    @property
    def replaced(self) -> Sequence[int]:
        """The index of each replacement so far, the oldest first, so that a copy can follow them.

        Pages are appended or replaced, never removed.
        """
        return self._replaced

    @property
    def slots(self) -> torch.Tensor:
        """All pages' slot numbers: int64 ``[pages]`` on the CPU, valid until the table changes."""
        return self._numbers()[1]

    @property
    def extents(self) -> torch.Tensor:
        """All pages' extents: int64 ``[pages]`` on the CPU, valid until the table changes."""
        return self._numbers()[0]

    def _numbers(self) -> torch.Tensor:
        if self._places is None:
            numbers = torch.tensor(self._pages, dtype=torch.int64).view(-1, 2)
            self._places = numbers.t().contiguous()
        return self._places
