"""The pages that are still there: those whose copies' slots have the generations written."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from kvstore.core.index.node import Node
from kvstore.core.journal.records import PAGES_FORM, PagesRecord
from kvstore.core.pool.placement import FIRST
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Generations, Slots

SLOT_BYTES = 8


class LivePages:
    """Consecutive pages with the same copies, whose ids begin at ``base_id``.

    ``slots`` are those in tier 1, or empty. ``lower`` are those in tier 2, or empty. Once they are
    in the tree, ``tail`` is the node that has the last of them, or one below it, and ``depth`` the
    number of pages above the first. ``cuts`` are ends of pages below which others were detached,
    with the node that each is in.
    """

    __slots__ = (
        *("base_id", "count", "cuts", "depth", "lower", "parent_id", "slots", "tail"),
        "tokens",
    )

    def __init__(self, base_id: int, parent_id: int, count: int, tokens: bytes) -> None:
        self.base_id = base_id
        self.parent_id = parent_id
        self.count = count
        self.tokens = tokens
        self.slots: Slots = array("Q")
        self.lower: Slots = array("Q")
        self.depth = 0
        self.tail: Node | None = None
        self.cuts: list[tuple[int, Node]] = []

    def node_below(self, depth: int) -> Node | None:
        """Returns the node that has the page which ends at ``depth``, or one below it."""
        if not self.cuts:
            return self.tail
        above = [cut for cut in self.cuts if cut[0] >= depth]
        # Of two at one place the later one, since a node may be cut again.
        return min(reversed(above), key=lambda cut: cut[0])[1] if above else self.tail


class LiveCopies:
    """Says which copies are there, and remembers the checksums of those that are.

    ``checksums`` are those of some slots each, in the order of the slots.
    """

    def __init__(self, generations: Mapping[int, Generations]) -> None:
        self.generations = generations
        self.checksums: list[tuple[Slots, array[int]]] = []

    def has(self, slot: int, generation: int) -> bool:
        """Returns True if a slot has a generation."""
        table = self.generations.get(slot >> INDEX_BITS)
        return table is not None and table[slot & INDEX_MASK] == generation

    def has_any(self, record: bytes | memoryview) -> bool:
        """Returns True if a copy is there that the bytes of a record of pages name.

        Costs a quarter of decoding the record. Most records of a ring are of evicted pages.
        """
        count = PAGES_FORM.unpack_from(record)[3]
        end = PAGES_FORM.size + 2 * count * SLOT_BYTES
        numbers = memoryview(record)[PAGES_FORM.size : end].cast("Q").tolist()
        return any(map(self.has, numbers[:count], numbers[count:]))

    def _has_all(self, slots: Slots, generations: "array[int]") -> bool:
        """Returns True if some slots of one extent have these generations.

        Costs a quarter of a look at each.
        """
        # Pairs of (index, extent).
        pairs = array("I", slots.tobytes())
        table = self.generations.get(pairs[1]) if pairs else None
        if table is None or pairs[1::2] != array("I", pairs[1:2]) * len(slots):
            return False
        # The first one twice, so that one slot gives a tuple too.
        found = itemgetter(*pairs[0::2], pairs[0])(table)
        return array("Q", found[:-1]) == generations

    def note(self, record: PagesRecord, places: range) -> Slots:
        """Returns the slots of some pages of a record, which are there."""
        slots = record.slots[places.start : places.stop]
        if record.checksums:
            self.checksums.append((slots, record.checksums[places.start : places.stop]))
        return slots

    def runs(self, record: PagesRecord) -> Iterator[range]:
        """Yields the places of consecutive pages of a record that are there."""
        start, count = 0, len(record.slots)
        if self._has_all(record.slots, record.generations):
            yield range(count)
            return
        for place in range(count):
            if not self.has(record.slots[place], record.generations[place]):
                if place > start:
                    yield range(start, place)
                start = place + 1
        if count > start:
            yield range(start, count)


def runs_of_pages(
    records: Iterable[PagesRecord], live: LiveCopies, width: int, *, one_by_one: bool
) -> list[LivePages]:
    """Returns the pages that are there, by id. A page takes ``width`` bytes of tokens.

    Each stands for itself if ``one_by_one`` is set: its copies in two tiers come from different
    records. A page that stands in two records, since one is a copy of the other, counts once.
    """
    found: dict[int, LivePages] = {}
    for record in records:
        for run in live.runs(record):
            for places in (range(k, k + 1) for k in run) if one_by_one else (run,):
                _add(found, record, places, live, width)
    return sorted(found.values(), key=lambda pages: pages.base_id)


def _add(
    found: dict[int, LivePages], record: PagesRecord, places: range, live: LiveCopies, width: int
) -> None:
    first = record.base_id + places.start
    pages = found.get(first)
    if pages is None:
        parent_id = first - 1 if places.start else record.parent_id
        tokens = record.tokens[places.start * width : places.stop * width]
        pages = found[first] = LivePages(first, parent_id, len(places), tokens)
    slots = live.note(record, places)
    if record.tier == FIRST:
        pages.slots = slots
    else:
        pages.lower = slots
