"""One range of addresses for each arena, with its host extents side by side."""

import fcntl
import gc
import math
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from kvstore.v1 import types_pb2
from kvstore_client import ContiguousMemory, DatedRun, PageRef, SlotRun
from kvstore_client.memory import address_range
from kvstore_client.memory.address_range import (
    LEAST_RESERVED,
    UNIT,
    AddressRange,
    ArenaRanges,
    default_reserved_bytes,
)
from kvstore_client.memory.host_extent import HostExtent, Register
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import REQUIRED_SEALS, Unregister
from processes.open_descriptors import open_descriptors
from wire.scripted_store import sealed_memfd as any_memfd

PAGE = mmap.PAGESIZE
SLOT = 1024
SLOTS = 3
RESERVED = 8 * UNIT
NAME = "kvstore-range-extent"
ROUNDS = 3000


class Piece(NamedTuple):
    """A line of /proc/self/maps."""

    begin: int
    end: int
    access: str
    name: str


class Span(NamedTuple):
    """The addresses of a range, without the range."""

    base: int
    reserved_bytes: int

    @classmethod
    def of(cls, arena: AddressRange) -> "Span":
        """Returns the span of a range."""
        return cls(arena.base, arena.reserved_bytes)

    def reserved(self) -> bool:
        """Returns whether something is mapped there."""
        return bool(pieces(self))


def pieces(arena: AddressRange | Span) -> list[Piece]:
    """Returns the mappings among an arena's addresses, in order."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, access, *_, name = f"{line} ".split(" ", 5)
        begin, end = (int(each, 16) for each in span.split("-"))
        if begin < arena.base + arena.reserved_bytes and arena.base < end:
            found.append(Piece(begin, end, access, name.strip()))
    return found


def with_memory(arena: AddressRange) -> list[tuple[int, int]]:
    """Returns the offset and size of each piece of an arena's addresses that has memory."""
    return [
        (each.begin - arena.base, each.end - each.begin)
        for each in pieces(arena)
        if each.access != "---p"
    ]


def described(
    extent_id: int, place: int = 0, *, slots: int = SLOTS, slot_bytes: int = SLOT
) -> types_pb2.Extent:
    """Returns an extent at the ``place``-th unit of its arena."""
    return types_pb2.Extent(
        extent_id=extent_id,
        arena_id=1,
        slot_count=slots,
        slot_bytes=slot_bytes,
        host=types_pb2.HostHandle(size_bytes=slots * slot_bytes),
        arena_offset=place * UNIT,
    )


def sealed_memfd(size: int, seals: int = REQUIRED_SEALS) -> int:
    """Returns a sealed memfd with a name that no other test uses."""
    return any_memfd(size, seals, b"", name=NAME)


def map_fresh(
    arena: AddressRange,
    extent: types_pb2.Extent,
    gone: list[int] | None = None,
    register: Register | None = None,
) -> HostExtent:
    """Maps an extent of fresh memory into a range."""
    descriptor = sealed_memfd(extent.host.size_bytes)
    try:
        return HostExtent(
            extent,
            descriptor,
            None if gone is None else gone.append,
            register=register,
            address_range=arena,
        )
    finally:
        os.close(descriptor)


class Mapper:
    """Maps extents into a range, and notes registrations, their ends and unmappings in order."""

    def __init__(self, reserved_bytes: int = RESERVED, slot_bytes: int = SLOT) -> None:
        self.calls: list[tuple[str, int, int]] = []
        options = ContiguousMemory(reserved_bytes=reserved_bytes)
        self.arena = AddressRange(1, slot_bytes, options)
        self.gone: list[int] = []

    def extent(self, extent: types_pb2.Extent) -> HostExtent:
        """Maps an extent of fresh memory."""
        return map_fresh(self.arena, extent, self.gone, self._register)

    def _register(self, address: int, size: int, slot_bytes: int) -> Unregister:
        assert slot_bytes == self.arena.row_bytes
        self._note("register", address, size, mapped=True)

        def unregister(unmap: Callable[[], None]) -> None:
            self._note("unregister", address, size, mapped=True)
            unmap()
            self._note("unmapped", address, size, mapped=False)

        return unregister

    def _note(self, call: str, address: int, size: int, *, mapped: bool) -> None:
        memory = address - self.arena.base, -(-size // PAGE) * PAGE
        assert (memory in with_memory(self.arena)) == mapped
        self.calls.append((call, address - self.arena.base, size))


@pytest.fixture
def mapper() -> Mapper:
    """Provides a range of 16 MiB for slots of 1 KiB."""
    return Mapper()


def test_a_page_is_at_its_row(mapper: Mapper) -> None:
    """A page's bytes are at base + row * row_bytes, and each row leads back to its page."""
    arena, whole = mapper.arena, mapper.arena.view()
    first, second = mapper.extent(described(7)), mapper.extent(described(9, 2))
    rows = 2 * UNIT // SLOT
    assert [arena.row(PageRef(7, 0)), arena.row(PageRef(9, 2))] == [0, rows + 2]
    for extent in (first, second):
        for slot in range(SLOTS):
            page = PageRef(extent.extent_id, slot)
            row = arena.row(page)
            extent.slot(slot)[:2] = bytes(page)
            assert whole[row * arena.row_bytes :][:2] == bytes(page)
            assert (arena.page(row), arena.address(row)) == (page, arena.base + row * SLOT)
    assert (arena.row_bytes, arena.row_count, arena.reserved_bytes) == (
        SLOT,
        RESERVED // SLOT,
        RESERVED,
    )


def test_rows_of_runs_are_those_of_their_pages(mapper: Mapper) -> None:
    """Runs give the rows of their pages in order, whether slots are a range or a list."""
    kept = [mapper.extent(described(7)), mapper.extent(described(9, 1, slots=9))]
    runs = [
        SlotRun(9, range(4, 9)),
        DatedRun(7, [2, 0, 1], (5, 5, 5)),
        SlotRun(9, range(0)),
        SlotRun(9, []),
        SlotRun(9, [3]),
    ]
    rows = mapper.arena.rows(runs)
    expected = [PageRef(run.extent_id, slot) for run in runs for slot in run.slots]
    assert [mapper.arena.page(row) for row in rows.tolist()] == expected
    none = mapper.arena.rows([])
    assert [rows.dtype, none.dtype, none.shape] == ["int64", "int64", (0,)]
    assert len(kept) == 2


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_slot_without_a_row_is_refused(mapper: Mapper, slot: int) -> None:
    """Pages of extents that are not mapped, slots beyond an extent and empty rows have errors."""
    arena, extent = mapper.arena, mapper.extent(described(7))
    for slots in ([0, slot], range(min(slot, 0), slot + 1)):
        with pytest.raises(IndexError, match=f"extent 7 has 3 slots, none is {slot}"):
            arena.rows([SlotRun(7, slots)])
    with pytest.raises(IndexError, match=f"none is {slot}"):
        arena.row(PageRef(7, slot))
    with pytest.raises(IndexError, match=f"row {slot}"):
        arena.page(slot)
    del extent
    with pytest.raises(KeyError):
        arena.row(PageRef(7, 0))
    with pytest.raises(KeyError):
        arena.rows([SlotRun(7, [0])])


def test_views_of_the_range_see_extents_that_come_later(mapper: Mapper) -> None:
    """A tensor over all rows, made before any extent, reads and writes each extent in place."""
    bytes_of_rows = mapper.arena.tensor()
    rows = bytes_of_rows.as_strided((mapper.arena.row_count, 5), (SLOT, 1), 8)
    assert rows.data_ptr() == mapper.arena.base + 8
    first = mapper.extent(described(7))
    rows[1] = torch.arange(5)
    second = mapper.extent(described(9, 3))
    rows[mapper.arena.row(PageRef(9, 2))] = 7
    assert bytes(first.slot(1)[8:13]) == bytes(range(5))
    assert bytes(second.slot(2)[8:13]) == b"\7" * 5


def test_extents_are_registered_while_they_are_mapped(mapper: Mapper) -> None:
    """Registering follows each mapping. Unregistering precedes the unmapping and its report."""
    first = mapper.extent(described(7))
    second = mapper.extent(described(9, 2))
    size = SLOTS * SLOT
    assert mapper.calls == [("register", 0, size), ("register", 2 * UNIT, size)]
    assert mapper.gone == []
    assert [each.address - mapper.arena.base for each in mapper.arena.extents.values()] == [
        0,
        2 * UNIT,
    ]
    mapper.calls.clear()
    view = second.view()
    del second
    assert mapper.calls == []
    del view
    assert mapper.calls == [("unregister", 2 * UNIT, size), ("unmapped", 2 * UNIT, size)]
    assert mapper.gone == [9]
    assert with_memory(mapper.arena) == [(0, PAGE)]
    assert list(mapper.arena.extents) == [7]
    assert first.slot_count == SLOTS


def test_a_place_is_used_again_after_its_extent(mapper: Mapper) -> None:
    """Fresh memory comes where a retired extent was, and views of the range stay valid."""
    whole = mapper.arena.view()
    old = mapper.extent(described(7))
    old.slot(0)[:3] = b"old"
    del old
    fresh = mapper.extent(described(9))
    assert bytes(whole[: SLOTS * SLOT]) == bytes(SLOTS * SLOT)
    fresh.slot(0)[:3] = b"new"
    assert bytes(whole[:3]) == b"new"


def test_addresses_without_extents_have_no_memory() -> None:
    """All other addresses stay reserved, without access, and leave with the last user."""
    arena = AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=RESERVED))
    assert {each.access for each in pieces(arena)} == {"---p"}
    extent = map_fresh(arena, described(7, 2))
    held = [each for each in pieces(arena) if each.access != "---p"]
    assert [(each.access, NAME in each.name) for each in held] == [("rw-s", True)]
    spans = pieces(arena)
    assert spans[0].begin <= arena.base
    assert spans[-1].end >= arena.base + arena.reserved_bytes
    assert all(one.end == after.begin for one, after in pairwise(spans))
    view = arena.view()
    ends = Span.of(arena)
    del arena
    assert ends.reserved()
    del extent
    assert ends.reserved()
    del view
    assert not ends.reserved()


def test_nothing_of_the_range_is_inherited_or_dumped(mapper: Mapper) -> None:
    """Extents and reserved addresses are excluded from forks and core dumps, also once empty."""
    kept, gone = mapper.extent(described(7)), mapper.extent(described(9, 1))
    assert kept.extent_id == 7
    del gone
    flags, inside = [], False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ")[0]:
            begin = int(line.split("-")[0], 16)
            inside = mapper.arena.base <= begin < mapper.arena.base + RESERVED
        elif inside and line.startswith("VmFlags:"):
            flags.append(set(line.split()))
    assert len(flags) >= 2
    assert all({"dc", "dd"} <= each for each in flags)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_unmaps_nothing(mapper: Mapper) -> None:
    """A child that drops its copies calls nothing, and has none of the addresses."""
    extent: HostExtent | None = mapper.extent(described(7))
    assert extent is not None
    extent.slot(0)[:4] = b"kept"
    span = Span.of(mapper.arena)
    mapper.calls.clear()
    pid = os.fork()
    if pid == 0:
        extent = None
        calls = len(mapper.calls)
        del mapper
        os._exit(calls + span.reserved())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bytes(mapper.arena.view()[:4]) == b"kept"


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "memory"),
    [(3, 1000, PAGE), (PAGE, 1, PAGE), (5, PAGE + 1, 6 * PAGE), (3, UNIT // 2, 3 * UNIT // 2)],
)
def test_extents_have_any_size(slots: int, slot_bytes: int, memory: int) -> None:
    """Slots need not divide a memory page, nor an extent the room that the store leaves for it."""
    stride = math.lcm(slot_bytes, UNIT) // UNIT
    mapper = Mapper((stride + 2) * UNIT, slot_bytes)
    first = mapper.extent(described(7, slots=slots, slot_bytes=slot_bytes))
    place = max(stride, -(-memory // UNIT))
    second = mapper.extent(described(9, place, slots=1, slot_bytes=slot_bytes))
    first.slot(slots - 1)[-1:] = b"x"
    second.slot(0)[:1] = b"y"
    last = mapper.arena.row(PageRef(7, slots - 1))
    beyond = mapper.arena.row(PageRef(9, 0))
    whole = mapper.arena.view()
    assert whole[(last + 1) * slot_bytes - 1] == ord("x")
    assert whole[beyond * slot_bytes] == ord("y")
    assert with_memory(mapper.arena)[0] == (0, memory)


def test_places_that_are_not_an_extents_own_are_refused(mapper: Mapper) -> None:
    """A store that names a taken place, or one within a row, is not trusted."""
    kept = mapper.extent(described(7, slots=UNIT // SLOT + 1))
    other_row = described(9, 4, slot_bytes=2 * SLOT)
    within = described(9, 4)
    within.arena_offset += SLOT
    for wrong, why in [
        (described(9, 0), "where another is"),
        (described(9, 1), "where another is"),
        (within, "where none begins"),
        (other_row, "slots of 2048 bytes"),
    ]:
        with pytest.raises(UntrustedExtent, match=why):
            mapper.extent(wrong)
    assert list(mapper.arena.extents) == [kept.extent_id]
    view = kept.view()
    del kept
    # Still mapped, by the view.
    with pytest.raises(UntrustedExtent, match="where another is"):
        mapper.extent(described(9, 1))
    del view
    assert mapper.extent(described(9, 1)).extent_id == 9


def test_extents_that_do_not_fit_are_refused(mapper: Mapper) -> None:
    """An extent beyond the reserved addresses, and one that begins within its memory, have why."""
    last = mapper.extent(described(7, 7, slots=UNIT // SLOT))
    with pytest.raises(OSError, match=r"byte 16780288 .* reserved 16777216: set .*reserved_bytes"):
        mapper.extent(described(9, 8))
    shifted = described(9)
    shifted.offset, shifted.host.size_bytes = PAGE, 2 * PAGE
    with pytest.raises(OSError, match="begin 4096 bytes into"):
        mapper.extent(shifted)
    assert with_memory(mapper.arena) == [(7 * UNIT, UNIT)]
    assert last.slot_count == UNIT // SLOT


def test_an_extent_whose_registration_fails_is_unmapped() -> None:
    """An error of `register` is the mapping's, and the place is free for another extent."""
    arena, gone = AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=RESERVED)), list[int]()

    def fail(address: int, size: int, slot_bytes: int) -> Unregister:
        raise RuntimeError(f"{size} bytes at {address} cannot have slots of {slot_bytes}")

    with pytest.raises(RuntimeError, match="3072 bytes at"):
        map_fresh(arena, described(7), gone, fail)
    assert (with_memory(arena), arena.extents, gone) == ([], {}, [])
    assert map_fresh(arena, described(7)).slot_count == SLOTS


def test_a_place_is_taken_until_its_memory_is_unregistered() -> None:
    """Memory stays mapped while it is registered, and another extent at its place is refused."""
    arena, gone = AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=RESERVED)), list[int]()
    ends: list[Callable[[], None]] = []
    extent = map_fresh(arena, described(7), gone, lambda *_: ends.append)
    extent.slot(0)[:3] = b"old"
    del extent
    assert (arena.extents, gone, with_memory(arena)) == ({}, [], [(0, PAGE)])
    assert bytes(arena.view()[:3]) == b"old"
    with pytest.raises(UntrustedExtent, match="where another is"):
        map_fresh(arena, described(9))
    span, [unmap] = Span.of(arena), ends
    unmap()
    assert (gone, with_memory(arena)) == ([7], [])
    fresh = map_fresh(arena, described(9), gone, lambda *_: ends.append)
    assert bytes(fresh.slot(0)[:3]) == bytes(3)
    # The addresses stay reserved until the last registration is undone.
    del arena, fresh
    assert span.reserved()
    ends.pop()()
    del unmap
    ends.clear()
    assert (gone, span.reserved()) == ([7, 9], False)


def test_a_range_whose_mapping_failed_is_used_no_more() -> None:
    """After the kernel refused a mapping, others may have the addresses: they are left alone."""
    arena, gone = AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=RESERVED)), list[int]()
    kept = map_fresh(arena, described(7), gone)
    descriptor = sealed_memfd(SLOTS * SLOT, REQUIRED_SEALS | fcntl.F_SEAL_WRITE)
    with pytest.raises(OSError, match="mmap of 3072 bytes"):
        HostExtent(described(9, 1), descriptor, None, address_range=arena)
    os.close(descriptor)
    with pytest.raises(OSError, match="an earlier mapping into the range failed"):
        map_fresh(arena, described(9, 2))
    span = Span.of(arena)
    kept.slot(0)[:1] = b"x"
    assert arena.view()[0] == ord("x")
    del kept
    assert gone == [7]
    del arena
    gc.collect()
    assert span.reserved()


def test_an_extent_that_cannot_be_unmapped_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store keeps an extent that the kernel did not unmap, and its place is never reused."""
    arena, gone = AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=RESERVED)), list[int]()
    kept = map_fresh(arena, described(7), gone)

    def refuse(address: int, size: int) -> None:
        del address
        raise OSError(f"{size} bytes stay")

    # The kernel refuses this only without memory of its own.
    with monkeypatch.context() as patch:
        patch.setattr(address_range, "reserve_again", refuse)
        del kept
    assert (gone, arena.extents) == ([], {})
    assert "extent_not_unmapped" in caplog.text
    with pytest.raises(UntrustedExtent, match="where another is"):
        map_fresh(arena, described(8))
    with pytest.raises(OSError, match="an earlier mapping into the range failed"):
        map_fresh(arena, described(9, 1))


def test_addresses_that_cannot_be_reserved_are_an_error() -> None:
    """A limit of the address space is an error that has the size."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, limits[1]))
    try:
        with pytest.raises(OSError, match=f"mmap of {LEAST_RESERVED + UNIT} bytes"):
            AddressRange(1, SLOT, ContiguousMemory(reserved_bytes=LEAST_RESERVED))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_the_default_is_more_than_any_arena_has() -> None:
    """By default the range has four times the machine's memory, which takes no memory itself."""
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    assert default_reserved_bytes() >= max(4 * memory, LEAST_RESERVED)
    before = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    arena = AddressRange(1, SLOT, ContiguousMemory())
    whole = arena.tensor()
    after = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    assert whole.numel() == arena.reserved_bytes >= default_reserved_bytes()
    # Size, and resident pages: less than a thousandth of the range.
    assert int(after[0]) - int(before[0]) >= arena.reserved_bytes // PAGE
    assert int(after[1]) - int(before[1]) < arena.reserved_bytes // PAGE // 1000


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps the collector from unmapping what other tests left during this one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("quiet")
def test_thousands_of_extents_leave_nothing_behind() -> None:
    """Neither mappings nor descriptors grow with extents that come and go, nor with ranges."""
    options, gone = ContiguousMemory(reserved_bytes=RESERVED), list[int]()
    arena = AddressRange(1, SLOT, options)
    kept = map_fresh(arena, described(7, 3))
    expected, descriptors = pieces(arena), open_descriptors("memfd:")
    for number in range(ROUNDS):
        map_fresh(arena, described(8 + number, number % 3), gone).slot(0)[:1] = b"x"
    assert (pieces(arena), gone) == (expected, [*range(8, 8 + ROUNDS)])
    assert open_descriptors("memfd:") <= descriptors
    assert kept.slot_count == SLOTS
    spans = []
    for _ in range(ROUNDS):
        other = AddressRange(1, SLOT, ContiguousMemory())
        assert map_fresh(other, described(7)).slot_count == SLOTS
        spans.append(Span.of(other))
    del other
    assert not any(each.reserved() for each in {*spans})


def test_each_arena_has_its_own_range() -> None:
    """A session's ranges are made at an arena's first extent, with the size of its slots."""
    ranges = ArenaRanges(ContiguousMemory(reserved_bytes=UNIT))
    other = described(9, slot_bytes=64)
    other.arena_id = 2
    assert ranges.get(1) is None
    found = [ranges.of(each) for each in (described(7), other, described(8, 1))]
    assert found == [ranges.get(1), ranges.get(2), ranges.get(1)]
    assert [each.row_bytes for each in found] == [SLOT, 64, SLOT]


def test_an_old_store_is_named_as_the_reason() -> None:
    """A store that states no place for its extents cannot be used with contiguous memory."""
    extent = described(7)
    extent.ClearField("arena_offset")
    with pytest.raises(OSError, match="too old for ClientConfig"):
        ArenaRanges(ContiguousMemory()).of(extent)
