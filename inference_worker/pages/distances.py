"""The places of block tables' pages, in an append-only array on the device for kernels."""

import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.extents import PoolExtents
from inference_worker.pages.layout import PageLayout, PageRef

# Distances are counted in this many bytes, the most that one GPU instruction moves.
UNIT_BYTES: Final = 16
# The smallest row has room for this many pages.
FEWEST_PAGES: Final = 64

Numbers = npt.NDArray[np.int64]


class _Row:
    """A table's places in the array: ``size`` from ``offset`` on, of which ``count`` are filled.

    ``version`` is the table's version when the row was filled, ``replaced`` the number of the
    table's replacements in the row. ``checked`` is how many extents had been removed when the row's
    ``mappings`` were last compared.
    """

    __slots__ = ("checked", "count", "mappings", "offset", "replaced", "size", "version")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.forget()

    def forget(self) -> None:
        """Marks all places as not filled."""
        self.count = self.replaced = 0
        self.version = self.checked = -1
        self.mappings: dict[int, int | None] = {}


class Update(NamedTuple):
    """The changes to write before the kernels of a step can read its tables.

    ``offsets`` ``[tables]`` say where each table's row begins. ``places`` and ``distances``, both
    ``[changes]``, are the new entries of the array. All are int64 on the CPU.
    """

    offsets: Numbers
    places: Numbers
    distances: Numbers
    changed: list[BlockTable]


class PageDistances:
    """An int64 array on the device with a row for each block table: how far each page is.

    A distance is counted in units of 16 bytes from :attr:`base`, which stays as long as the pool. A
    step writes only pages that were appended or replaced. A row grows by doubling. If an extent of
    a row was removed, or mapped again, the row is written again, so no kernel reads a distance into
    unmapped memory. A row is reused once its table is no longer referenced; the order of the
    device's stream keeps that behind the kernels that still read it. One engine thread uses this,
    on the device's current stream.
    """

    def __init__(self, layout: PageLayout, extents: PoolExtents, device: torch.device) -> None:
        """Takes the extents of a pool; the array grows with the tables."""
        dtype: torch.dtype = getattr(torch, layout.dtype)
        self._extents = extents
        self._page_units = layout.page_bytes // UNIT_BYTES
        # The array is written both in inference mode and outside it.
        with torch.inference_mode(mode=False):
            self._base = torch.zeros(UNIT_BYTES // dtype.itemsize, dtype=dtype, device=device)
            self._array = torch.zeros(FEWEST_PAGES, dtype=torch.int64, device=device)
        self._base_address = self._base.data_ptr()
        self._end = 0
        self._rows: weakref.WeakKeyDictionary[BlockTable, _Row] = weakref.WeakKeyDictionary()
        self._unused: dict[int, list[_Row]] = defaultdict(list)
        # Filled by any thread that drops a table's last reference.
        self._dropped: list[_Row] = []

    @property
    def base(self) -> torch.Tensor:
        """The point that distances count from: 16 bytes of the pool's dtype, never read."""
        return self._base

    @property
    def array(self) -> torch.Tensor:
        """All rows: int64 ``[places]`` on the device, valid until the next :meth:`write`."""
        return self._array

    def update(self, tables: Sequence[BlockTable]) -> Update:
        """Returns the changes of ``tables``; counts nothing as written before :meth:`write`.

        Raises ``UnknownExtentError`` for a page of an extent that is not mapped.
        """
        offsets: list[int] = []
        places: list[int] = []
        distances: list[int] = []
        changed: list[BlockTable] = []
        removed, row_of = self._extents.removed_count, self._rows.get
        for table in tables:
            row = row_of(table)
            if row is None or row.version != table.version or row.checked != removed:
                row = self._row_for(table, row)
                new = self._new_in(table, row)
                places += [row.offset + index for index in new]
                distances += self._distances_of([table[index] for index in new])
                changed.append(table)
            offsets.append(row.offset)
        return Update(
            np.array(offsets, np.int64),
            np.array(places, np.int64),
            np.array(distances, np.int64),
            changed,
        )

    def write(self, update: Update, places: torch.Tensor, distances: torch.Tensor) -> None:
        """Writes an update; ``places`` and ``distances`` are the update's, on the device.

        The tables must not have changed since the update was made.
        """
        if self._end > self._array.shape[0]:
            with torch.inference_mode(mode=False):
                grown = self._array.new_zeros(1 << (self._end - 1).bit_length())
                grown[: self._array.shape[0]] = self._array
                self._array = grown
        if not update.changed:
            return
        self._array.index_copy_(0, places, distances)
        for table in update.changed:
            row = self._rows[table]
            fresh = {page.extent for page in table.pages_from(row.count)}
            fresh |= {table[index].extent for index in table.replaced[row.replaced :]}
            row.mappings.update((key, self._extents.mapping(key)) for key in fresh)
            row.count, row.replaced = len(table), len(table.replaced)
            row.version, row.checked = table.version, self._extents.removed_count

    def _row_for(self, table: BlockTable, row: _Row | None) -> _Row:
        """Returns the table's row, with room for its pages and without outdated entries."""
        if row is None:
            row = self._new_row(len(table))
            self._rows[table] = row
            weakref.finalize(table, self._dropped.append, row).atexit = False
        elif row.size < len(table):
            larger = self._new_row(len(table))
            # This row object, with its new places, is given back at the table's end.
            left = _Row(row.offset, row.size)
            self._unused[left.size].append(left)
            row.offset, row.size = larger.offset, larger.size
            row.forget()
        elif any(self._extents.mapping(key) != kept for key, kept in row.mappings.items()):
            row.forget()
        return row

    def _new_row(self, page_count: int) -> _Row:
        while self._dropped:
            dropped = self._dropped.pop()
            self._unused[dropped.size].append(dropped)
        size = max(FEWEST_PAGES, 1 << (page_count - 1).bit_length())
        if self._unused[size]:
            found = self._unused[size].pop()
            return _Row(found.offset, size)
        row = _Row(self._end, size)
        self._end += size
        return row

    def _new_in(self, table: BlockTable, row: _Row) -> list[int]:
        """Returns the indexes of the table's pages that the row lacks."""
        replaced = {index for index in table.replaced[row.replaced :] if index < row.count}
        return [*replaced, *range(row.count, len(table))]

    def _distances_of(self, pages: list[PageRef]) -> list[int]:
        """Returns how far each page is from the base; raises ``UnknownExtentError``."""
        begins = {
            key: (self._extents.pages(key).data_ptr() - self._base_address) // UNIT_BYTES
            for key in {page.extent for page in pages}
        }
        return [begins[page.extent] + page.slot * self._page_units for page in pages]
