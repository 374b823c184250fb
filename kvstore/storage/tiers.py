"""All extents' memory, whichever tier it is in."""

from collections.abc import Iterable
from contextlib import suppress

from kvstore.storage.arenas import Arenas
from kvstore.storage.copies import Outcome, SlotBytes, copy_all
from kvstore.storage.extent import ExtentDescription


class Tiers:
    """The owners of each tier's memory, the nearest first. Thread-safe.

    Extents are named alike in all, and none twice.
    """

    def __init__(self, *arenas: Arenas) -> None:
        self.arenas = arenas

    @property
    def nearest(self) -> Arenas:
        """Those of tier 1."""
        return self.arenas[0]

    def describe(self, extent_ids: Iterable[int]) -> list[ExtentDescription]:
        """Return what other processes need to reach the given extents."""
        return [self._describe(each) for each in extent_ids]

    def read(self, slot: int) -> memoryview | None:
        """Return the bytes of a slot, as ``Arenas.read`` does; None where there is no such extent.

        Raises ``CudaFailed``.
        """
        found = (each.read(slot) for each in self.arenas)
        return next((each for each in found if each is not None), None)

    def view(self, slot: int) -> memoryview | None:
        """Return the bytes of a slot in place, to be written, as ``Arenas.view`` does."""
        place = self._place(slot)
        return place if isinstance(place, memoryview) else None

    def copy_all(self, pairs: Iterable[tuple[int, int]]) -> list[Outcome]:
        """Write the bytes of each pair's first slot into the second, of the same size.

        Says of each pair why that was not done, or None. Nobody else may write either slot
        meanwhile, nor be given the second. No copy is under way when it returns or raises.
        """
        return copy_all((self._place(source), self._place(target)) for source, target in pairs)

    def write_all(self, pages: Iterable[tuple[int, memoryview]]) -> list[Outcome]:
        """Write the bytes of whole slots, as ``Arenas.write_all`` does, in whichever tier."""
        return copy_all((content, self._place(slot)) for slot, content in pages)

    def poison(self, slots: Iterable[int]) -> None:
        """Write ``POISON`` into slots that nobody uses any more. A refusal is logged."""
        slots = list(slots)
        for each in self.arenas:
            each.poison(slots)

    def close(self) -> None:
        """Give all memory up; workers that mapped it keep theirs alive."""
        for each in self.arenas:
            each.close()

    def _place(self, slot: int) -> SlotBytes | None:
        found = (each.place(slot) for each in self.arenas)
        return next((each for each in found if each is not None), None)

    def _describe(self, extent_id: int) -> ExtentDescription:
        for each in self.arenas[1:]:
            with suppress(KeyError):
                [description] = each.describe([extent_id])
                return description
        [description] = self.nearest.describe([extent_id])
        return description
