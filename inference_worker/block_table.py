"""Which pages hold a sequence's keys and values."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch


class PageRef(NamedTuple):
    """One page's place: the key of its extent and its slot there."""

    extent: int
    slot: int


class PageRun(NamedTuple):
    """Neighbouring pages ``[first, last)`` of a block table that lie in the same extent."""

    extent: int
    first: int
    last: int


class BlockTable:
    """A sequence's pages in order: page ``i`` holds tokens ``[i * page_tokens, ...)``.

    It only names pages; who owns them is its user's business.
    Not thread-safe: one engine thread uses it.
    """

    def __init__(self, page_tokens: int, pages: Iterable[PageRef] = ()) -> None:
        """Start with ``pages``, of ``page_tokens`` tokens each."""
        self._page_tokens = page_tokens
        self._pages = list(pages)
        self._slots: torch.Tensor | None = None
        self._runs: list[PageRun] | None = None

    def __len__(self) -> int:
        """Count the pages."""
        return len(self._pages)

    def __getitem__(self, index: int) -> PageRef:
        """Name the page at ``index``; raises ``IndexError`` outside the table."""
        return self._pages[index]

    def __iter__(self) -> Iterator[PageRef]:
        """Go through the pages in order."""
        return iter(self._pages)

    @property
    def page_tokens(self) -> int:
        """Tokens per page."""
        return self._page_tokens

    @property
    def token_capacity(self) -> int:
        """Tokens that fit into the pages the table has now."""
        return len(self._pages) * self._page_tokens

    def append(self, *pages: PageRef) -> None:
        """Add pages at the end."""
        self._pages.extend(pages)
        self._forget()

    def replace(self, index: int, page: PageRef) -> PageRef:
        """Put ``page`` at ``index``, as when the store named another as the one; return the old.

        Raises ``IndexError`` outside the table.
        """
        old = self._pages[index]
        self._pages[index] = page
        self._forget()
        return old

    def slots(self, device: torch.device) -> torch.Tensor:
        """Give all pages' slot numbers as an int64 tensor; valid until the table changes."""
        if self._slots is None or self._slots.device != device:
            numbers = [page.slot for page in self._pages]
            self._slots = torch.tensor(numbers, dtype=torch.int64, device=device)
        return self._slots

    def runs(self, first: int, last: int) -> Iterator[PageRun]:
        """Cut pages ``[first, last)`` into runs of the same extent, in order."""
        if self._runs is None:
            self._runs = list(self._find_runs())
        for run in self._runs:
            begin, end = max(run.first, first), min(run.last, last)
            if begin < end:
                yield PageRun(run.extent, begin, end)

    def _find_runs(self) -> Iterator[PageRun]:
        begin = 0
        for index, page in enumerate(self._pages):
            if page.extent != self._pages[begin].extent:
                yield PageRun(self._pages[begin].extent, begin, index)
                begin = index
        if self._pages:
            yield PageRun(self._pages[begin].extent, begin, len(self._pages))

    def _forget(self) -> None:
        self._slots = None
        self._runs = None
