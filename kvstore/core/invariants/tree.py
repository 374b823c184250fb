"""The invariants of trees, of their copies in the tiers, and of prefills in flight."""

from itertools import pairwise

from kvstore.core.cache_state import CacheState
from kvstore.core.index.condemned import key_of
from kvstore.core.index.node import Node, Position
from kvstore.core.index.protocol import Index
from kvstore.core.index.radix import continuation, subtree
from kvstore.core.invariants.invariant import invariant
from kvstore.core.leases.holds import Reservation
from kvstore.core.leases.lease import LeaseState
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.group_pages import group_marker, group_of, is_group_page


def check_tree(index: Index) -> None:
    """Raises ``InvariantBroken`` unless every invariant of an index holds."""
    nodes = list(subtree(index.root))[1:]
    invariant({n.number for n in nodes} == set(index.nodes), "only nodes of the tree are listed")
    for node in nodes:
        parent = node.parent
        invariant(parent is not None, "a page is cached only if its parent is", node.number)
        assert parent is not None
        key = key_of(node, index.width)
        invariant(
            parent.children.get(key) is node, "a child stands under its first page", node.number
        )
        invariant(
            node.start == parent.start + len(parent.slots),
            "a node starts where its parent ends",
            node.number,
        )
        invariant(bool(node.slots), "a node has pages", node.number)
        whole = len(node.edge) == len(node.slots) * index.width
        partial = 0 < len(node.edge) < index.width and len(node.slots) == 1
        invariant(whole or partial, "an edge has its pages' tokens", node.number)
        invariant(whole or not node.children, "nothing continues a partial page", node.number)
        _check_group(node, parent, index.width)
        invariant(not node.detached, "a page in the index is not detached", node.number)
        _check_copies(node, parent)
    for node in (index.root, *nodes):
        _check_siblings(node)
        _check_ends(index, node)
        check_counts(node)
    pages = sum(len(node.slots) for node in nodes)
    invariant(pages == index.page_count, "the index counts its pages", pages, index.page_count)


def _check_group(node: Node, parent: Node, width: int) -> None:
    """Raises ``InvariantBroken`` unless a page of a KV cache group is a leaf below a path."""
    pages = range(0, len(node.edge), width)
    marked = [start for start in pages if is_group_page(node.edge[start:])]
    if not marked:
        return
    invariant(len(node.slots) == 1, "a group's page is a node of its own", node.number)
    invariant(not node.children, "nothing continues a group's page", node.number)
    invariant(bool(parent.slots), "a group's page belongs to a page of a path", node.number)
    same = group_marker(group_of(node.edge), width) == node.edge
    invariant(same, "a group's page has its group's marker", node.number)


def _check_copies(node: Node, parent: Node) -> None:
    for copies in node.leaves():
        invariant(copies.copy_count > 0 or copies is node, "tier 2's copies are some", node.number)
        there = all(copies.copied()) and not any(copies.slots[copies.copy_count :])
        invariant(there, "a node's copies in a tier are of its first pages", node.number)
        invariant(len(copies.slots) == len(node.slots), "tiers have the same pages", node.number)
    cached = node.copied_pages == len(node.slots)
    invariant(cached, "a cached page has a copy in some tier", node.number)
    if node.lower is not None:
        whole = parent.parent is None or parent.lower_count == len(parent.slots)
        invariant(whole, "a page is in tier 2 only if its parent is", node.number)


def check_counts(node: Node) -> None:
    """Raises ``InvariantBroken`` unless a node knows in which tiers its children have copies."""
    children = node.children.values()
    bare = sum(not any(each.copy_count for each in subtree(child)) for child in children)
    invariant(bare == node.bare, "children without copies in tier 1 are counted", node.number)
    if node.lower is not None:
        below = sum(child.lower is not None for child in children)
        invariant(
            below == node.lower.below, "children with copies in tier 2 are counted", node.number
        )


def check_joined(index: Index) -> None:
    """Raises ``InvariantBroken`` if two nodes could be one."""
    for node in index.nodes.values() if index.joins_nodes else ():
        invariant(continuation(node) is None, "two nodes are not where one would do", node.number)


def _check_siblings(parent: Node) -> None:
    keys = sorted(parent.children)
    invariant(
        parent.children.begun_by(b"") == [parent.children[key] for key in keys],
        "siblings stand in order",
        parent.number,
    )
    for before, after in pairwise(keys):
        invariant(not after.startswith(before), "no page begins with a sibling", parent.number)


def _check_ends(index: Index, node: Node) -> None:
    for depth, tail in node.next_tokens or ():
        first = node.start + 1 if node.parent else 0
        here = first <= depth <= node.start + len(node.slots)
        invariant(here, "an end stands on its last whole page", node.number, depth)
        at = Position(node, depth - node.start)
        cached = not tail or index.beginning_with(at, tail) is not None
        invariant(cached and bool(tail or depth), "an end's tokens are cached", node.number, depth)


def check_prefills(state: CacheState) -> None:
    """Raises ``InvariantBroken`` unless every invariant of prefills holds."""
    announced = {
        each.prefill: each
        for tenant in state.table.tenants
        for lease in state.table.holders(tenant)
        if lease.state is LeaseState.ACTIVE
        for each in lease.reservations.values()
        if each.prefill is not None
    }
    sizes = dict.fromkeys(state.table.tenants, 0)
    for namespace in state.namespaces.values():
        _check_order(namespace)
        for prefill in namespace.prefills:
            reservation = announced.pop(prefill, None)
            open_there = reservation is not None and reservation.namespace is namespace
            invariant(open_there, "a prefill is of an open reservation of a lease that lives")
            assert reservation is not None  # the invariant's
            _check_extent(reservation)
            sizes[namespace.tenant] += len(prefill.tokens)
    invariant(not announced, "what a reservation announced is found in its namespace")
    for name, tenant in state.table.tenants.items():
        counted = tenant.announced_bytes == sizes[name]
        invariant(counted, "a tenant's announced tokens are counted", name)
        within = sizes[name] <= state.limits.max_announced_bytes
        invariant(within, "a tenant's announced tokens are bounded", name)


def _check_order(namespace: Namespace) -> None:
    width = namespace.index.width
    for (page, tokens), there in namespace.prefills.by_page.items():
        start = page * width
        stands = bool(there) and all(
            each.at == page and each.tokens[start : start + width] == tokens for each in there
        )
        invariant(stands, "a prefill stands at the page that it inserts next", page)
        ordered = all((a.tokens, a.number) < (b.tokens, b.number) for a, b in pairwise(there))
        invariant(ordered, "the prefills of a page stand in the order of their tokens", page)


def _check_extent(reservation: Reservation) -> None:
    prefill, width = reservation.prefill, reservation.namespace.index.width
    assert prefill is not None  # the caller found it
    invariant(
        prefill.at == reservation.whole_end, "a prefill is as far as its reservation", prefill.at
    )
    last = min(reservation.start_page + len(reservation.reserved), len(prefill.tokens) // width)
    invariant(prefill.at < prefill.end <= last, "a prefill is of pages that have slots and tokens")
    known = reservation.tokens()
    as_said = prefill.tokens.startswith(known) and len(known) in (0, prefill.at * width)
    invariant(as_said, "what was inserted is what was announced", prefill.at)
