"""The store's generation tables and pages, as a client's process has them mapped."""

from collections.abc import Mapping
from typing import TypeAlias

from kvstore_client import Namespace, PageRef
from kvstore_client.memory.mapped_extent import MappedExtent

# A copy of each extent's generations.
Snapshot: TypeAlias = Mapping[int, memoryview]


class Tables:
    """Reads memory alone, so it works while no server runs. Any thread may read.

    It keeps the extents mapped, also those that the client gave up.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._extents: dict[int, MappedExtent] = {}

    def follow(self) -> None:
        """Adds the extents that the client mapped since the last call."""
        for extent_id in self._namespace.extents:
            if extent_id not in self._extents:
                self._extents[extent_id] = self._namespace._extent(extent_id)  # noqa: SLF001

    def drop_unmapped(self) -> None:
        """Forgets the extents that the client gave up, if its namespace is open."""
        mapped = self._namespace.extents.keys()
        for extent_id in list(self._extents):
            if mapped and extent_id not in mapped:
                del self._extents[extent_id]

    def snapshot(self) -> Snapshot:
        """Returns a copy of all generations."""
        copies = {}
        for extent_id, extent in list(self._extents.items()):
            assert extent.generations is not None
            copies[extent_id] = memoryview(bytes(extent.generations)).cast("Q")
        return copies

    def generation(self, place: PageRef) -> int | None:
        """Returns a slot's generation now; None if its extent is not mapped."""
        extent = self._extents.get(place.extent_id)
        if extent is None or extent.generations is None:
            return None
        generation: int = extent.generations[place.slot]
        return generation

    def content(self, place: PageRef) -> memoryview:
        """Returns a slot's bytes; raises ``KeyError`` if its extent is not mapped."""
        return self._extents[place.extent_id].slot(place.slot)


def generation_in(snapshot: Snapshot, place: PageRef) -> int | None:
    """Returns a slot's generation in a snapshot; None if it does not have the extent."""
    table = snapshot.get(place.extent_id)
    return None if table is None else table[place.slot]
