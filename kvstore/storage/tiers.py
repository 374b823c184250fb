"""All extents' memory, whichever tier it is in."""

from collections.abc import Iterable
from contextlib import suppress

from kvstore.storage.arenas import Arenas
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

    def copy(self, source: int, target: int) -> bool:
        """Write the bytes of a slot into another of the same size; return whether both are there.

        Nobody else may write either meanwhile, nor be given the target. Raises ``CudaFailed``.
        """
        content = self.read(source)
        return content is not None and any(each.write(target, content) for each in self.arenas)

    def poison(self, slots: Iterable[int]) -> None:
        """Write ``POISON`` into slots that nobody uses any more. A refusal is logged."""
        slots = list(slots)
        for each in self.arenas:
            each.poison(slots)

    def close(self) -> None:
        """Give all memory up; workers that mapped it keep theirs alive."""
        for each in self.arenas:
            each.close()

    def _describe(self, extent_id: int) -> ExtentDescription:
        for each in self.arenas[1:]:
            with suppress(KeyError):
                [description] = each.describe([extent_id])
                return description
        [description] = self.nearest.describe([extent_id])
        return description
