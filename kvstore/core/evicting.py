"""How nominations are carried out: copies leave a tier, and pages without another the index."""

from collections.abc import Iterable

from kvstore.core.eviction.policy import Leaf, Victim
from kvstore.core.index.node import Node
from kvstore.core.index.usage import inherit_uses
from kvstore.core.namespace import namespace_of
from kvstore.core.page_events import note_pages
from kvstore.core.pages import drop, succeed
from kvstore.core.values.events import Cause, PagesChange
from kvstore.core.values.slots import CACHED

# Python 3.11 looks a member up in 0.2 us each time that it is asked of its enumeration.
EVICTED, REMOVED, COPIES_REMOVED = Cause.EVICTED, PagesChange.REMOVED, PagesChange.COPIES_REMOVED


def evict(victims: Iterable[Victim]) -> int:
    """Carry out nominations in their order. CACHED to FREE.

    Of a page with a copy in another tier only this one goes; returns how many pages had
    none, and left the index. A nomination of tier 2 that another tier's pages stand
    against by now is passed over; in tier 1 there is none.
    """
    evicted = 0
    # Whose pages or children went: in order, each once.
    touched: dict[Node, None] = {}
    for leaf, pages in victims:
        node = leaf.node
        if leaf is node and node.lower is None and not node.children and len(node.slots) == pages:
            evicted += pages
            above = _evict_node(node, pages)
            if above.slots:
                touched[above] = None
            continue
        if not leaf.is_leaf:
            continue
        evicted += _evict_copies(leaf, pages)
        if not node.slots:
            assert node.parent is not None  # only the root has none, and it has no pages
            touched[node.parent] = None
        elif namespace_of(node).lower_arena is not None:
            touched[node] = None
    # Not before all are out: what is merged is no victim that was nominated any more.
    for node in touched:
        namespace_of(node).index.compact(node)
    return evicted


def _evict_node(node: Node, pages: int) -> Node:
    """Evict all of a node, whose ``pages`` have copies in tier 1 alone; return what was above it.

    As :func:`_evict_copies` does, with fewer looks: most evictions are of these.
    """
    namespace, above = namespace_of(node), node.parent
    assert above is not None  # only the root has none, and it has no pages
    arena = namespace.arena
    note_pages(REMOVED, EVICTED, node, pages, pages, arena.tier)
    policy, slot_count = namespace.last
    policy.leave(node, pages, slot_count)
    arena.recycle(namespace.index.cut_tail(node, pages), CACHED)
    namespace.counters.evicted_page_count += pages
    inherit_uses(above, node)
    if len(above.children) == above.bare:
        succeed(above, node.last_use)
    return above


def _evict_copies(leaf: Leaf, pages: int) -> int:
    """Evict a leaf's last copies in a tier; return how many pages had no other."""
    node = leaf.node
    copies, namespace = node.copies_in(leaf.tier), namespace_of(node)
    keep = copies.copy_count - pages
    elsewhere = max(keep, node.copied_pages_beside(leaf.tier))
    leaving = len(node.slots) - elsewhere
    _note_evicted(leaf, keep, elsewhere)
    if leaving > 0:
        policy, slot_count = namespace.last
        policy.leave(leaf, leaving, slot_count)
    slots, gone = drop(copies, keep)
    namespace.arena_in(leaf.tier).recycle(slots, CACHED)
    namespace.counters.evicted_page_count += gone
    if node.slots:
        namespace.leaf_changed(node)
    else:
        assert node.parent is not None  # only the root has none, and it has no pages
        inherit_uses(node.parent, node)
    if not copies.copy_count:
        succeed(leaf.parent, node.last_use)
    return gone


def _note_evicted(leaf: Leaf, keep: int, elsewhere: int) -> None:
    """Note that a leaf's copies after ``keep`` go, of which the first ``elsewhere`` have others."""
    node, tier = leaf.node, leaf.tier
    pages = len(node.slots)
    if elsewhere > keep:
        end = min(elsewhere, leaf.copy_count)
        note_pages(COPIES_REMOVED, EVICTED, node, end, end - keep, tier)
    if pages > elsewhere:
        note_pages(REMOVED, EVICTED, node, pages, pages - elsewhere, tier)
