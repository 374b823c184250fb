"""The ids of a node's pages, which a journal names pages by.

Pages that were published together have consecutive ids, so a node keeps runs of them.
"""

from bisect import bisect_right
from typing import NamedTuple


class IdRun(NamedTuple):
    """Consecutive ids: those of the pages from ``start`` on within a node begin at ``base``."""

    start: int
    base: int


class PageIds:
    """The ids of all pages of a node, as runs.

    Without a journal, and if nobody follows changes, no node has any.

    ``starts`` and ``bases`` have an entry for each run; the first starts at zero.
    """

    __slots__ = ("bases", "starts")

    def __init__(self, base: int) -> None:
        """``base`` is the first page's id."""
        # Most nodes have one run, and a list of one number takes a fifth of an array's time.
        self.starts = [0]
        self.bases = [base]

    @property
    def runs(self) -> list[IdRun]:
        """The runs, in the order of the pages."""
        return list(map(IdRun, self.starts, self.bases))

    def at(self, page: int) -> int:
        """Returns the id of a page, which counts from the node's first."""
        starts = self.starts
        run = -1 if page >= starts[-1] else bisect_right(starts, page) - 1
        return self.bases[run] + page - starts[run]

    def between(self, first: int, last: int) -> tuple[range, ...]:
        """Returns the ids of the pages from ``first`` until ``last``, at least one."""
        starts, bases = self.starts, self.bases
        if len(starts) == 1:
            return (range(bases[0] + first, bases[0] + last),)
        ends = (*starts[1:], last)
        return tuple(
            range(base + max(first - start, 0), base + min(end, last) - start)
            for start, end, base in zip(starts, ends, bases, strict=True)
            if first < end and start < last
        )

    def append(self, start: int, base: int) -> None:
        """Adds the ids of the pages from ``start`` on, which begin at ``base``."""
        if self.bases[-1] + start - self.starts[-1] != base:
            self.starts.append(start)
            self.bases.append(base)

    def cut(self, keep: int) -> None:
        """Forgets the ids of the pages after the first ``keep``, at least one."""
        while self.starts[-1] >= keep:
            self.starts.pop()
            self.bases.pop()

    def divide(self, pages: int) -> "PageIds":
        """Removes the ids of the first ``pages`` pages and returns them."""
        upper, lower = PageIds(self.bases[0]), PageIds(self.at(pages))
        for start, base in self.runs:
            if start < pages:
                upper.append(start, base)
            else:
                lower.append(start - pages, base)
        self.starts, self.bases = lower.starts, lower.bases
        return upper

    def join(self, upper: "PageIds", pages: int) -> None:
        """Puts the ids of the ``pages`` pages just above before its own."""
        for start, base in self.runs:
            upper.append(start + pages, base)
        self.starts, self.bases = upper.starts, upper.bases
