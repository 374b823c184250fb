"""The current generations of an extent's slots, and their comparison with earlier ones."""

import contextlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from threading import Lock
from typing import Self

from kvstore.v1 import types_pb2
from kvstore_client.memory.mapped_extent import FindExtent, UntrustedExtent
from kvstore_client.memory.shared_memory import UntrustedMemory, check_memory, map_memory
from kvstore_client.values.page_runs import (
    GENERATION_BYTES,
    DatedRun,
    Generations,
    PageRef,
    Pages,
    in_a_row,
)


def map_generations(extent: types_pb2.Extent, descriptors: Sequence[int]) -> memoryview | None:
    """Returns an extent's generations, of format "Q", read-only; None if it has no table.

    ``descriptors`` came with the extent and stay the caller's. Raises
    :class:`UntrustedExtent`, or ``OSError`` if the table cannot be mapped.
    """
    if not extent.HasField("generation_table"):
        return None
    table, needed = extent.generation_table, extent.slot_count * GENERATION_BYTES
    if table.descriptor_index >= len(descriptors):
        raise UntrustedExtent(
            f"extent {extent.extent_id} came without its generation table's descriptor"
        )
    if table.size_bytes < needed:
        raise UntrustedExtent(
            f"extent {extent.extent_id} needs a table of {needed} bytes, not {table.size_bytes}"
        )
    descriptor = descriptors[table.descriptor_index]
    try:
        check_memory(descriptor, needed)
    except UntrustedMemory as error:
        raise UntrustedExtent(f"extent {extent.extent_id}'s generation table: {error}") from error
    return map_memory(descriptor, needed, writable=False).cast("Q")


class PageGenerations:
    """The generations that ``pages`` had when the store named them.

    Reads them at the first comparison. One thread at a time uses it.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._runs: list[_Run] | None = None

    @classmethod
    def of(cls, runs: Iterable[DatedRun]) -> Self:
        """Returns those of pages that another process named."""
        made = cls(Pages())
        made._runs = [
            _Run(extent_id, slots, array("Q", named).tobytes() if in_a_row(slots) else named)
            for extent_id, slots, named in runs
            if slots and named
        ]
        return made

    def recycled(self, find: FindExtent) -> list[PageRef]:
        """Returns the pages whose slots were freed since, and may have other pages now.

        Bytes of the other pages, read before this call, were those pages'. Never returns a
        page of an extent without a table, or of an answer without generations. Always
        returns the pages of an extent that is no longer mapped, and all pages of a run that
        does not fit its extent or its generations. Slots in a row cost a copy and a comparison
        of 8 bytes each.
        """
        if self._runs is None:
            self._runs = [_Run(*each) for each in self._pages.generations() if each[2]]
        _order_loads()
        return [page for run in self._runs for page in run.recycled(find)]


class _Run:
    """Slots of an extent, and the generations that they had.

    A generation grows by one at a time. If a copy read one in parts, it would have to miss 255
    changes to hide one.
    """

    __slots__ = ("_expected", "_extent_id", "_fits", "_select", "_slots")

    def __init__(self, extent_id: int, slots: Sequence[int], expected: Generations) -> None:
        self._extent_id, self._slots, self._expected = extent_id, slots, expected
        size = GENERATION_BYTES if isinstance(expected, bytes) else 1
        self._fits = len(expected) == len(slots) * size
        self._select = _selector(slots)

    def recycled(self, find: FindExtent) -> list[PageRef]:
        extent = find(self._extent_id)
        now: Generations = ()
        if extent is not None:
            if extent.generations is None:
                return []
            with contextlib.suppress(IndexError):
                now = self._select(extent.generations)
        if now == self._expected and self._fits:
            return []
        if not self._fits or len(now) != len(self._expected):
            return list(map(PageRef, repeat(self._extent_id), self._slots))
        pairs = zip(self._slots, array("Q", now), array("Q", self._expected), strict=True)
        return [PageRef(self._extent_id, slot) for slot, is_now, was in pairs if is_now != was]


def _selector(slots: Sequence[int]) -> Callable[[memoryview], Generations]:
    """Returns a function that picks the generations of ``slots`` from an extent's.

    It raises IndexError, or returns fewer, if slots are beyond the extent.
    """
    if in_a_row(slots):
        row = slice(slots[0], slots[-1] + 1)
        return lambda generations: generations[row].tobytes()
    # The first slot twice, because itemgetter returns a tuple only for several items.
    select = itemgetter(*slots, slots[0])
    return lambda generations: select(generations)[:-1]


_mutex = Lock()


def _order_loads() -> None:
    """Orders the loads before this call before the loads after it.

    x86-64 keeps loads in order by itself. On AArch64, releasing and retaking a mutex does:
    earlier loads stay before the store that releases it, and later loads follow the load
    that takes it.
    """
    for _ in range(2):
        _mutex.acquire()
        _mutex.release()
