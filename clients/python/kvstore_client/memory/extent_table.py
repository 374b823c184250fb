"""The extents that one session has mapped."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition

from kvstore.v1 import types_pb2
from kvstore_client.errors import DeviceUnavailable, StoreError
from kvstore_client.memory.address_range import AddressRange, ArenaRanges
from kvstore_client.memory.cuda.cuda_extent import CudaExtent
from kvstore_client.memory.host_extent import HostExtent, Register
from kvstore_client.memory.mapped_extent import MappedExtent, UntrustedExtent
from kvstore_client.memory.page_generations import map_generations
from kvstore_client.memory.shared_memory import MemoryIdentity, identity_of
from kvstore_client.values.page_runs import Pages


def map_extent(
    extent: types_pb2.Extent,
    descriptors: Sequence[int],
    *,
    store_epoch: int,
    unmapped: Callable[[int], None],
    wait: Callable[[], None] | None = None,
    register: Register | None = None,
    ranges: ArenaRanges | None = None,
) -> MappedExtent:
    """Maps an extent of a store, and its generations.

    ``descriptors`` came with the extent and stay the caller's. ``unmapped`` is called with the
    extent's id after it is unmapped, at any point of the program: it MUST NOT wait. Memory of a
    device is unmapped after ``wait``, by default once the whole device is done. Host memory is
    registered by ``register``, and mapped into the range of its arena if ``ranges`` are given.

    Raises :class:`UntrustedExtent`, ``OSError`` for host memory that cannot be mapped, and
    ``DeviceUnavailable`` for other memory. Raises ``StoreUnavailable`` if the caller has to drop an
    earlier store's views first.
    """
    generations = map_generations(extent, descriptors)
    mapped = _map(extent, descriptors, store_epoch, unmapped, wait, register, ranges)
    mapped.generations = generations
    return mapped


def _map(
    extent: types_pb2.Extent,
    descriptors: Sequence[int],
    store_epoch: int,
    unmapped: Callable[[int], None],
    wait: Callable[[], None] | None,
    register: Register | None,
    ranges: ArenaRanges | None,
) -> MappedExtent:
    kind = extent.WhichOneof("handle")
    if kind == "cuda_ipc":
        return CudaExtent(extent, store_epoch, unmapped, wait=wait)
    if kind != "host":
        raise DeviceUnavailable(f"this client cannot map memory by {kind or 'no handle'}")
    if extent.host.descriptor_index >= len(descriptors):
        raise UntrustedExtent(f"extent {extent.extent_id} came without its descriptor")
    address_range = None if ranges is None else ranges.of(extent)
    descriptor = descriptors[extent.host.descriptor_index]
    return HostExtent(extent, descriptor, unmapped, register=register, address_range=address_range)


# The most preparations, of a few MiB each: 16 GiB of memory. Its page tables, charged to this
# process, are 32 MiB. The kernel fills those of further memory at the first touch.
PREPARATIONS = 4096


class _Lingering(set[int]):
    """Extents that were given up and are still mapped, because views of them exist."""

    def __init__(self, unmapped: Callable[[int], None]) -> None:
        self._unmapped = unmapped

    def end(self, extent_id: int) -> None:
        """Reports that an extent is unmapped, then removes it. Any thread, at any point."""
        self._unmapped(extent_id)
        self.discard(extent_id)


class ExtentTable:
    """A session's extents by id: mapped ones, acknowledged ones, and those that cannot be mapped.

    ``number`` is drawn anew from ``numbers`` at each change of the mapped extents. Any thread
    may use it. ``monitor`` is notified of every change and never held while memory is mapped.
    ``unmapped`` is as in :func:`map_extent`, and is called once for each mapped extent.
    """

    def __init__(
        self,
        monitor: Condition,
        numbers: Iterator[int],
        unmapped: Callable[[int], None],
        store_epoch: int,
        wait: Callable[[], None] | None = None,
        register: Register | None = None,
        ranges: ArenaRanges | None = None,
        *,
        populates: bool = True,
    ) -> None:
        """Uses ``wait``, ``register`` and ``ranges`` as :func:`map_extent` does.

        Without ``populates``, :meth:`populate` has nothing to prepare.
        """
        self._ranges = ranges
        self._monitor = monitor
        self._numbers = numbers
        self._store_epoch = store_epoch
        self._wait = wait
        self._register = register
        self._mapped: dict[int, MappedExtent] = {}
        self._acknowledged: set[int] = set()
        self._refused: dict[int, StoreError] = {}
        # Given up but still mapped, because views exist; and those that the store took back.
        self._lingering = _Lingering(unmapped)
        self._retired: set[int] = set()
        # The next byte to prepare, by extents that are not fully prepared for their first use.
        self._fresh: dict[int, int] = {}
        self._preparations = 0
        self._populates = populates
        self._closed = False
        self._number = next(numbers)

    @property
    def number(self) -> int:
        """A number that grows when extents are mapped or given up."""
        return self._number

    @property
    def lingering(self) -> frozenset[int]:
        """Extents that were given up and are still mapped, or were until just now."""
        return frozenset(self._lingering)

    def add(self, extent: types_pb2.Extent, descriptors: Sequence[int]) -> bool:
        """Maps an extent unless it is mapped already; raises as :func:`map_extent` does.

        Returns whether it is mapped, which is False after :meth:`close`. Raises
        :class:`UntrustedExtent` if it is mapped and now comes with other memory.
        """
        known = self._mapped.get(extent.extent_id)
        if known is not None:
            _require_same(known, extent, descriptors)
            return True
        mapped = map_extent(
            extent,
            descriptors,
            store_epoch=self._store_epoch,
            unmapped=self._lingering.end,
            wait=self._wait,
            register=self._register,
            ranges=self._ranges,
        )
        with self._monitor:
            if self._closed:
                return False
            self._mapped[extent.extent_id] = mapped
            if self._populates:
                self._fresh[extent.extent_id] = 0
            self._refused.pop(extent.extent_id, None)
            self._changed()
        return True

    def populate(self) -> bool:
        """Prepares some of the memory for its first use; returns whether more is left to prepare.

        Makes at most ``PREPARATIONS`` preparations, because this process may never use all of a
        large store's memory. One thread at a time calls it. An extent that is given up
        meanwhile is unmapped when this returns.
        """
        with self._monitor:
            if not self._fresh or self._preparations == PREPARATIONS:
                return False
            self._preparations += 1
            extent_id, begin = next(iter(self._fresh.items()))
            extent = self._mapped[extent_id]
        end = extent.populate(begin)
        del extent
        with self._monitor:
            self._fresh.pop(extent_id, None)
            if end is not None and extent_id in self._mapped:
                self._fresh[extent_id] = end
            return bool(self._fresh)

    def refuse(self, extent_id: int, why: StoreError) -> None:
        """Notes that an extent cannot be mapped in this process."""
        with self._monitor:
            self._refused[extent_id] = why
            self._monitor.notify_all()

    def acknowledge(self, extent_ids: Iterable[int]) -> None:
        """Notes that the store knows these extents as mapped here."""
        with self._monitor:
            self._acknowledged.update(extent_ids)
            self._monitor.notify_all()

    def counted_on(self, extent_ids: Iterable[int]) -> bool:
        """Returns whether all of these are acknowledged. The monitor may be held."""
        return self._acknowledged.issuperset(extent_ids)

    def settled(self, extent_ids: Iterable[int]) -> bool:
        """Returns whether each is acknowledged, refused or retired. The monitor may be held."""
        known = (self._acknowledged, self._refused, self._retired)
        return all(any(each in ids for ids in known) for each in extent_ids)

    def refusal(self, extent_ids: Sequence[int]) -> StoreError | None:
        """Returns why none of these can be mapped, or None if some can."""
        whys = [self._refused[each] for each in extent_ids if each in self._refused]
        return whys[0] if whys and len(whys) == len(extent_ids) else None

    def wait_for_devices(self) -> None:
        """Waits for the work of this process on every device with mapped memory."""
        with self._monitor:
            mapped = list(self._mapped.values())
        one_each = {each.device: each for each in mapped if each.device is not None}
        for extent in one_each.values():
            extent.wait_for_device()

    def give_up(self, extent_ids: Iterable[int] | None = None) -> None:
        """Drops these extents, or all. Each is unmapped once its last view is dropped."""
        with self._monitor:
            ids = [*self._mapped, *self._refused] if extent_ids is None else list(extent_ids)
            # Kept until the monitor is released, because the last reference unmaps.
            given_up = [self._mapped.pop(each) for each in ids if each in self._mapped]
            self._lingering.update(each.extent_id for each in given_up)
            self._acknowledged.difference_update(ids)
            for each in ids:
                self._refused.pop(each, None)
                self._fresh.pop(each, None)
            if given_up:
                self._changed()
        del given_up

    def close(self) -> None:
        """Gives up all extents, and maps no others."""
        with self._monitor:
            self._closed = True
        self.give_up()

    def retire(self, extent_ids: Iterable[int]) -> list[int]:
        """Gives up extents that the store takes back; returns those that are not mapped.

        ``unmapped`` reports the others, perhaps before this returns.
        """
        with self._monitor:
            ids = list(extent_ids)
            absent = [e for e in ids if e not in self._mapped and e not in self._lingering]
            self._retired.update(ids)
        self.give_up(ids)
        return absent

    def get(self, extent_id: int) -> MappedExtent | None:
        """Returns an extent, or None if it is not mapped."""
        return self._mapped.get(extent_id)

    def identities(self) -> dict[int, MemoryIdentity] | None:
        """Returns the identity of each mapped extent's memory, by the extent's id.

        Returns None if one is memory of a device, which ends with the server that gave it.
        """
        with self._monitor:
            found = {key: each.identity for key, each in self._mapped.items()}
        known = {key: each for key, each in found.items() if each is not None}
        return known if len(known) == len(found) else None

    def strange(self, pages: Pages) -> set[int]:
        """Returns the extents of ``pages`` that are not mapped, or too small for a range of slots.

        If it returns none, every range of ``pages`` is within mapped memory.
        """
        found = set()
        for extent_id, end in pages.ends():
            extent = self._mapped.get(extent_id)
            if extent is None or end > extent.slot_count:
                found.add(extent_id)
        return found

    def of_arena(self, arena_id: int) -> dict[int, MappedExtent]:
        """Returns an arena's extents by id, in the order of their mapping."""
        with self._monitor:
            return {key: each for key, each in self._mapped.items() if each.arena_id == arena_id}

    def range_of(self, arena_id: int) -> AddressRange | None:
        """Returns an arena's range of addresses, or None without ranges or a host extent."""
        return None if self._ranges is None else self._ranges.get(arena_id)

    def _changed(self) -> None:
        self._number = next(self._numbers)
        self._monitor.notify_all()


def _require_same(
    mapped: MappedExtent, extent: types_pb2.Extent, descriptors: Sequence[int]
) -> None:
    """Raises :class:`UntrustedExtent` if the announced memory is not that which is mapped."""
    index = extent.host.descriptor_index
    same = mapped.identity is None or (
        index < len(descriptors) and identity_of(descriptors[index]) == mapped.identity
    )
    if not same:
        raise UntrustedExtent(f"extent {extent.extent_id} came again with other memory")
