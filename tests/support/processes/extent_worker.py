"""A store's process with extents that a carrier keeps, for tests with WorkerProcess."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from kvstore.core.values.slots import INDEX_BITS
from kvstore.holder.carrier import CarriedDescriptor, DescriptorCarrier
from kvstore.service.random_ids import random_ids
from kvstore.storage.arenas import Arenas
from kvstore.storage.extent import ExtentShape, MemorySource
from kvstore.storage.held_memory import HeldMemory, data_name, table_name
from kvstore.storage.host.host_memory import HostMemory
from processes.carrier_rig import first_carrier

SLOT, SLOTS = 4096, 4
EXTENT = SLOTS * SLOT
BUDGET = 4 * EXTENT
# The extents that a churning process has at most.
MOST_CHURNED = 3


class HeldExtents:
    """Extents of this process, of four slots each, which a carrier keeps."""

    def __init__(self, carrier: DescriptorCarrier, source: MemorySource | None = None) -> None:
        self.carrier = carrier
        self.arenas = Arenas(
            budget_bytes=BUDGET,
            extent_bytes=EXTENT,
            source=source or HostMemory(held=HeldMemory(carrier), threads=1),
            extent_ids=random_ids(),
        )
        self._tables: dict[int, memoryview] = {}

    def settle(self) -> None:
        """Does nothing: no command leaves anything behind."""

    def make(self, arena_id: int) -> ExtentShape:
        """Makes an extent."""
        extent = self.arenas.allocate(arena_id, SLOT)
        self._tables[extent.shape.extent_id] = extent.generation_table.view
        return extent.shape

    def write(self, extent_id: int, index: int, content: bytes, generation: int) -> None:
        """Writes the first bytes of a page, and then the generation of its slot."""
        page = self.arenas.place(extent_id << INDEX_BITS | index)
        assert isinstance(page, memoryview)
        page[: len(content)] = content
        self._tables[extent_id][index] = generation

    def contents(self, extent_id: int) -> list[tuple[bytes, int]]:
        """Returns the first four bytes of each page, and the generation of its slot."""
        pages = [self.arenas.read(extent_id << INDEX_BITS | each) for each in range(SLOTS)]
        table = self._tables[extent_id]
        return [(bytes(page or b"")[:4], table[index]) for index, page in enumerate(pages)]

    def restore(
        self, shapes: Iterable[ExtentShape], found: Mapping[str, CarriedDescriptor]
    ) -> None:
        """Puts extents of a former process back."""
        for each in shapes:
            data, table = found[data_name(each.extent_id)], found[table_name(each.extent_id)]
            extent = self.arenas.restore(each, data.descriptor, table.descriptor)
            self._tables[each.extent_id] = extent.generation_table.view

    def churn(self, rows: Path) -> None:
        """Makes extents and destroys older ones, until the process is killed.

        The row of an extent is a file: it comes once the extent is made and written, and leaves
        before the extent is destroyed.
        """
        shapes: deque[ExtentShape] = deque()
        while True:
            shape = self.make(1)
            shapes.append(shape)
            self.write(shape.extent_id, 0, shape.extent_id.to_bytes(4, "little"), 1)
            new = rows.parent / "new"
            new.write_text(json.dumps(shape))
            new.rename(rows / str(shape.extent_id))
            if len(shapes) == MOST_CHURNED:
                oldest = shapes.popleft().extent_id
                (rows / str(oldest)).unlink()
                self.destroy(oldest)

    def destroy(self, extent_id: int) -> None:
        """Destroys an extent."""
        self._tables.pop(extent_id)
        self.arenas.destroy(extent_id)


@contextmanager
def extent_worker(_: Connection, kind: str, path: Path) -> Iterator[HeldExtents]:
    """Makes the worker in its process, the first one of a store with a carrier."""
    yield HeldExtents(first_carrier(kind, path))
