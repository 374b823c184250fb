"""Where a page is."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import NamedTuple

from kvstore.v1 import types_pb2


class PageRef(NamedTuple):
    """One page's place: slot number ``slot`` of an extent.

    It names that page only while the match or reservation that gave it is held.
    """

    extent_id: int
    slot: int


def pages_of(runs: Iterable[types_pb2.PageRun]) -> list[PageRef]:
    """Return the pages of ``runs``, in prefix order."""
    # What PageRef(...) does, without a frame of Python's for each of thousands of pages.
    ref: Callable[[tuple[int, int]], PageRef] = partial(tuple.__new__, PageRef)
    pages: list[PageRef] = []
    for run in runs:
        pages.extend(map(ref, zip(repeat(run.extent_id), run.slot_indexes, strict=False)))
    return pages
