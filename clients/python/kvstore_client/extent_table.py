"""The extents that one session has mapped."""

from collections.abc import Callable, Iterable, Iterator
from threading import Condition

from kvstore.v1 import types_pb2
from kvstore_client.extents import MappedExtent


class ExtentTable:
    """Extents by id, and which of them the store counts on.

    ``number`` is drawn anew from ``numbers`` at each change of what is mapped.
    Any thread may use it; ``monitor`` is notified of every change and never
    held while memory is mapped. ``unmapped`` is as in :class:`MappedExtent`.
    """

    def __init__(
        self, monitor: Condition, numbers: Iterator[int], unmapped: Callable[[int], None]
    ) -> None:
        self._monitor = monitor
        self._numbers = numbers
        self._unmapped = unmapped
        self._mapped: dict[int, MappedExtent] = {}
        self._acknowledged: set[int] = set()
        self._number = next(numbers)

    @property
    def number(self) -> int:
        """A number that grows when extents are mapped or given up."""
        return self._number

    def add(self, extent: types_pb2.Extent, descriptor: int) -> None:
        """Map an extent, unless it is mapped already; raises as :class:`MappedExtent` does."""
        if extent.extent_id in self._mapped:
            return
        mapped = MappedExtent(extent, descriptor, self._unmapped)
        with self._monitor:
            self._mapped[extent.extent_id] = mapped
            self._changed()

    def acknowledge(self, extent_ids: Iterable[int]) -> None:
        """Note that the store counts on these."""
        with self._monitor:
            self._acknowledged.update(extent_ids)
            self._monitor.notify_all()

    def counted_on(self, extent_ids: Iterable[int]) -> bool:
        """Return whether the store counts on all of these. The monitor may be held."""
        return self._acknowledged.issuperset(extent_ids)

    def give_up(self, extent_ids: Iterable[int] | None = None) -> None:
        """Drop these extents, or all; each is unmapped once its last view is gone."""
        with self._monitor:
            ids = list(self._mapped) if extent_ids is None else extent_ids
            # Kept until the monitor is let go: the last reference unmaps.
            given_up = [self._mapped.pop(each) for each in ids if each in self._mapped]
            self._acknowledged.difference_update(ids)
            if given_up:
                self._changed()
        del given_up

    def get(self, extent_id: int) -> MappedExtent | None:
        """Return an extent, or None where it is not mapped."""
        return self._mapped.get(extent_id)

    def of_arena(self, arena_id: int) -> dict[int, MappedExtent]:
        """Return an arena's extents by id, those mapped first coming first."""
        with self._monitor:
            return {key: each for key, each in self._mapped.items() if each.arena_id == arena_id}

    def _changed(self) -> None:
        self._number = next(self._numbers)
        self._monitor.notify_all()
