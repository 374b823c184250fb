"""Pages and runs of pages, by extent and slot."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from struct import unpack_from
from typing import NamedTuple, TypeAlias, overload

from kvstore.v1 import types_pb2

# Bytes of a number in a packed run.
SLOT_INDEX_BYTES = 4
GENERATION_BYTES = 8


# Of slots in a row 8 bytes each, in the order of this machine's; of others a number each.
Generations: TypeAlias = bytes | tuple[int, ...]


class PageRef(NamedTuple):
    """One page's place: slot number ``slot`` of an extent.

    It names the page only while its match or reservation is held.
    """

    extent_id: int
    slot: int


class SlotRun(NamedTuple):
    """Consecutive pages of a sequence in one extent, by their slots.

    ``slots`` is a range if the slots are consecutive too, and a list otherwise.
    """

    extent_id: int
    slots: Sequence[int]


class DatedRun(NamedTuple):
    """A run of slots, and the generations that the store named, if it named any."""

    extent_id: int
    slots: Sequence[int]
    generations: tuple[int, ...] = ()


def slots_of(run: types_pb2.PageRun) -> Sequence[int]:
    """Returns the slots of a run, which has some: a range if the store answered one, or a list."""
    # Older stores do not pack.
    count = len(run.packed_slot_indexes) // SLOT_INDEX_BYTES
    packed = unpack_from(f"<{count}I", run.packed_slot_indexes)
    slots = list(packed) if count else run.slot_indexes[:]
    return range(slots[0], slots[0] + run.slot_count) if run.slot_count else slots


def _first_slot(run: types_pb2.PageRun) -> int:
    packed = run.packed_slot_indexes[:SLOT_INDEX_BYTES]
    return int.from_bytes(packed, "little") if packed else run.slot_indexes[0]


def in_a_row(slots: Sequence[int]) -> bool:
    """Returns whether slots are a range of neighbours."""
    return isinstance(slots, range) and slots.step == 1


def generation_bytes_of(run: types_pb2.PageRun) -> bytes:
    """Returns 8 bytes for the generation of each slot of a run, or none if the store named none."""
    count = len(run.packed_generations) // GENERATION_BYTES
    packed = run.packed_generations[: count * GENERATION_BYTES]
    named = packed or array("Q", run.generations).tobytes()
    one_for_all = run.slot_count and len(named) == GENERATION_BYTES
    return named * run.slot_count if one_for_all else named


def generations_of(run: types_pb2.PageRun) -> tuple[int, ...]:
    """Returns the generation of each slot of a run, or none if the store named none."""
    count = len(run.packed_generations) // GENERATION_BYTES
    packed = unpack_from(f"<{count}Q", run.packed_generations)
    generations = packed if count else tuple(run.generations)
    if run.slot_count and len(generations) == 1:
        return generations * run.slot_count
    return generations


class Pages(Sequence[PageRef]):
    """The pages of ``runs``, in prefix order. Equal to any sequence of the same pages.

    Their number costs nothing. The first access to a page reads all of them from the store's
    answer: 0.2 us a page, several times the rest of a hit with thousands of pages. One thread
    at a time uses it.

    ``cut_off`` is true if packed numbers of a run end within a number. Such an answer cannot be
    trusted.
    """

    __slots__ = ("_count", "_pages", "_runs", "cut_off")

    def __init__(self, runs: Iterable[types_pb2.PageRun] = ()) -> None:
        self._runs: list[types_pb2.PageRun] = []
        self._count = 0
        self.cut_off = False
        for run in runs:
            packed, rest = divmod(len(run.packed_slot_indexes), SLOT_INDEX_BYTES)
            if rest or len(run.packed_generations) % GENERATION_BYTES:
                self.cut_off = True
            named = packed or len(run.slot_indexes)
            if named:
                self._runs.append(run)
                self._count += run.slot_count or named
        self._pages: list[PageRef] | None = None

    @property
    def named(self) -> Sequence[types_pb2.PageRun]:
        """The runs that have slots, as the store named them."""
        return self._runs

    @property
    def runs(self) -> list[SlotRun]:
        """The slots by extent, for a block table, at a tenth of the cost of single pages.

        Consecutive slots cost nothing a page.
        """
        return [SlotRun(run.extent_id, slots_of(run)) for run in self._runs]

    @property
    def dated_runs(self) -> list[DatedRun]:
        """The slots by extent with their generations, for another process that copies them."""
        return [DatedRun(run.extent_id, slots_of(run), generations_of(run)) for run in self._runs]

    def generations(self) -> Iterator[tuple[int, Sequence[int], Generations]]:
        """Yields the extent of each run, its slots and their generations, of which may be none."""
        for run in self._runs:
            slots = slots_of(run)
            named = generation_bytes_of(run) if in_a_row(slots) else generations_of(run)
            yield run.extent_id, slots, named

    @property
    def tiers(self) -> list[int]:
        """The memory tier of each page: 1 or 2. Reads no pages."""
        counts = (run.slot_count or len(slots_of(run)) for run in self._runs)
        # A page without a tier is in the nearest one.
        return [
            tier
            for run, count in zip(self._runs, counts, strict=True)
            for tier in repeat(run.tier or types_pb2.TIER_1, count)
        ]

    def ends(self) -> Iterator[tuple[int, int]]:
        """Yields the extent of each run, and the slot after its last if its slots are a range.

        Yields zero for the slot of a run that lists its slots. Reads no pages.
        """
        for run in self._runs:
            count = run.slot_count
            yield run.extent_id, _first_slot(run) + count if count else 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> PageRef: ...

    @overload
    def __getitem__(self, index: slice) -> list[PageRef]: ...

    def __getitem__(self, index: int | slice) -> PageRef | list[PageRef]:
        return self._all()[index]

    def __iter__(self) -> Iterator[PageRef]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and self._all() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list, which it is equal to

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> list[PageRef]:
        if self._pages is None:
            self._pages = []
            for run in self._runs:
                places = zip(repeat(run.extent_id), slots_of(run), strict=False)
                # What PageRef(...) does, without a frame of Python's for each page.
                self._pages.extend(map(tuple.__new__, repeat(PageRef), places))
        return self._pages
