"""An extent's generations in a client, and the pages whose slots were recycled."""

import os
from collections.abc import Callable, Iterable, Iterator
from threading import Condition
from typing import TypeAlias

import pytest

from kvstore.v1 import types_pb2
from kvstore_client.errors import PageRecycled
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.page_generations import PageGenerations, map_generations
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from kvstore_client.values.page_runs import PageRef, Pages
from wire.packed_runs import packed, unchanged
from wire.scripted_store import sealed_memfd

SLOTS = 4
TABLE_BYTES = 8 * SLOTS


def described(extent_id: int = 1, **table: int) -> types_pb2.Extent:
    """Returns an extent of four slots whose table is the frame's second descriptor."""
    size_bytes = table.get("size_bytes", TABLE_BYTES)
    index = table.get("descriptor_index", 1)
    return types_pb2.Extent(
        extent_id=extent_id,
        arena_id=1,
        slot_count=SLOTS,
        slot_bytes=64,
        host=types_pb2.HostHandle(size_bytes=256),
        generation_table=types_pb2.GenerationTable(descriptor_index=index, size_bytes=size_bytes),
    )


def run(*slots: int, generations: tuple[int, ...] | None = None) -> types_pb2.PageRun:
    """Returns a run of extent 1, by default of generation 0."""
    known = (0,) * len(slots) if generations is None else generations
    return types_pb2.PageRun(extent_id=1, slot_indexes=slots, generations=known)


def ranged(first: int, count: int, generations: tuple[int, ...]) -> types_pb2.PageRun:
    """Returns a run of neighbouring slots of extent 1."""
    return types_pb2.PageRun(
        extent_id=1, slot_indexes=[first], slot_count=count, generations=generations
    )


Named: TypeAlias = Callable[[Iterable[types_pb2.PageRun]], PageGenerations]


def read(runs: Iterable[types_pb2.PageRun]) -> PageGenerations:
    """Returns the generations of runs that another process of the lease read."""
    return PageGenerations.of(Pages(runs).dated_runs)


@pytest.fixture(params=[unchanged, packed, read], ids=["repeated", "packed", "read"])
def named(request: pytest.FixtureRequest) -> Named:
    """Provides the generations of runs, in each form in which a process may have them."""
    if request.param is read:
        return read
    return lambda runs: PageGenerations(Pages(map(request.param, runs)))


class Frame:
    """An extent's memory and generation table, both written by the test."""

    def __init__(self) -> None:
        self.table = sealed_memfd(TABLE_BYTES, REQUIRED_SEALS)
        self.descriptors = [sealed_memfd(256, REQUIRED_SEALS), self.table]

    def count(self, slot: int, generation: int) -> None:
        """Writes a slot's generation, as the store does when it frees a slot."""
        os.pwrite(self.table, generation.to_bytes(8, "little"), 8 * slot)

    def close(self) -> None:
        """Closes the descriptors."""
        for each in self.descriptors:
            os.close(each)


@pytest.fixture
def frame() -> Iterator[Frame]:
    """Provides an extent's descriptors."""
    made = Frame()
    yield made
    made.close()


@pytest.fixture
def extents(frame: Frame) -> ExtentTable:
    """Provides a table with extent 1 and its generations."""
    table = ExtentTable(Condition(), iter(range(1, 100)), lambda _: None, store_epoch=5)
    table.add(described(), frame.descriptors)
    return table


def test_what_the_store_counts_is_seen_and_cannot_be_written(
    frame: Frame, extents: ExtentTable
) -> None:
    """The table shows the store's counters and is read-only in the client."""
    extent = extents.get(1)
    assert extent is not None
    assert extent.generations is not None
    frame.count(2, 1 << 40)
    assert list(extent.generations) == [0, 0, 1 << 40, 0]
    with pytest.raises(TypeError):
        extent.generations[0] = 1


def test_pages_are_current_until_their_slots_are_given_back(
    frame: Frame, extents: ExtentTable, named: Named
) -> None:
    """Exactly the pages whose generations changed are reported."""
    pages = named([run(0), run(2, 1)])
    frame.count(3, 1)
    assert pages.recycled(extents.get) == []
    frame.count(1, 1)
    assert pages.recycled(extents.get) == [PageRef(1, 1)]
    frame.count(0, 9)
    assert pages.recycled(extents.get) == [PageRef(1, 0), PageRef(1, 1)]


def test_generations_are_those_of_the_answer(
    frame: Frame, extents: ExtentTable, named: Named
) -> None:
    """A page is current only for the generation that its answer named."""
    frame.count(2, 3)
    assert named([run(2, generations=(3,))]).recycled(extents.get) == []
    assert named([run(2, generations=(2,))]).recycled(extents.get) == [PageRef(1, 2)]


@pytest.mark.parametrize("generations", [(4,), (4, 4, 4)])
def test_a_range_s_pages_are_current_until_their_slots_are_given_back(
    frame: Frame, extents: ExtentTable, named: Named, generations: tuple[int, ...]
) -> None:
    """A range's pages are current until their slots are freed, with one generation or several."""
    for slot in (1, 2, 3):
        frame.count(slot, 4)
    pages = named([ranged(1, 3, generations)])
    assert pages.recycled(extents.get) == []
    frame.count(0, 9)
    assert pages.recycled(extents.get) == []
    frame.count(2, 5)
    assert pages.recycled(extents.get) == [PageRef(1, 2)]
    extents.give_up()
    assert pages.recycled(extents.get) == [PageRef(1, slot) for slot in (1, 2, 3)]


@pytest.mark.parametrize(
    "wrong",
    [
        *((2, SLOTS, (0,)), (0, 3, (0, 0)), (0, 3, (0, 0, 0, 0))),
        # As many as the extent still has, and one of them another.
        *((2, SLOTS, (0, 0)), (2, SLOTS, (0, 1))),
    ],
)
def test_a_range_that_makes_no_sense_has_no_current_page(
    extents: ExtentTable, named: Named, wrong: tuple[int, int, tuple[int, ...]]
) -> None:
    """A range beyond its extent, or with the wrong number of generations, is not current."""
    first, count, _ = wrong
    expected = [PageRef(1, slot) for slot in range(first, first + count)]
    assert named([ranged(*wrong)]).recycled(extents.get) == expected


def test_an_extent_that_is_gone_has_no_current_page(extents: ExtentTable, named: Named) -> None:
    """An extent that is not mapped has no current pages."""
    pages = named([run(0)])
    extents.give_up()
    assert pages.recycled(extents.get) == [PageRef(1, 0)]


@pytest.mark.parametrize(
    "wrong", [run(0, SLOTS), run(0, 1, generations=(0,)), run(0, 1, generations=(0, 0, 0))]
)
def test_a_run_that_makes_no_sense_has_no_current_page(
    extents: ExtentTable, named: Named, wrong: types_pb2.PageRun
) -> None:
    """A run beyond its extent, or with the wrong number of generations, is not current."""
    slots = list(wrong.slot_indexes)
    assert named([wrong]).recycled(extents.get) == [PageRef(1, slot) for slot in slots]


def test_a_run_without_slots_is_none(extents: ExtentTable, named: Named) -> None:
    """A run without slots has no pages, whatever count it names."""
    without = [types_pb2.PageRun(extent_id=1, generations=[7], slot_count=each) for each in (0, 2)]
    assert named(without).recycled(extents.get) == []


def test_nothing_is_told_where_there_is_nothing_to_compare(
    frame: Frame, extents: ExtentTable, named: Named
) -> None:
    """An answer without generations, or an extent without a table, reports no recycled page."""
    without = described(2)
    without.ClearField("generation_table")
    extents.add(without, frame.descriptors)
    elsewhere = types_pb2.PageRun(extent_id=2, slot_indexes=[1], generations=[7])
    assert named([run(0, generations=()), elsewhere]).recycled(extents.get) == []


def test_a_table_that_is_not_as_announced_is_not_used(frame: Frame) -> None:
    """A missing descriptor, a short table and an unsealed one are refused."""
    weak = sealed_memfd(TABLE_BYTES, 0)
    wrong = [
        (described(descriptor_index=2), frame.descriptors),
        (described(size_bytes=TABLE_BYTES - 8), frame.descriptors),
        (described(), [frame.table, weak]),
        (described(), [frame.table, sealed_memfd(8, REQUIRED_SEALS)]),
    ]
    for extent, descriptors in wrong:
        with pytest.raises(UntrustedExtent):
            map_generations(extent, descriptors)
    os.close(weak)
    os.close(wrong[3][1][1])


def test_the_error_names_the_first_page() -> None:
    """The error has the number of recycled pages and the place of the first."""
    error = PageRecycled([PageRef(3, 7), PageRef(3, 8)])
    assert error.pages == (PageRef(3, 7), PageRef(3, 8))
    assert str(error).startswith("2 pages were recycled")
