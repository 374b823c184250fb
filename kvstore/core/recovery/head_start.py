"""A recovery that begins while the cache is still at work, and is completed once it ended.

The beginning takes what is written so far, with copies of the generations, and builds the trees:
nearly all of a recovery's time. The completion reads the generations anew, and changes the trees
as the pages did meanwhile. It then takes the same steps as any recovery.

The two moments differ, and what is written was read while it changed. So the completion compares
all that it builds on. Wherever it is not sure, it declines, and a recovery from nothing decides.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from kvstore.core.index.node import Position
from kvstore.core.journal.records import NO_PAGE
from kvstore.core.journal.rows import HoldRow, NamespaceRow
from kvstore.core.leases.holds import Pin
from kvstore.core.pool.pages import let_go, release_groups
from kvstore.core.recovery.holds import caught_up
from kvstore.core.recovery.pages import LivePages
from kvstore.core.recovery.recover import MakeCache, Recovered, Recovery, free_the_rest
from kvstore.core.recovery.tree import TreeRecovery
from kvstore.core.recovery.written import JournalContents, Sorted
from kvstore.core.values.slots import (
    FREE,
    INDEX_BITS,
    INDEX_MASK,
    Generations,
)

# Generations that are compared by one step.
_STEP = 512


class Declined(Exception):
    """A head start cannot be completed; the message says why. Nothing was written."""


class HeadStart:
    """The trees of a cache that is still at work, as they were at one moment.

    ``page_count`` is the number of pages in them.
    """

    def __init__(
        self,
        written: JournalContents,
        generations: Mapping[int, Generations],
        make: MakeCache,
        now: float,
    ) -> None:
        """Builds the trees. Writes nothing.

        The records MUST be read before the rows of holds, and those before ``generations``. So
        every hold that kept a removed page is there, and every eviction before the last record is
        seen. ``make`` is that of ``recover``. Raises ValueError or KeyError if what was read does
        not fit together: then it may be begun again.
        """
        self._before = {each: array("Q", table) for each, table in generations.items()}
        copies = {each: array("Q", table) for each, table in self._before.items()}
        self._recovery = recovery = Recovery(Sorted(written, copies), make(), now)
        self._trees: dict[int, _Tree] = {}
        self._unfit = _unfit(recovery.written)
        if self._unfit:
            return
        rows = recovery.written.namespaces
        pages = {row.number: recovery.pages_of(row) for row in rows}
        recovery.mark_pages(chain.from_iterable(pages.values()))
        recovery.restore_memory()
        guarded = _held_pages(recovery.written)
        for row in rows:
            tree = recovery.restore_namespace(row)
            records = recovery.written.of_namespace[row.number]
            guards = _Guards(tree)
            guards.wait_for(guarded.get(row.number, {}))
            tree.build(pages[row.number], records.pages, records.detached)
            tree.stop_waiting()
            self._trees[row.number] = _Tree(tree, guards, pages[row.number])
        recovery.restore_uses()
        known = {slot for each in chain.from_iterable(pages.values()) for slot in each.slots}
        # Slots of pages that found no place in a tree.
        self._given_back = [slot for slot in known if self._state(slot) == FREE]

    @property
    def page_count(self) -> int:
        """The number of pages in the trees."""
        return sum(each.tree.namespace.index.page_count for each in self._trees.values())

    def complete(
        self,
        written: JournalContents,
        generations: Mapping[int, Generations],
        make: MakeCache,
        now: float,
    ) -> Recovered:
        """Returns what ``recover`` would, from what is written now that the cache has ended.

        The first ``known_count`` records of ``written`` are those that the head start knew and
        that are still there. Page stores are those of ``make``, since they were not open before.
        Once only. Raises :class:`Declined`.
        """
        recovery = self._recovery
        after = Sorted(written, generations)
        self._require_fit(after, generations)
        held = _held_pages(after)
        moved = self._moved(generations)
        for number, each in self._trees.items():
            each.guards.change(held.get(number, {}))
            ids = each.id_of_slot
            each.prune(ids[slot] for slot in moved if slot in ids and self._state(slot) != FREE)
        # From here on as in any recovery, with the pages that came since.
        recovery.written, recovery.now = after, now
        recovery.disk = make().state.disk
        copies = {each: array("Q", table) for each, table in generations.items()}
        pages = {
            row.number: self._trees[row.number].fresh(recovery.pages_of(row))
            for row in after.namespaces
        }
        self._require_free(chain.from_iterable(pages.values()))
        recovery.restore_leases()
        recovery.mark_pages(chain.from_iterable(pages.values()))
        recovery.mark_reservations()
        for extent_id, extent in recovery.extents.items():
            extent.generations = copies[extent_id]
            free_the_rest(extent)
        for arena in recovery.cache.arenas.values():
            arena.count_anew()
        for row in after.namespaces:
            tree, guards = self._trees[row.number].tree, self._trees[row.number].guards
            recovery.restore_holds(tree, row)
            tree.place_at(guards.places)
            guards.change({})
            try:
                recovery.build(tree, row, pages[row.number])
            except ValueError as error:
                raise Declined(str(error)) from error
        self._use(sorted(chain.from_iterable(pages.values()), key=lambda each: each.base_id))
        recovery.use_pins()
        recovery.finish()
        for extent_id, extent in recovery.extents.items():
            changed, extent.generations = extent.generations, generations[extent_id]
            for index in extent.available:
                extent.generations[index] = changed[index]
        return recovery.result()

    def _require_fit(self, after: Sorted, generations: Mapping[int, Generations]) -> None:
        """Raises Declined unless the trees are a beginning of what is written now."""
        before = self._recovery.written
        unfit = self._unfit or _unfit(after)
        if unfit:
            raise Declined(unfit)
        if before.extents != after.extents or self._before.keys() != generations.keys():
            raise Declined("the extents changed")
        if before.namespaces != after.namespaces:
            raise Declined("the namespaces changed")
        if before.missing_numbers & after.numbers:
            raise Declined("an insert was completed meanwhile")
        for slot in self._given_back:
            index = slot & INDEX_MASK
            extent_id = slot >> INDEX_BITS
            if generations[extent_id][index] == self._before[extent_id][index]:
                raise Declined("a page has no place in the tree")

    def _require_free(self, pages: Iterable[LivePages]) -> None:
        """Raises Declined if another page has the slot of one that came since."""
        if any(self._state(slot) != FREE for each in pages for slot in each.slots):
            raise Declined("a slot has two pages")

    def _use(self, pages: Iterable[LivePages]) -> None:
        """Makes pages that came since the most recently used, in their order."""
        state = self._recovery.cache.state
        for each in pages:
            node = each.tail
            if node is not None and node.slots and not node.detached:
                state.touch(Position(node, len(node.slots)))
                node.tree.leaf_changed(node)

    def _state(self, slot: int) -> int:
        return self._recovery.extents[slot >> INDEX_BITS].states[slot & INDEX_MASK]

    def _moved(self, generations: Mapping[int, Generations]) -> list[int]:
        """Returns the slots that have other generations than before."""
        return [
            extent_id << INDEX_BITS | index
            for extent_id, before in self._before.items()
            for index in _changed(before, array("Q", generations[extent_id]))
        ]


class _Tree:
    """The tree of a namespace, with the ids of all pages that it was built from."""

    def __init__(self, tree: TreeRecovery, guards: "_Guards", pages: Iterable[LivePages]) -> None:
        self.tree = tree
        self.guards = guards
        self.id_of_slot: dict[int, int] = {}
        # The page above each first page of some.
        self._parents: dict[int, int] = {}
        self._last_id = NO_PAGE
        for each in pages:
            ids = range(each.base_id, each.base_id + each.count)
            self._parents[each.base_id] = each.parent_id
            self._last_id = max(self._last_id, ids[-1])
            self.id_of_slot.update(zip(each.slots, ids, strict=True))
        self._ids = set(self.id_of_slot.values())

    def prune(self, page_ids: Iterable[int]) -> None:
        """Removes pages that were evicted, and all below them. Raises Declined if one is held."""
        gone = set(page_ids)
        for page_id in sorted(gone):
            if self._parents.get(page_id, page_id - 1) in gone:
                continue
            if self.tree.take_out(page_id):
                raise Declined("an evicted page is held")
            at = self.tree.find(page_id)
            if at is not None:
                raise Declined("a removed page was evicted")

    def fresh(self, pages: Iterable[LivePages]) -> list[LivePages]:
        """Returns the pages that came since. The cleaner's copies of known ones are none."""
        found = []
        for each in pages:
            ids = range(each.base_id, each.base_id + each.count)
            if self._ids.issuperset(ids):
                continue
            if each.base_id <= self._last_id:
                raise Declined("an older page is new")
            found.append(each)
        return found


class _Guards:
    """Holds of nobody on pages that leases hold, so that those stay while the tree changes.

    ``change`` and ``wait_for`` get the last pages of holds by id, and the tier of a group's page or
    zero.
    """

    def __init__(self, tree: TreeRecovery) -> None:
        self._tree = tree
        self._pins: dict[int, Pin] = {}

    def wait_for(self, page_ids: Mapping[int, int]) -> None:
        """Takes the holds as soon as their pages are in the tree."""
        for page_id, tier in page_ids.items():
            self._tree.wait_for(page_id, partial(self._hold, page_id, tier))

    def change(self, page_ids: Mapping[int, int]) -> None:
        """Holds other pages. Raises Declined if one is new that was removed before.

        Frees the removed pages that nobody holds any more.
        """
        for page_id, tier in page_ids.items():
            at = None if page_id in self._pins else self._tree.find(page_id)
            if at is not None:
                if at.node.detached:
                    raise Declined("a removed page is held anew")
                self._hold(page_id, tier, at)
        for page_id in self._pins.keys() - page_ids.keys():
            pin = self._pins.pop(page_id)
            let_go(pin.anchors)
            release_groups(pin.group_anchors)

    def places(self, page_id: int) -> list[Position]:
        """Returns where a hold on a page stands, which is nowhere if the page is not there."""
        pin = self._pins.get(page_id)
        anchors = () if pin is None else (*pin.anchors, *pin.group_anchors)
        return [Position(each.node, each.pages) for each in anchors]

    def _hold(self, page_id: int, tier: int, at: Position) -> None:
        namespace = self._tree.namespace
        pin = Pin(0, namespace, Position(namespace.index.root, 0), None, 0.0)
        self._pins[page_id] = pin
        if tier:
            pin.hold_pages([(at.node, tier)])
        else:
            pin.stand_at(at)


def _held_pages(written: Sorted) -> dict[int, dict[int, int]]:
    """Returns the last pages of all holds by namespace, as guards get them."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for hold in written.holds:
        found[hold.namespace].update(_pages_of_hold(hold))
    for record in written.reservations:
        inserts = written.inserts[record.lease, record.reservation_id]
        found[record.namespace][caught_up(record, inserts).end_id] = 0
    for pin in written.named_pins:
        found[pin.namespace][pin.page_id] = 0
    for pages in found.values():
        pages.pop(NO_PAGE, None)
    return found


def _pages_of_hold(hold: HoldRow) -> Iterator[tuple[int, int]]:
    yield hold.page_id, 0
    yield from hold.group_pages


def _unfit(written: Sorted) -> str:
    """Returns why a store's trees cannot be built ahead, or ""."""
    rows: list[NamespaceRow] = written.namespaces
    if any(len(row.arena_ids) > 1 for row in rows):
        return "pages move between two memory tiers"
    if any(row.deleted for row in rows):
        return "a namespace is deleted"
    return ""


def _changed(before: "array[int]", after: "array[int]") -> Iterator[int]:
    """Yields the slots of an extent whose generations differ."""
    for start in range(0, len(after), _STEP):
        end = min(start + _STEP, len(after))
        if after[start:end] != before[start:end]:
            yield from (k for k in range(start, end) if after[k] != before[k])
