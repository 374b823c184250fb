"""The extents that one session has mapped."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition

from kvstore.v1 import types_pb2
from kvstore_client.errors import StoreError
from kvstore_client.extents import MappedExtent
from kvstore_client.mapping import map_extent


class ExtentTable:
    """Extents by id, which of them the store counts on, and which could not be mapped.

    ``number`` is drawn anew from ``numbers`` at each change of what is mapped.
    Any thread may use it; ``monitor`` is notified of every change and never
    held while memory is mapped. ``unmapped`` is as in :func:`map_extent`.
    """

    def __init__(
        self,
        monitor: Condition,
        numbers: Iterator[int],
        unmapped: Callable[[int], None],
        store_epoch: int,
    ) -> None:
        self._monitor = monitor
        self._numbers = numbers
        self._unmapped = unmapped
        self._store_epoch = store_epoch
        self._mapped: dict[int, MappedExtent] = {}
        self._acknowledged: set[int] = set()
        self._refused: dict[int, StoreError] = {}
        self._number = next(numbers)

    @property
    def number(self) -> int:
        """A number that grows when extents are mapped or given up."""
        return self._number

    def add(self, extent: types_pb2.Extent, descriptors: Sequence[int]) -> None:
        """Map an extent, unless it is mapped already; raises as :func:`map_extent` does."""
        if extent.extent_id in self._mapped:
            return
        mapped = map_extent(
            extent, descriptors, store_epoch=self._store_epoch, unmapped=self._unmapped
        )
        with self._monitor:
            self._mapped[extent.extent_id] = mapped
            self._refused.pop(extent.extent_id, None)
            self._changed()

    def refuse(self, extent_id: int, why: StoreError) -> None:
        """Note that an extent cannot be mapped in this process."""
        with self._monitor:
            self._refused[extent_id] = why
            self._monitor.notify_all()

    def acknowledge(self, extent_ids: Iterable[int]) -> None:
        """Note that the store counts on these."""
        with self._monitor:
            self._acknowledged.update(extent_ids)
            self._monitor.notify_all()

    def counted_on(self, extent_ids: Iterable[int]) -> bool:
        """Return whether the store counts on all of these. The monitor may be held."""
        return self._acknowledged.issuperset(extent_ids)

    def settled(self, extent_ids: Iterable[int]) -> bool:
        """Return whether each of these is counted on or refused. The monitor may be held."""
        return all(each in self._acknowledged or each in self._refused for each in extent_ids)

    def refusal(self, extent_ids: Sequence[int]) -> StoreError | None:
        """Return why none of these can be mapped, or None if some can."""
        whys = [self._refused[each] for each in extent_ids if each in self._refused]
        return whys[0] if whys and len(whys) == len(extent_ids) else None

    def wait_for_devices(self) -> None:
        """Wait for the work of this process on every device that memory is mapped of."""
        with self._monitor:
            mapped = list(self._mapped.values())
        one_each = {each.device: each for each in mapped if each.device is not None}
        for extent in one_each.values():
            extent.wait_for_device()

    def give_up(self, extent_ids: Iterable[int] | None = None) -> None:
        """Drop these extents, or all; each is unmapped once its last view is gone."""
        with self._monitor:
            ids = [*self._mapped, *self._refused] if extent_ids is None else list(extent_ids)
            # Kept until the monitor is let go: the last reference unmaps.
            given_up = [self._mapped.pop(each) for each in ids if each in self._mapped]
            self._acknowledged.difference_update(ids)
            for each in ids:
                self._refused.pop(each, None)
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
