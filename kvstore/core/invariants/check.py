"""The check of a whole cache: every invariant, one sentence each, from scratch.

A check costs as much as the cache is large. It is for tests and for a debug mode. A broken
invariant is a bug of the store and never a caller's fault.
"""

from collections import Counter
from collections.abc import Iterator

from kvstore.core.cache import PrefixCache
from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Anchor, Node
from kvstore.core.index.radix import subtree
from kvstore.core.invariants.invariant import invariant
from kvstore.core.invariants.tiers import check_disk, check_moves
from kvstore.core.invariants.tree import check_counts, check_joined, check_prefills, check_tree
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import namespace_of
from kvstore.core.pool.placement import FIRST
from kvstore.core.pool.tenant import Tenant
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.tiers.group_reads import GroupRead
from kvstore.core.values.counters import Counters
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, SlotState


class Invariants:
    """The invariants of one cache, for many checks. Remembers numbers that may only grow."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._generations: dict[int, list[int]] = {}
        self._withdrawn: dict[int, set[int]] = {}

    def check(self) -> None:
        """Raises :class:`InvariantBroken`, which names the invariant, unless all of them hold."""
        holds = list(_holds(self._cache))
        for namespace in self._cache.namespaces.values():
            check_tree(namespace.index)
        _check_anchors(self._cache, holds)
        _check_named_pins(self._cache)
        _check_detached(self._cache, holds)
        for arena in self._cache.arenas.values():
            _check_states(self._cache, arena, holds)
            self._check_generations(arena)
            _check_reach(self._cache, arena)
            self._check_retiring(arena)
        _check_condemned(self._cache.state)
        check_moves(self._cache)
        check_disk(self._cache)
        check_prefills(self._cache.state)
        _check_counters(self._cache)
        _check_leases(self._cache)
        _check_tenants(self._cache.state)
        _check_mappings(self._cache)
        for namespace in self._cache.namespaces.values():
            check_joined(namespace.index)

    def _check_generations(self, arena: Arena) -> None:
        for extent in arena.extents.values():
            before = self._generations.get(extent.extent_id, [0] * extent.slot_count)
            now = list(extent.generations)
            grown = all(a <= b for a, b in zip(before, now, strict=True))
            invariant(grown, "a generation only grows")
            self._generations[extent.extent_id] = now

    def _check_retiring(self, arena: Arena) -> None:
        invariant(arena.emptying <= arena.retiring, "only a retiring extent is emptied")
        for extent_id in arena.retiring:
            extent = arena.extents[extent_id]
            cached = extent.states.count(SlotState.CACHED)
            invariant(
                cached == 0 or extent_id in arena.emptying,
                "no page of a retired extent is in the index",
                extent_id,
                cached,
            )
            kept = self._withdrawn.get(extent_id, set()) <= set(extent.available)
            invariant(kept, "a retiring extent hands out no slot", extent_id)
            self._withdrawn[extent_id] = set(extent.available)


def _holders(state: CacheState) -> list[Lease]:
    table = state.table
    return [*table.leases.values(), *(each.lease for each in table.ending)]


def _holds(cache: PrefixCache) -> Iterator[Hold]:
    yield from cache.moves
    yield from cache.disk_writes
    yield from cache.disk_reads
    yield from cache.group_reads
    for lease in _holders(cache.state):
        yield from lease.pins.values()
        yield from lease.reservations.values()
    for namespace in cache.namespaces.values():
        yield from cache.state.named_pins.of(namespace).values()


def _check_anchors(cache: PrefixCache, holds: list[Hold]) -> None:
    standing = {id(anchor) for hold in holds for anchor in _every_anchor(hold)}
    for hold in holds:
        ends = [anchor.end for anchor in hold.anchors]
        invariant(ends == sorted(ends, reverse=True), "a hold's anchors go upward", hold.hold_id)
        for anchor in _every_anchor(hold):
            invariant(
                0 < anchor.pages <= anchor.copies.copy_count,
                "a held page is not recycled",
                hold.hold_id,
            )
            invariant(anchor in anchor.copies.anchors, "a node knows its anchors", hold.hold_id)
        attached = [anchor for anchor in hold.anchors if not anchor.node.detached]
        invariant(attached in ([], hold.anchors[-1:]), "one anchor at most is in the index")
        slots = hold.slots()
        whole = len(slots) == hold.held_end and all(slots)
        invariant(whole, "a held path is whole", hold.hold_id)
    for namespace in cache.namespaces.values():
        for node in subtree(namespace.index.root):
            anchors = [anchor for copies in node.leaves() for anchor in copies.anchors]
            gone = [anchor for anchor in anchors if id(anchor) not in standing]
            invariant(not gone, "a lease that is gone owns nothing", node.number)


def _every_anchor(hold: Hold) -> Iterator[Anchor]:
    for anchor in hold.anchors:
        yield anchor
        if anchor.other is not None:
            below = anchor.other.end < anchor.end and anchor.other.tier != anchor.tier
            invariant(below, "a hold's other anchor is above, in the other tier", hold.hold_id)
            yield anchor.other
    for anchor in hold.group_anchors:
        of_group = anchor.pages == 1 and is_group_page(anchor.node.edge)
        invariant(of_group, "a hold of a group's page is on such a page", hold.hold_id)
        invariant(anchor.other is None, "a group's page is held in one tier", hold.hold_id)
        yield anchor


def _check_named_pins(cache: PrefixCache) -> None:
    for namespace in cache.namespaces.values():
        for name, pin in cache.state.named_pins.of(namespace).items():
            known = pin.name == name and pin.namespace is namespace
            invariant(known, "a named pin stands under its name", name)
            attached = len(pin.anchors) == 1 and not pin.anchors[0].node.detached
            invariant(attached, "a named pin holds pages of the index", name)


def _detached_nodes(holds: list[Hold]) -> list[Node]:
    tops: dict[int, Node] = {}
    for hold in holds:
        for anchor in (*hold.anchors, *hold.group_anchors):
            node = anchor.node
            while node.parent is not None:
                node = node.parent
            if node.detached:
                tops[id(node)] = node
    return [node for top in tops.values() for node in subtree(top)]


def _owned(cache: PrefixCache, arena: Arena, holds: list[Hold]) -> Iterator[tuple[int, SlotState]]:
    """Yields every slot that something owns, with the state that it should have."""
    for namespace in cache.namespaces.values():
        for node in subtree(namespace.index.root):
            yield from ((slot, SlotState.CACHED) for slot in _copies(node, arena))
    for node in _detached_nodes(holds):
        yield from ((slot, SlotState.DETACHED) for slot in _copies(node, arena))
    yield from ((slot, SlotState.MOVING) for slot in _targets(cache, arena))
    for lease in _holders(cache.state):
        for reservation in lease.reservations.values():
            if reservation.namespace.arena is arena:
                yield from ((slot, lease.slot_state) for slot in reservation.unpublished())
    for extent in arena.extents.values():
        base = extent.extent_id << INDEX_BITS
        yield from ((base | index, SlotState.FREE) for index in extent.available)


def _targets(cache: PrefixCache, arena: Arena) -> Iterator[int]:
    for move in cache.moves:
        if move.namespace.arena_in(move.tier) is arena:
            yield from (each.target for each in move.transfers)
    reads: list[DiskRead | GroupRead] = [*cache.disk_reads, *cache.group_reads]
    for read in reads:
        if read.namespace.arena is arena:
            yield from read.targets


def _copies(node: Node, arena: Arena) -> Iterator[int]:
    for copies in node.leaves():
        if namespace_of(node).arena_in(copies.tier) is arena:
            yield from copies.copied()


def _check_states(cache: PrefixCache, arena: Arena, holds: list[Hold]) -> None:
    owned = list(_owned(cache, arena, holds))
    expected = dict(owned)
    total = sum(extent.slot_count for extent in arena.extents.values())
    invariant(len(expected) == len(owned), "every slot is in exactly one state")
    every = len(expected) == total == arena.slot_count
    invariant(every, "every slot is in some state", len(expected), total)
    for slot, state in expected.items():
        actual = arena.extents[slot >> INDEX_BITS].states[slot & INDEX_MASK]
        invariant(actual == state, "a slot's state is what owns it", slot, actual, state)
    counts = Counter(expected.values())
    invariant(
        all(arena.counts[state] == counts[state] for state in SlotState),
        "the states sum to the slots of the arena",
        arena.counts,
    )


def _check_detached(cache: PrefixCache, holds: list[Hold]) -> None:
    nodes = _detached_nodes(holds)
    for node in nodes:
        for copies in node.leaves():
            held = copies.child_count > 0 or copies.held_pages == copies.copy_count
            invariant(held, "a detached page is held", node.number)
        check_counts(node)
    namespaces = [*cache.namespaces.values(), *cache.state.leaving]
    for namespace in namespaces:
        count = sum(len(node.slots) for node in nodes if node.tree is namespace)
        invariant(count == namespace.detached_page_count, "detached pages are counted")
    known = all(node.tree in namespaces for node in nodes)
    invariant(known, "a detached page's namespace is known")


def _check_condemned(state: CacheState) -> None:
    for namespace in state.namespaces.values():
        there = [each for each in namespace.condemned if not each.detached]
        known = namespace in state.condemned or not there
        invariant(known, "condemned pages are to be removed", namespace.number)
        nodes = namespace.index.nodes
        listed = all(nodes.get(each.number) is each for each in there)
        invariant(listed, "a condemned page is in the index", namespace.number)


def _check_reach(cache: PrefixCache, arena: Arena) -> None:
    for namespace in cache.namespaces.values():
        if namespace.arena is arena:
            for node in namespace.index.nodes.values():
                for leaf in node.leaves():
                    evictable = leaf.is_leaf and leaf.held_pages < leaf.copy_count
                    invariant(
                        bool(leaf.queued) or not evictable,
                        "no page is beyond eviction",
                        node.number,
                    )


def _check_counters(cache: PrefixCache) -> None:
    by_namespace, by_lease = Counters(), cache.state.ended.copy()
    for each in (
        *cache.state.deleted.values(),
        *(each.counters for each in cache.namespaces.values()),
    ):
        by_namespace.add(each)
    for lease in cache.table.leases.values():
        by_lease.add(lease.counters)
    invariant(by_namespace == cache.counters, "sums over namespaces equal the totals")
    removed = sum(cache.state.removed_pages.values())
    invariant(removed == cache.counters.removed_page_count, "what was removed has a cause")
    # An operator, the mover or the disk caused these, and no lease did.
    for name in ("removed", "demoted", "promoted", "loaded"):
        setattr(by_lease, f"{name}_page_count", getattr(cache.counters, f"{name}_page_count"))
    invariant(by_lease == cache.counters, "sums over leases equal the totals")


def _check_leases(cache: PrefixCache) -> None:
    for process_id, process in cache.table.processes.items():
        lease: Lease = process.lease
        invariant(
            cache.table.leases.get((lease.tenant, lease.lease_id)) is lease,
            "a process's lease exists",
        )
        invariant(lease.processes.get(process_id) is process, "a lease knows its processes")
    for lease in cache.table.leases.values():
        for each in lease.reservations.values():
            end = each.start_page + each.inserted - (each.tail_token_count > 0)
            invariant(each.whole_end == end, "a reservation knows its last whole page", end)


def _check_tenants(state: CacheState) -> None:
    tenants = state.table.tenants
    for lease in _holders(state):
        known = tenants.get(lease.tenant) is lease.owner
        invariant(known, "a lease's tenant is known")
    for namespace in state.namespaces.values():
        known = tenants.get(namespace.tenant) is namespace.arena.owner
        invariant(known, "a namespace's tenant is known", namespace.number)
    for name, tenant in tenants.items():
        leases = {key[1]: each for key, each in state.table.leases.items() if key[0] == name}
        mine = state.table.leases_of.of(name) == leases
        invariant(mine, "a tenant's leases are found by its name", name)
        namespaces = {key: each for key, each in state.namespaces.items() if each.tenant == name}
        mine = state.namespaces_of.of(name) == namespaces
        invariant(mine, "a tenant's namespaces are found by its name", name)
        arenas = {key: each for key, each in state.arenas.items() if each.tenant == name}
        invariant(
            state.arenas_of.of(name) == arenas, "a tenant's arenas are found by its name", name
        )
        _check_counts(state, tenant)


def _check_counts(state: CacheState, tenant: Tenant) -> None:
    name, quotas = tenant.name, tenant.quotas
    leases = state.table.leases_of.of(name).values()
    namespaces = state.namespaces_of.of(name).values()
    arenas = state.arenas_of.of(name).values()
    had = (len(leases), len(namespaces), len(arenas))
    counted = had == (tenant.lease_count, tenant.namespace_count, tenant.arena_count)
    invariant(counted, "what a tenant has is counted", name, had)
    holders = state.table.holders(name)
    holds = sum(len(each.pins) + len(each.reservations) for each in holders)
    invariant(holds == tenant.hold_count, "a tenant's holds are counted", name)
    pinned = sum(len(pin.group_anchors) for each in holders for pin in each.pins.values())
    inserted = sum(len(r.group_pages) for each in holders for r in each.reservations.values())
    counted = pinned + inserted == tenant.group_page_count
    invariant(counted, "a tenant's held pages of groups are counted", name)
    pins = {each: len(state.named_pins.of(each)) for each in namespaces}
    counted = all(count == each.named_pin_count for each, count in pins.items())
    invariant(counted, "a namespace's named pins are counted", name)
    named = sum(pins.values())
    invariant(named == tenant.named_pin_count, "a tenant's named pins are counted", name)
    within = holds <= quotas.pins and len(leases) <= quotas.leases and named <= quotas.named_pins
    invariant(within, "a tenant has no more than its quotas", name)
    size = sum(each.slot_count * each.slot_bytes for each in arenas if each.tier == FIRST)
    invariant(size == tenant.tier1_bytes, "a tenant's bytes in tier 1 are counted", name)
    if quotas.tier1_bytes is not None:
        within = size <= quotas.tier1_bytes
        invariant(within, "a tenant's arenas are within its bytes", name)


def _check_mappings(cache: PrefixCache) -> None:
    there = {each for arena in cache.arenas.values() for each in arena.extents}
    for process_id in cache.state.mappings.process_ids:
        kept = cache.state.mappings.of(process_id) <= there
        invariant(kept, "an extent that a living process was given is not destroyed", process_id)
    for process_id, process in cache.table.processes.items():
        given = process.mapped <= cache.state.mappings.of(process_id)
        invariant(given, "a process has mapped only what it was given", process_id)
