"""The extents that one session has mapped."""

import itertools
import os
from collections.abc import Iterator
from threading import Condition, Thread

import pytest

from kvstore.v1 import types_pb2
from kvstore_client.config import ContiguousMemory
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory import extent_table
from kvstore_client.memory.address_range import UNIT, ArenaRanges
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.host_extent import HostExtent
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from wire.scripted_store import sealed_memfd


def described(extent_id: int, arena_id: int = 1) -> types_pb2.Extent:
    """Returns an extent of one slot of 64 bytes."""
    host = types_pb2.HostHandle(size_bytes=64)
    return types_pb2.Extent(
        extent_id=extent_id, arena_id=arena_id, slot_count=1, slot_bytes=64, host=host
    )


@pytest.fixture
def memory() -> Iterator[int]:
    """Provides a sealed memfd of 64 bytes."""
    descriptor = sealed_memfd(64, REQUIRED_SEALS)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def gone() -> list[int]:
    """Collects the unmapped extents."""
    return []


@pytest.fixture
def table(gone: list[int]) -> ExtentTable:
    """Provides an empty table."""
    return ExtentTable(Condition(), itertools.count(1), gone.append, store_epoch=5)


def test_extents_are_found_by_id_and_by_arena(table: ExtentTable, memory: int) -> None:
    """Extents are found by id, and by arena in the order of mapping."""
    for extent_id, arena_id in ((4, 1), (2, 2), (3, 1)):
        table.add(described(extent_id, arena_id), [memory])
    assert list(table.of_arena(1)) == [4, 3]
    assert (table.get(2) is not None, table.get(9)) == (True, None)


def test_an_extent_announced_again_is_mapped_once(table: ExtentTable, memory: int) -> None:
    """A second announcement of an extent changes nothing."""
    table.add(described(1), [memory])
    number, first = table.number, table.get(1)
    table.add(described(1), [memory])
    assert (table.number, table.get(1)) == (number, first)


def test_an_extent_that_comes_again_with_other_memory_is_refused(
    table: ExtentTable, memory: int
) -> None:
    """An id names one memory while it is mapped. A missing descriptor counts as another."""
    table.add(described(1), [memory])
    other = sealed_memfd(64, REQUIRED_SEALS)
    for descriptors in ([other], []):
        with pytest.raises(UntrustedExtent, match="came again with other memory"):
            table.add(described(1), descriptors)
    os.close(other)
    assert table.get(1) is not None


def test_the_memory_of_extents_has_an_identity(table: ExtentTable, memory: int) -> None:
    """Each mapped extent has the identity of its descriptor, and memory of a device has none."""
    table.add(described(1), [memory])
    status = os.fstat(memory)
    assert table.identities() == {1: (status.st_dev, status.st_ino, 64)}
    extent = table.get(1)
    assert extent is not None
    extent.identity = None
    assert table.identities() is None
    table.add(described(1), [])
    table.give_up()
    assert table.identities() == {}


def test_the_number_grows_with_each_change(table: ExtentTable, memory: int) -> None:
    """Each mapping and unmapping gives the table a new number. Unmapping nothing does not."""
    numbers = [table.number]
    table.add(described(1), [memory])
    numbers.append(table.number)
    table.give_up([9])
    assert table.number == numbers[-1]
    table.give_up()
    numbers.append(table.number)
    assert numbers == sorted(set(numbers))


def test_an_extent_given_up_is_unmapped_after_its_last_view(
    table: ExtentTable, memory: int, gone: list[int]
) -> None:
    """An extent that is given up stays mapped while a view of it exists."""
    for extent_id in (1, 2):
        table.add(described(extent_id), [memory])
    table.acknowledge([1, 2])
    kept = table.of_arena(1)[1].view()
    table.give_up([1, 2])
    assert (gone, table.get(1), table.counted_on([1])) == ([2], None, False)
    assert len(kept) == 64
    del kept
    assert gone == [2, 1]


def test_an_extent_that_is_refused_is_not_there(table: ExtentTable, memory: int) -> None:
    """A failed mapping leaves the table unchanged."""
    wrong = described(1)
    wrong.slot_count = 2
    with pytest.raises(UntrustedExtent):
        table.add(wrong, [memory])
    assert table.get(1) is None


def test_an_extent_that_cannot_be_mapped_is_settled(table: ExtentTable, memory: int) -> None:
    """Extents are settled once all are acknowledged, or refused, which counts only if all are."""
    why = DeviceUnavailable("no device")
    table.add(described(1), [memory])
    table.refuse(2, why)
    assert not table.settled([1, 2])
    table.acknowledge([1])
    assert table.settled([1, 2])
    assert [table.refusal(ids) for ids in ([2], [1, 2], [1], [3], [])] == [why, *[None] * 4]


def test_a_refusal_ends_with_a_mapping_and_with_the_extent(table: ExtentTable, memory: int) -> None:
    """A refusal of an extent ends when the extent is mapped, retired or given up."""
    for extent_id in (1, 2, 3):
        table.refuse(extent_id, DeviceUnavailable("no device"))
    table.add(described(1), [memory])
    table.give_up([2])
    assert [table.refusal([each]) is None for each in (1, 2, 3)] == [True, True, False]
    table.give_up()
    assert table.refusal([3]) is None


def test_waiting_for_devices_without_any_is_nothing(table: ExtentTable, memory: int) -> None:
    """Waiting for devices returns at once if all memory is on the host."""
    table.add(described(1), [memory])
    table.wait_for_devices()


def test_an_acknowledgement_wakes_who_waits_for_it(gone: list[int]) -> None:
    """An acknowledgement wakes a thread that waits for the extent."""
    monitor = Condition()
    table = ExtentTable(monitor, itertools.count(1), gone.append, store_epoch=5)
    thread = Thread(target=table.acknowledge, args=([1, 2],))
    with monitor:
        thread.start()
        assert monitor.wait_for(lambda: table.counted_on([2, 1]), 30)
    thread.join()
    assert table.counted_on([])
    assert not table.counted_on([3])


def test_what_is_retired_is_unmapped_or_was_not_mapped(
    table: ExtentTable, memory: int, gone: list[int]
) -> None:
    """The store is told of each retired extent once: at once, or when its last view goes."""
    for extent_id in (1, 2):
        table.add(described(extent_id), [memory])
    table.refuse(3, DeviceUnavailable("no device"))
    kept = table.of_arena(1)[1].view()
    assert table.retire([1, 2, 3, 4]) == [3, 4]
    assert (gone, table.lingering) == ([2], {1})
    assert table.retire([1]) == []
    del kept
    assert (gone, table.lingering) == ([2, 1], set())
    assert table.retire([1]) == [1]


def test_nobody_waits_for_what_is_retired(table: ExtentTable) -> None:
    """An extent that is retired before it arrives is settled."""
    assert not table.settled([1])
    table.retire([1])
    assert table.settled([1])


def test_a_closed_table_maps_nothing(table: ExtentTable, memory: int, gone: list[int]) -> None:
    """An extent that is announced to a closed table is not mapped."""
    assert table.add(described(1), [memory])
    table.close()
    assert not table.add(described(2), [memory])
    assert (table.get(2), gone, table.lingering) == (None, [1, 2], set())


def test_a_table_that_is_dropped_unmaps(memory: int, gone: list[int]) -> None:
    """A table that is dropped unmaps its extents."""
    table = ExtentTable(Condition(), itertools.count(1), gone.append, store_epoch=5)
    table.add(described(1), [memory])
    del table
    assert gone == [1]


def test_extents_are_prepared_one_after_the_other(table: ExtentTable, memory: int) -> None:
    """Each extent is populated once, and one that was given up is not."""
    assert not table.populate()
    for extent_id in (1, 2, 3):
        table.add(described(extent_id), [memory])
    assert table.populate()
    table.give_up([2])
    assert not table.populate()
    table.add(described(4), [memory])
    table.close()
    assert not table.populate()


def test_no_more_is_prepared_than_page_tables_may_cost(
    table: ExtentTable, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Populating stops after a fixed number of steps for all extents together."""
    begun: list[int] = []

    def prepare(self: HostExtent, begin: int) -> int:
        del self
        begun.append(begin)
        return begin + 1

    monkeypatch.setattr(HostExtent, "populate", prepare)
    monkeypatch.setattr(extent_table, "PREPARATIONS", 5)
    # To have nothing to prepare costs none.
    assert not table.populate()
    table.add(described(1), [memory])
    for _ in range(7):
        table.populate()
    table.give_up([1])
    table.add(described(2), [memory])
    assert not table.populate()
    assert begun == [0, 1, 2, 3, 4]


def test_what_is_given_up_while_it_is_prepared_is_unmapped(
    table: ExtentTable, memory: int, gone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extent that is given up during its population is unmapped after the step."""
    table.add(described(1), [memory])
    extent = table.get(1)
    assert extent is not None

    def give_up(self: HostExtent, begin: int) -> int:
        del self
        table.give_up([1])
        assert gone == []
        return begin + 1

    monkeypatch.setattr(HostExtent, "populate", give_up)
    del extent
    assert not table.populate()
    assert gone == [1]


def test_nothing_is_prepared_if_told_so(memory: int) -> None:
    """A table that does not populate has nothing to prepare."""
    table = ExtentTable(
        Condition(), itertools.count(1), lambda _: None, store_epoch=5, populates=False
    )
    assert table.add(described(1), [memory])
    assert not table.populate()
    table.close()


def test_extents_are_mapped_into_the_range_of_their_arena(memory: int, gone: list[int]) -> None:
    """With ranges an arena's extents lie side by side, until they are given up."""
    ranges = ArenaRanges(ContiguousMemory(reserved_bytes=2 * UNIT))
    table = ExtentTable(Condition(), itertools.count(1), gone.append, 5, ranges=ranges)
    assert table.range_of(1) is None
    for number in (0, 1, 2):
        extent = described(number + 1)
        extent.arena_offset = number * UNIT
        if number < 2:
            assert table.add(extent, [memory])
        else:
            with pytest.raises(OSError, match="reserved_bytes"):
                table.add(extent, [memory])
    arena = table.range_of(1)
    assert arena is not None
    assert [each.first_row for each in arena.extents.values()] == [0, UNIT // 64]
    table.populate()
    assert table.retire([1]) == []
    assert (gone, list(arena.extents)) == ([1], [2])
    table.close()
    assert (gone, arena.extents) == ([1, 2], {})


def test_without_ranges_extents_are_anywhere(table: ExtentTable, memory: int) -> None:
    """A table without ranges maps an extent wherever the kernel has room."""
    extent = described(1)
    extent.arena_offset = 0
    assert table.add(extent, [memory])
    assert table.range_of(1) is None


def test_an_extent_without_a_place_is_not_mapped(memory: int, gone: list[int]) -> None:
    """With ranges, an extent of a store that states no places cannot be mapped."""
    ranges = ArenaRanges(ContiguousMemory(reserved_bytes=UNIT))
    table = ExtentTable(Condition(), itertools.count(1), gone.append, 5, ranges=ranges)
    with pytest.raises(OSError, match="too old"):
        table.add(described(1), [memory])
    assert (table.get(1), table.range_of(1)) == (None, None)
