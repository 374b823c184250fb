"""The ids of a node's pages, which a journal names pages by.

Pages that were published together have consecutive ids, so a node keeps runs of them.
"""

from array import array
from bisect import bisect_right
from typing import NamedTuple


class IdRun(NamedTuple):
    """Consecutive ids: those of the pages from ``start`` on within a node begin at ``base``."""

    start: int
    base: int


class PageIds:
    """The ids of all pages of a node, as runs. Without a journal no node has any.

    ``starts`` and ``bases`` have an entry for each run; the first starts at zero.
    """

    __slots__ = ("bases", "starts")

    def __init__(self, *runs: IdRun) -> None:
        self.starts = array("I", [run.start for run in runs])
        self.bases = array("Q", [run.base for run in runs])

    @property
    def runs(self) -> list[IdRun]:
        """The runs, in the order of the pages."""
        return list(map(IdRun, self.starts, self.bases))

    def at(self, page: int) -> int:
        """Returns the id of a page, which counts from the node's first."""
        run = bisect_right(self.starts, page) - 1
        return self.bases[run] + page - self.starts[run]

    def append(self, start: int, base: int) -> None:
        """Adds the ids of the pages from ``start`` on, which begin at ``base``."""
        starts, bases = self.starts, self.bases
        if bases and bases[-1] + start - starts[-1] == base:
            return
        starts.append(start)
        bases.append(base)

    def cut(self, keep: int) -> None:
        """Forgets the ids of the pages after the first ``keep``."""
        while self.starts and self.starts[-1] >= keep:
            self.starts.pop()
            self.bases.pop()

    def divide(self, pages: int) -> "PageIds":
        """Removes the ids of the first ``pages`` pages and returns them."""
        upper, lower = PageIds(), PageIds(IdRun(0, self.at(pages)))
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
