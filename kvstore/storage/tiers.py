"""All extents' memory, whichever tier it is in."""

from collections.abc import Iterable
from contextlib import suppress

from kvstore.storage.arenas import Arenas
from kvstore.storage.copies import Ending, Outcome, SlotBytes, begin_all, copy_all
from kvstore.storage.cuda.device_watch import DeviceWatch
from kvstore.storage.extent import ExtentDescription, SlotReader


class Tiers:
    """The owners of each tier's memory, the nearest first. Thread-safe.

    No two extents of the tiers have the same name. ``device`` knows whether the device with some of
    the memory has failed for good.
    """

    def __init__(self, *arenas: Arenas) -> None:
        self.arenas = arenas
        self.device = DeviceWatch(lambda: all(each.source.answers() for each in arenas))

    @property
    def nearest(self) -> Arenas:
        """Those of tier 1."""
        return self.arenas[0]

    def describe(self, extent_ids: Iterable[int]) -> list[ExtentDescription]:
        """Returns what other processes need to reach the given extents."""
        return [self._describe(each) for each in extent_ids]

    def read(self, slot: int) -> memoryview | None:
        """Returns the bytes of a slot, as ``Arenas.read`` does; None where there is no such extent.

        Raises ``CudaFailed``.
        """
        found = (each.read(slot) for each in self.arenas)
        return next((each for each in found if each is not None), None)

    def reader(self, extent_id: int) -> SlotReader | None:
        """Return what reads an extent's slots, as ``Arenas.reader`` does; None where it is gone."""
        for each in self.arenas:
            reader = each.reader(extent_id)
            if reader is not None:
                return reader
        return None

    def view(self, slot: int) -> memoryview | None:
        """Returns the bytes of a slot in place, to be written, where this process can reach them.

        None on a device, and where there is no such extent any more. Nobody else may
        use the slot meanwhile.
        """
        place = self._place(slot)
        return place if isinstance(place, memoryview) else None

    def begin_all(self, pairs: Iterable[tuple[int, int]]) -> Ending:
        """Begins to write the bytes of each pair's first slot into the second, of the same size.

        Returns what waits for that, and says of each pair why it was not done, or None.
        Until then nobody else may write either slot, nor be given the second. Where this
        raises, nothing is under way.
        """
        return begin_all((self._place(source), self._place(target)) for source, target in pairs)

    def write_all(self, pages: Iterable[tuple[int, memoryview]]) -> list[Outcome]:
        """Writes the bytes of whole slots, as ``Arenas.write_all`` does, in whichever tier."""
        return copy_all((content, self._place(slot)) for slot, content in pages)

    def poison(self, slots: Iterable[int]) -> None:
        """Writes ``POISON`` into slots that nobody uses any more. A refusal is logged."""
        slots = list(slots)
        for each in self.arenas:
            each.poison(slots)

    def close(self) -> None:
        """Gives all memory up; workers that mapped it keep theirs alive."""
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
