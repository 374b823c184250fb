"""The laws of the cache, each one sentence, each checked from scratch.

``check`` costs the whole cache: it is for tests and for a debug mode. A law that
does not hold is a bug of the store and never a caller's fault.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from kvstore.core.arena import Arena
from kvstore.core.cache import PrefixCache
from kvstore.core.counters import Counters
from kvstore.core.holdings import Holdings
from kvstore.core.holds import Hold
from kvstore.core.index import Index
from kvstore.core.lease import Lease, LeaseState
from kvstore.core.merging import continuation
from kvstore.core.node import Node, Position
from kvstore.core.radix import subtree
from kvstore.core.slots import INDEX_BITS, INDEX_MASK, SlotState


class LawBroken(AssertionError):
    """A law of the cache does not hold."""


class Laws:
    """Checks one cache again and again; remembers what may only grow."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._generations: dict[int, list[int]] = {}
        self._withdrawn: dict[int, set[int]] = {}

    def check(self) -> None:
        """Raise :class:`LawBroken`, naming the law, unless every law holds."""
        holds = list(_holds(self._cache))
        for namespace in self._cache.namespaces.values():
            _check_tree(namespace.index)
        _check_anchors(self._cache, holds)
        _check_named_pins(self._cache)
        _check_detached(self._cache, holds)
        for arena in self._cache.arenas.values():
            _check_states(self._cache, arena, holds)
            self._check_generations(arena)
            _check_reach(self._cache, arena)
            self._check_retiring(arena)
        _check_counters(self._cache)
        _check_leases(self._cache)
        _check_holdings(self._cache)
        _check_handouts(self._cache)
        for namespace in self._cache.namespaces.values():
            _check_joined(namespace.index)

    def _check_generations(self, arena: Arena) -> None:
        for extent in arena.extents.values():
            before = self._generations.get(extent.extent_id, [0] * extent.slot_count)
            now = list(extent.generations)
            grown = all(a <= b for a, b in zip(before, now, strict=True))
            _law(grown, "a generation only grows")
            self._generations[extent.extent_id] = now

    def _check_retiring(self, arena: Arena) -> None:
        for extent_id in arena.retiring:
            extent = arena.extents[extent_id]
            cached = extent.states.count(SlotState.CACHED)
            _law(cached == 0, "no page of a retiring extent is in the index", extent_id, cached)
            kept = self._withdrawn.get(extent_id, set()) <= set(extent.available)
            _law(kept, "a retiring extent hands out no slot", extent_id)
            self._withdrawn[extent_id] = set(extent.available)


def _law(holds: bool, sentence: str, *details: object) -> None:  # noqa: FBT001 - reads as a law
    if not holds:
        raise LawBroken(f"{sentence}: {details}" if details else sentence)


def _holds(cache: PrefixCache) -> Iterator[Hold]:
    for lease in cache.table.leases.values():
        yield from lease.pins.values()
        yield from lease.reservations.values()
    for namespace in cache.namespaces.values():
        yield from namespace.named_pins.values()


def _check_tree(index: Index) -> None:
    nodes = list(subtree(index.root))[1:]
    _law({n.number for n in nodes} == set(index.nodes), "only nodes of the tree are listed")
    for node in nodes:
        parent = node.parent
        _law(parent is not None, "a page is cached only if its parent is", node.number)
        assert parent is not None
        key = node.edge[: index.width]
        _law(parent.children.get(key) is node, "a child stands under its first page", node.number)
        _law(
            node.start == parent.start + len(parent.slots),
            "a node starts where its parent ends",
            node.number,
        )
        _law(bool(node.slots), "a node has pages", node.number)
        whole = len(node.edge) == len(node.slots) * index.width
        partial = 0 < len(node.edge) < index.width and len(node.slots) == 1
        _law(whole or partial, "an edge has its pages' tokens", node.number)
        _law(whole or not node.children, "nothing continues a partial page", node.number)
        _law(not node.detached, "a page in the index is not detached", node.number)
    for node in (index.root, *nodes):
        _check_siblings(node)
        _check_ends(index, node)
    pages = sum(len(node.slots) for node in nodes)
    _law(pages == index.page_count, "the index counts its pages", pages, index.page_count)


def _check_joined(index: Index) -> None:
    for node in index.nodes.values() if index.joins_nodes else ():
        _law(continuation(node) is None, "two nodes are not where one would do", node.number)


def _check_siblings(parent: Node) -> None:
    keys = sorted(parent.children)
    _law(
        parent.children.begun_by(b"") == [parent.children[key] for key in keys],
        "siblings stand in order",
        parent.number,
    )
    for before, after in pairwise(keys):
        _law(not after.startswith(before), "no page begins with a sibling", parent.number)


def _check_ends(index: Index, node: Node) -> None:
    for depth, tail in node.ends or ():
        first = node.start + 1 if node.parent else 0
        here = first <= depth <= node.start + len(node.slots)
        _law(here, "an end stands on its last whole page", node.number, depth)
        at = Position(node, depth - node.start)
        cached = not tail or index.beginning_with(at, tail) is not None
        _law(cached and bool(tail or depth), "an end's tokens are cached", node.number, depth)


def _check_anchors(cache: PrefixCache, holds: list[Hold]) -> None:
    standing = {id(anchor) for hold in holds for anchor in hold.anchors}
    for hold in holds:
        ends = [anchor.end for anchor in hold.anchors]
        _law(ends == sorted(ends, reverse=True), "a hold's anchors go upward", hold.hold_id)
        for anchor in hold.anchors:
            _law(
                0 < anchor.pages <= len(anchor.node.slots),
                "a held page is not recycled",
                hold.hold_id,
            )
            _law(anchor in anchor.node.anchors, "a node knows its anchors", hold.hold_id)
        attached = [anchor for anchor in hold.anchors if not anchor.node.detached]
        _law(attached in ([], hold.anchors[-1:]), "one anchor at most is in the index")
        _law(len(hold.slots()) == hold.held_end, "a held path is whole", hold.hold_id)
    for namespace in cache.namespaces.values():
        for node in subtree(namespace.index.root):
            gone = [anchor for anchor in node.anchors if id(anchor) not in standing]
            _law(not gone, "a lease that is gone owns nothing", node.number)


def _check_named_pins(cache: PrefixCache) -> None:
    for namespace in cache.namespaces.values():
        for name, pin in namespace.named_pins.items():
            known = pin.name == name and pin.namespace is namespace
            _law(known, "a named pin stands under its name", name)
            attached = len(pin.anchors) == 1 and not pin.anchors[0].node.detached
            _law(attached, "a named pin holds pages of the index", name)


def _detached_nodes(holds: list[Hold]) -> list[Node]:
    tops: dict[int, Node] = {}
    for hold in holds:
        for anchor in hold.anchors:
            node = anchor.node
            while node.parent is not None:
                node = node.parent
            if node.detached:
                tops[id(node)] = node
    return [node for top in tops.values() for node in subtree(top)]


def _owned(cache: PrefixCache, arena: Arena, holds: list[Hold]) -> Iterator[tuple[int, SlotState]]:
    """Yield every slot that something owns, with the state that this gives it."""
    for namespace in cache.namespaces.values():
        if namespace.arena is arena:
            for node in subtree(namespace.index.root):
                yield from ((slot, SlotState.CACHED) for slot in node.slots)
    for node in _detached_nodes(holds):
        if node.namespace.arena is arena:
            yield from ((slot, SlotState.DETACHED) for slot in node.slots)
    for lease in cache.table.leases.values():
        expired = lease.state is LeaseState.EXPIRED
        state = SlotState.QUARANTINED if expired else SlotState.RESERVED
        for reservation in lease.reservations.values():
            if reservation.namespace.arena is arena:
                yield from ((slot, state) for slot in reservation.unpublished())
    for extent in arena.extents.values():
        base = extent.extent_id << INDEX_BITS
        yield from ((base | index, SlotState.FREE) for index in extent.available)


def _check_states(cache: PrefixCache, arena: Arena, holds: list[Hold]) -> None:
    owned = list(_owned(cache, arena, holds))
    expected = dict(owned)
    total = sum(extent.slot_count for extent in arena.extents.values())
    _law(len(expected) == len(owned), "every slot is in exactly one state")
    _law(len(expected) == total, "every slot is in some state", len(expected), total)
    for slot, state in expected.items():
        actual = arena.extents[slot >> INDEX_BITS].states[slot & INDEX_MASK]
        _law(actual == state, "a slot's state is what owns it", slot, actual, state)
    counts = Counter(expected.values())
    _law(
        all(arena.counts[state] == counts[state] for state in SlotState),
        "the states sum to the slots of the arena",
        arena.counts,
    )


def _check_detached(cache: PrefixCache, holds: list[Hold]) -> None:
    nodes = _detached_nodes(holds)
    for node in nodes:
        held = bool(node.children) or node.held_pages == len(node.slots)
        _law(held, "a detached page is held", node.number)
    for namespace in cache.namespaces.values():
        count = sum(len(node.slots) for node in nodes if node.namespace is namespace)
        _law(count == namespace.detached_page_count, "detached pages are counted")


def _check_reach(cache: PrefixCache, arena: Arena) -> None:
    for namespace in cache.namespaces.values():
        if namespace.arena is arena:
            for node in namespace.index.nodes.values():
                evictable = not node.children and node.held_pages < len(node.slots)
                _law(bool(node.queued) or not evictable, "no page is beyond eviction", node.number)


def _check_counters(cache: PrefixCache) -> None:
    by_namespace, by_lease = Counters(), cache.ended.copy()
    for namespace in cache.namespaces.values():
        by_namespace.add(namespace.counters)
    for lease in cache.table.leases.values():
        by_lease.add(lease.counters)
    _law(by_namespace == cache.counters, "sums over namespaces equal the totals")
    by_lease.removed_page_count = cache.counters.removed_page_count  # an operator's, no lease's
    _law(by_lease == cache.counters, "sums over leases equal the totals")


def _check_leases(cache: PrefixCache) -> None:
    for process_id, process in cache.table.processes.items():
        lease: Lease = process.lease
        _law(
            cache.table.leases.get((lease.tenant, lease.lease_id)) is lease,
            "a process's lease exists",
        )
        _law(lease.processes.get(process_id) is process, "a lease knows its processes")


def _check_holdings(cache: PrefixCache) -> None:
    table = cache.table
    for lease in table.leases.values():
        _law(table.holdings.get(lease.tenant) is lease.holdings, "a lease's tenant has holdings")
    for namespace in cache.namespaces.values():
        known = table.holdings.get(namespace.tenant) is namespace.arena.holdings
        _law(known, "a namespace's tenant has holdings", namespace.number)
    for tenant, holdings in table.holdings.items():
        leases = {key[1]: each for key, each in table.leases.items() if key[0] == tenant}
        _law(holdings.leases == leases, "a tenant's leases are its holdings'", tenant)
        mine = {key: each for key, each in cache.namespaces.items() if each.tenant == tenant}
        _law(holdings.namespaces == mine, "a tenant's namespaces are its holdings'", tenant)
        arenas = {key: each for key, each in cache.arenas.items() if each.tenant == tenant}
        _law(holdings.arenas == arenas, "a tenant's arenas are its holdings'", tenant)
        _check_tallies(holdings)


def _check_tallies(holdings: Holdings) -> None:
    leases = holdings.leases.values()
    holds = sum(len(each.pins) + len(each.reservations) for each in leases)
    _law(holds == holdings.hold_count, "a tenant's holds are counted", holdings.tenant)
    named = sum(len(each.named_pins) for each in holdings.namespaces.values())
    _law(named == holdings.named_pin_count, "a tenant's named pins are counted", holdings.tenant)
    quotas = holdings.quotas
    within = holds <= quotas.pins and len(leases) <= quotas.leases and named <= quotas.named_pins
    _law(within, "a tenant has no more than its quotas", holdings.tenant)
    if quotas.tier1_bytes is not None:
        within = holdings.tier1_bytes <= quotas.tier1_bytes
        _law(within, "a tenant's arenas are within its bytes", holdings.tenant)


def _check_handouts(cache: PrefixCache) -> None:
    there = {each for arena in cache.arenas.values() for each in arena.extents}
    for process_id in cache.handouts.process_ids:
        kept = cache.handouts.of(process_id) <= there
        _law(kept, "an extent that a living process was given is not destroyed", process_id)
    for process_id, process in cache.table.processes.items():
        given = process.mapped <= cache.handouts.of(process_id)
        _law(given, "a process has mapped only what it was given", process_id)
