"""Reclaim an extent: its pages leave the index, its slots empty, its processes unmap it.

An extent never changes tenant. A retiring extent gives out no slots, and no page in it can
be matched, so no new hold uses it and it empties in time. Pages that nobody holds go at
once. Held pages are detached and go at their last release. Pages that a reservation still
publishes into it are detached at once. Once every slot is FREE, the processes that were
given the extent have to unmap it. It can be destroyed when none of them may have it mapped.
"""

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import path_slots
from kvstore.core.journal.rows import Table
from kvstore.core.pool.arena import Arena, extent_row
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.values.event_log import Cause
from kvstore.core.values.requests import Removed
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState


@dataclass(order=True, slots=True)
class Loss:
    """The cost of retiring an extent, least first: a wait for holders, pages, recent use."""

    is_held: bool
    page_count: int
    last_use: int
    extent_id: int


class Reclaiming:
    """Takes extents out of use, and drops those that no process has mapped any more."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def retire_extent(self, arena_id: int, extent_id: int) -> Removed:
        """Retires an extent: it gives out no more slots, and its pages leave the index.

        Pages that continue them leave too, and every named pin that reaches into it ends. Costs a
        look at every page of the arena.
        """
        arena = self._state.arenas[arena_id]
        if self._state.journal is not None:
            row = extent_row(arena, arena.extents[extent_id], retiring=True)
            self._state.journal.put(Table.EXTENTS, extent_id, row)
        arena.withdraw(extent_id)
        evicted, detached = 0, 0
        for namespace in self._namespaces_of(arena):
            tops = [
                _cut(*each) for each in _first_pages(namespace.index.root, {extent_id}, arena.tier)
            ]
            removed = self._state.remove_pages(namespace, tops, Cause.RETIRED)
            evicted += removed.evicted_page_count
            detached += removed.detached_page_count
        return Removed(evicted, detached)

    def expel(self, at: Position) -> None:
        """Removes pages of retiring extents on the path to ``at``, which was just published."""
        namespace = namespace_of(at.node)
        arena = namespace.arena
        path: list[Node] = []
        node: Node | None = at.node
        while node is not None:
            path.append(node)
            node = node.parent
        for each in reversed(path):
            first = _first_page(_slots(each, arena.tier), arena.retiring)
            if first is not None:
                self._state.remove_pages(namespace, [_cut(each, first)], Cause.RETIRED)
                return

    def cheapest_extent(self, arena_id: int, among: Collection[int]) -> int | None:
        """Returns which of some lasting extents of an arena costs least to retire.

        Returns None if each of them has a page under a named pin. Costs a look at every page of the
        arena.
        """
        arena, namespaces = (
            self._state.arenas[arena_id],
            self._namespaces_of(self._state.arenas[arena_id]),
        )
        pins = [pin for each in namespaces for pin in self._state.named_pins.of(each).values()]
        ends = [Position(anchor.node, anchor.pages) for pin in pins for anchor in pin.anchors]
        pinned = {slot >> INDEX_BITS for at in ends for slot in path_slots(at, arena.tier)}
        losses = {each: _loss_by_state(arena, each) for each in among if each not in pinned}
        if not losses:
            return None
        for namespace in namespaces:
            _add_losses(namespace.index.root, losses, arena.tier)
        return min(losses.values()).extent_id

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

    def _namespaces_of(self, arena: Arena) -> list[Namespace]:
        return [each for each in self._state.namespaces.values() if arena in each.arenas()]


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


def _first_pages(root: Node, extent_ids: set[int], tier: int) -> Iterator[tuple[Node, int]]:
    """Yields the topmost pages of some extents: none of theirs is above, all others below."""
    stack = [root]
    while stack:
        node = stack.pop()
        first = _first_page(_slots(node, tier), extent_ids)
        if first is None:
            stack.extend(node.children.values())
        else:
            yield node, first


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


def _add_losses(root: Node, losses: dict[int, Loss], tier: int) -> None:
    """Adds to each extent's loss the pages that would leave with it, and if they are held."""
    stack: list[tuple[Node, tuple[Loss, ...]]] = [(root, ())]
    while stack:
        node, above = stack.pop()
        slots, held = _slots(node, tier), max(each.held_pages for each in node.leaves())
        for loss in above:
            loss.page_count += len(node.slots)
            loss.is_held = loss.is_held or held > 0
            loss.last_use = max(loss.last_use, node.last_use)
        here = above
        for extent_id in losses.keys() & {slot >> INDEX_BITS for slot in slots}:
            fresh = losses[extent_id]
            if fresh not in above:
                first = _owners(slots).index(extent_id)
                fresh.page_count += len(node.slots) - first
                fresh.is_held = fresh.is_held or held > first
                fresh.last_use = max(fresh.last_use, node.last_use)
                here = (*here, fresh)
        stack.extend((child, here) for child in node.children.values())
