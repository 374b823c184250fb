"""The memory of all extents, in all tiers."""

from collections.abc import Iterable
from contextlib import suppress

from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_watch import DeviceWatch
from kvstore.storage.extent import ExtentDescription, SlotReader
from kvstore.storage.slot_copies import Ending, Outcome, SlotBytes, begin_all, copy_all


class Tiers:
    """The owners of each tier's memory, the nearest first. Thread-safe.

    Extent ids are unique across tiers. ``device`` knows whether the device with some of the memory
    has failed for good.
    """

    def __init__(self, *arenas: Arenas) -> None:
        self.arenas = arenas
        self.device = DeviceWatch(lambda: all(each.source.answers() for each in arenas))

    @property
    def nearest(self) -> Arenas:
        """The arenas of tier 1."""
        return self.arenas[0]

    def describe(self, extent_ids: Iterable[int]) -> list[ExtentDescription]:
        """Returns the descriptions with which other processes map the given extents."""
        return [self._describe(each) for each in extent_ids]

    def read(self, slot: int) -> memoryview | None:
        """Returns a slot's bytes, as ``Arenas.read`` does; None if the extent no longer exists.

        Raises ``CudaFailed``.
        """
        found = (each.read(slot) for each in self.arenas)
        return next((each for each in found if each is not None), None)

    def reader(self, extent_id: int) -> SlotReader | None:
        """Returns a slot reader, as ``Arenas.reader`` does; None if the extent no longer exists."""
        for each in self.arenas:
            reader = each.reader(extent_id)
            if reader is not None:
                return reader
        return None

    def view(self, slot: int) -> memoryview | None:
        """Returns a slot's bytes in place, writable, if this process can reach them.

        Returns None for a device, or if the extent no longer exists. No other thread may use the
        slot meanwhile.
        """
        place = self._place(slot)
        return place if isinstance(place, memoryview) else None

    def begin_all(self, pairs: Iterable[tuple[int, int]]) -> Ending:
        """Begins to copy each pair's first slot into the second, of the same size.

        Returns a wait for the copies, which returns each one's error, or None. Until then no other
        thread may write either slot, or get the second one. No copy is under way when this raises.
        """
        return begin_all((self._place(source), self._place(target)) for source, target in pairs)

    def write_all(self, pages: Iterable[tuple[int, memoryview]]) -> list[Outcome]:
        """Writes whole slots, as ``Arenas.write_all`` does, in any tier."""
        return copy_all((content, self._place(slot)) for slot, content in pages)

    def poison(self, slots: Iterable[int]) -> None:
        """Writes ``POISON`` into unused slots. Logs a refusal."""
        slots = list(slots)
        for each in self.arenas:
            each.poison(slots)

    def close(self) -> None:
        """Frees all memory; workers that mapped it keep theirs."""
        for each in self.arenas:
            each.close()

    def _place(self, slot: int) -> SlotBytes | None:
        for each in self.arenas:
            place = each.place(slot)
            if place is not None:
                return place
        return None

    def _describe(self, extent_id: int) -> ExtentDescription:
        for each in self.arenas[1:]:
            with suppress(KeyError):
                [description] = each.describe([extent_id])
                return description
        [description] = self.nearest.describe([extent_id])
        return description
