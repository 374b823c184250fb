"""Reclaim an extent: its pages leave the index, its slots empty, its processes unmap it.

An extent never changes tenant. A retiring extent gives out no slots, and no match hands out
a page in it, so it empties in time. Its pages leave the index in parts. Pages that nobody
holds go at once. Held pages are detached and go at their last release. Pages that a reservation
still publishes into it are detached too. Once every slot is FREE, the processes that were
given the extent have to unmap it. It can be destroyed when none of them may have it mapped.
"""

from array import array
from collections.abc import Collection
from dataclasses import dataclass

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import path_slots
from kvstore.core.index.removal import ALL, part_of, work_of
from kvstore.core.journal.rows import Table
from kvstore.core.pool.arena import Arena, extent_row
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.values.event_log import Cause
from kvstore.core.values.requests import Removed
from kvstore.core.values.slots import INDEX_BITS, ExtentSlots, Slots, SlotState


@dataclass(order=True, slots=True)
class Loss:
    """The cost of retiring an extent, least first: a wait for holders, pages, recent use."""

    is_held: bool
    page_count: int
    last_use: int
    extent_id: int


# Pages that are looked at for the work of removing one, and the work of looking at a node.
LOOKED_AT, LOOK_WORK = 32, 8


class Retirement:
    """The removal of a retiring extent's pages, in parts. Between two of them calls may be made.

    Until it is over, pages of the extent are in the index, where no match hands them out.
    ``removed`` counts the pages that left so far.
    """

    def __init__(self, state: CacheState, arena: Arena, extent: ExtentSlots) -> None:
        self.removed = Removed(0, 0)
        self._state = state
        self._arena = arena
        self._extent = extent
        # Nodes that were not looked at. All others have none of its pages.
        self._nodes: list[Node] = []

    def go_on(self, most: int) -> bool:
        """Removes pages of about ``most`` work, as of ``removal_work``. Returns if any is left."""
        while most > 0:
            if not self._nodes:
                if not self._extent.states.count(SlotState.CACHED):
                    self._arena.emptying.discard(self._extent.extent_id)
                    return False
                # Others may have moved pages between nodes that were looked at and others.
                self._nodes = [each.index.root for each in _namespaces_of(self._state, self._arena)]
            most -= self._look(self._nodes.pop(), most)
        return True

    def _look(self, node: Node, most: int) -> int:
        """Removes a node's pages of the extent, or goes on below it. Returns the work."""
        if node.detached or not (node.slots or node.parent is None):
            # It left, or was merged with another.
            return LOOK_WORK
        first = _first_page(_slots(node, self._arena.tier), {self._extent.extent_id})
        if first is None:
            self._nodes.extend(node.children.values())
            return LOOK_WORK + len(node.slots) // LOOKED_AT
        namespace, top = namespace_of(node), _cut(node, first)
        part = part_of(namespace.index, [top], most)
        work = sum(work_of(each) for each in part or [top])
        removed = self._state.remove_pages(namespace, part or [top], Cause.RETIRED)
        self.removed = self.removed.plus(removed)
        if part:
            namespace.index.compact(top)
            while not top.slots and top.parent is not None:
                # It was merged with the node below it.
                top = top.parent
            self._nodes.append(top)
        return LOOK_WORK + work


class Survey:
    """Finds which of some lasting extents of an arena costs least to retire, in parts.

    Calls may be made between two parts. The answer is then of several moments.
    """

    def __init__(self, state: CacheState, arena: Arena, among: Collection[int]) -> None:
        pinned = pinned_extents(state, arena)
        self._tier = arena.tier
        self._losses = {
            each: _loss_by_state(arena, each)
            for each in among
            if each in arena.lasting and each not in pinned
        }
        self._nodes: list[tuple[Node, tuple[Loss, ...]]] = []
        if self._losses:
            self._nodes += [(each.index.root, ()) for each in _namespaces_of(state, arena)]

    @property
    def cheapest(self) -> int | None:
        """The extent, or None if each of them has a page under a named pin."""
        return min(self._losses.values()).extent_id if self._losses else None

    def go_on(self, most: int) -> bool:
        """Looks at some nodes, for about ``most`` work. Returns if any is left."""
        while self._nodes and most > 0:
            node, above = self._nodes.pop()
            if node.detached or not (node.slots or node.parent is None):
                most -= 1
                continue
            here = self._add(node, above)
            self._nodes.extend((child, here) for child in node.children.values())
            most -= LOOK_WORK + len(node.slots) // LOOKED_AT
        return bool(self._nodes)

    def _add(self, node: Node, above: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Adds a node's pages to the loss of each extent that they would leave with.

        ``above`` are those of the pages above. Returns those of the pages below.
        """
        slots = _slots(node, self._tier)
        held = max(each.held_pages for each in node.leaves())
        for loss in above:
            loss.page_count += len(node.slots)
            loss.is_held = loss.is_held or held > 0
            loss.last_use = max(loss.last_use, node.last_use)
        owners = _owners(slots)
        for extent_id in self._losses.keys() & set(owners):
            fresh = self._losses[extent_id]
            if fresh not in above:
                first = owners.index(extent_id)
                fresh.page_count += len(node.slots) - first
                fresh.is_held = fresh.is_held or held > first
                fresh.last_use = max(fresh.last_use, node.last_use)
                above = (*above, fresh)
        return above


class Reclaiming:
    """Takes extents out of use, and drops those that no process has mapped any more."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def retire_extent(self, arena_id: int, extent_id: int) -> Removed:
        """Retires an extent, as :meth:`begin_retirement` does, and removes all its pages."""
        retirement = self.begin_retirement(arena_id, extent_id)
        retirement.go_on(ALL)
        return retirement.removed

    def begin_retirement(self, arena_id: int, extent_id: int) -> Retirement:
        """Retires an extent: it gives out no more slots. Returns what removes its pages.

        Pages that continue them leave too, and every named pin that reaches into it ends.
        """
        arena = self._state.arenas[arena_id]
        extent = arena.extents[extent_id]
        if self._state.journal is not None:
            row = extent_row(arena, extent, retiring=True)
            self._state.journal.put(Table.EXTENTS, extent_id, row)
        arena.withdraw(extent_id)
        return Retirement(self._state, arena, extent)

    def expel(self, at: Position) -> None:
        """Removes pages of retired extents on the path to ``at``, which was just published."""
        namespace = namespace_of(at.node)
        arena = namespace.arena
        # A retirement under way finds what was published meanwhile.
        retired = arena.retiring - arena.emptying
        path: list[Node] = []
        node: Node | None = at.node
        while node is not None and retired:
            path.append(node)
            node = node.parent
        for each in reversed(path):
            first = _first_page(_slots(each, arena.tier), retired)
            if first is not None:
                self._state.remove_pages(namespace, [_cut(each, first)], Cause.RETIRED)
                return

    def survey(self, arena_id: int, among: Collection[int]) -> Survey:
        """Returns what finds which of some lasting extents of an arena costs least to retire."""
        return Survey(self._state, self._state.arenas[arena_id], among)

    def cheapest_extent(self, arena_id: int, among: Collection[int]) -> int | None:
        """Returns which of some lasting extents of an arena costs least to retire.

        Returns None if each of them has a page under a named pin. Costs a look at every page of the
        arena.
        """
        survey = self.survey(arena_id, among)
        survey.go_on(ALL)
        return survey.cheapest

    def has_named_pin(self, arena_id: int, extent_id: int) -> bool:
        """Returns whether a named pin reaches into an extent."""
        return extent_id in pinned_extents(self._state, self._state.arenas[arena_id])

    def emptied_extents(self) -> list[int]:
        """Returns the retiring extents whose slots are all FREE."""
        return [
            each
            for arena in self._state.arenas.values()
            for each in arena.retiring
            if arena.extents[each].is_empty
        ]

    def extents_to_unmap(self, process_id: int) -> list[int]:
        """Returns the extents that a process was given and has to unmap."""
        given = self._state.mappings.of(process_id)
        return [each for each in self.emptied_extents() if each in given]

    def remove_extent(self, extent_id: int) -> bool:
        """Drops a retired extent. Returns False while a slot is in use or a process may map it.

        After True nobody can reach its memory any more.
        """
        for arena in self._state.arenas.values():
            if extent_id in arena.retiring and arena.extents[extent_id].is_empty:
                if self._state.mappings.pids(extent_id):
                    return False
                if self._state.journal is not None:
                    self._state.journal.clear(Table.EXTENTS, extent_id)
                arena.remove_extent(extent_id)
                return True
        return False


def _namespaces_of(state: CacheState, arena: Arena) -> list[Namespace]:
    return [each for each in state.namespaces.values() if arena in each.arenas()]


def pinned_extents(state: CacheState, arena: Arena) -> set[int]:
    """Returns the extents of an arena that have a page under a named pin."""
    namespaces = _namespaces_of(state, arena)
    pins = [pin for each in namespaces for pin in state.named_pins.of(each).values()]
    ends = [Position(anchor.node, anchor.pages) for pin in pins for anchor in pin.anchors]
    return {slot >> INDEX_BITS for at in ends for slot in path_slots(at, arena.tier)}


def _owners(slots: Slots) -> Slots:
    """Returns the extent of each slot, without a Python step for each page."""
    return array("I", slots.tobytes())[1::2]


def _first_page(slots: Slots, extent_ids: set[int]) -> int | None:
    """Returns the number of the first slot that is in one of some extents."""
    owners = _owners(slots)
    return min((owners.index(each) for each in extent_ids if each in owners), default=None)


def _slots(node: Node, tier: int) -> Slots:
    """Returns a node's slots in a tier. The slot of a page without a copy is zero or absent."""
    if tier == node.tier:
        return node.slots
    return array("Q") if node.lower is None else node.lower.slots


def _cut(node: Node, pages: int) -> Node:
    """Returns the node that begins ``pages`` pages into ``node``."""
    if pages:
        namespace_of(node).index.split(node, pages)
    return node


def _loss_by_state(arena: Arena, extent_id: int) -> Loss:
    extent = arena.extents[extent_id]
    idle = (SlotState.FREE, SlotState.CACHED)
    held = sum(extent.states.count(each) for each in idle) < extent.slot_count
    return Loss(held, 0, 0, extent_id)
