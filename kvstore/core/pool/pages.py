"""How pages enter and leave an index, their slots' states following.

Every function keeps the laws of ``invariants.py`` whole: the tree, the slots'
states and the policy's order change together.
"""

from collections.abc import Iterable

from kvstore.core.eviction.policy import Leaf, Victim
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.node import Anchor, AnyCopies, Node, Position
from kvstore.core.index.path_hashes import digests_to, remember
from kvstore.core.index.radix import subtree, trim
from kvstore.core.index.usage import begin_pages, inherit_uses
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.values.events import Cause, PagesChange, PagesEvent
from kvstore.core.values.requests import NO_HINT, Hint, Removed
from kvstore.core.values.slots import CACHED, RESERVED, Slots, SlotState

EVENT_DIGEST_BYTES = 16

_new_tuple = tuple.__new__


def note_pages(
    change: PagesChange, cause: Cause, node: Node, end: int, pages: int, tier: int
) -> None:
    """Note what happened, or is about to, to the last ``pages`` of a node's pages through ``end``.

    They may begin in a node above. They are in the index, with all that is above them.
    """
    namespace = namespace_of(node)
    log, tenant, namespace_id = namespace.events, namespace.tenant, namespace.namespace_id
    depth, digest = node.start + end, b""
    if log.watches and log.is_watched(tenant, namespace_id):
        at = Position(node, end)
        digests = digests_to(at)
        digest = digests.through(depth)[:EVENT_DIGEST_BYTES]
        remember(at, digests, 0)
    start = depth - pages
    event = (log.now, tenant, namespace_id, change, cause, start, pages, tier, digest)
    log.note(_new_tuple(PagesEvent, event))


def note_removed(node: Node, cause: Cause) -> None:
    """Note that a node's pages are about to leave the index, whatever tiers they are in."""
    pages = len(node.slots)
    tier = FIRST if node.copy_count == pages else LOWER
    note_pages(PagesChange.REMOVED, cause, node, pages, pages, tier)


def publish(
    namespace: Namespace,
    at: Position,
    tokens: bytes,
    slots: Slots,
    hint: Hint = NO_HINT,
    *,
    cause: Cause = Cause.INSERTED,
) -> tuple[Position, int, int]:
    """Add reserved ``slots`` as the pages of ``tokens`` after ``at``. RESERVED to CACHED.

    Whole pages, or one partial page; as for ``RadixIndex.extend``, none of them is
    there. A partial page that the first of them begins with is superseded. ``hint``
    is what is expected of the pages. Returns the last page's end, how many pages were
    superseded, and how many had been evicted lately.
    """
    superseded = supersede(at, tokens[: namespace.index.width])
    arena = namespace.arena
    arena.change(slots, RESERVED, CACHED)
    cut = at.node if at.pages < len(at.node.slots) else None
    end = namespace.index.extend(at, tokens, slots)
    note_pages(PagesChange.INSERTED, cause, *end, len(slots), arena.tier)
    back = 0
    policy, slot_count = namespace.last
    for node, start in _fresh(end, len(slots)):
        begin_pages(node, start, hint)
        back += policy.come_back(node, start, slot_count)
    if cut is not None:
        # Holds went to one part or the other, so that each may be one with its neighbour.
        upper = cut.parent
        assert upper is not None  # the part above the cut
        namespace.index.compact(cut)
        namespace.index.compact(upper)
    return end, superseded, back


def _fresh(end: Position, pages: int) -> list[tuple[Node, int]]:
    """Return the nodes that the last ``pages`` pages through ``end`` are in, and from where on."""
    node = end.node
    if pages <= len(node.slots):
        return [(node, len(node.slots) - pages)]
    found = []
    while True:
        start = max(len(node.slots) - pages, 0)
        found.append((node, start))
        pages -= len(node.slots) - start
        if not pages:
            return found[::-1]
        assert node.parent is not None  # there are as many pages
        node = node.parent


def supersede(at: Position, page: bytes) -> int:
    """Remove the partial page after ``at`` that ``page``, to be published there, begins with.

    Returns the number of pages removed. The next tokens stored within it stay: the
    fuller page has the same tokens.
    """
    node = at.node
    partial = node.children.beginning(page) if at.pages == len(node.slots) else None
    if partial is None:
        return 0
    ends, node.ends = node.ends, None
    remove(partial, Cause.SUPERSEDED)
    node.ends = ends
    return 1


def drop(copies: AnyCopies, keep: int) -> tuple[Slots, int]:
    """Cut a leaf of a tier down to its first ``keep`` copies.

    Pages that have no other copy leave the tree. Returns the slots cut off, in the state that
    they were in, and how many pages left.
    """
    node = copies.node
    if node.lower is None and not node.detached:
        gone = len(node.slots) - keep
        return namespace_of(node).index.cut_tail(node, gone), gone
    slots = copies.cut_copies(keep)
    if slots and not keep:
        copies.emptied()
    gone = len(node.slots) - node.copied_pages
    if gone and node.detached:
        trim(node, node.copied_pages, node.tree.width)
    elif gone:
        namespace_of(node).index.cut_tail(node, gone)
    return slots, gone


def succeed(above: Leaf | None, last_use: int) -> None:
    """Let the nearest copies above those that went whole take their place in the order."""
    while above is not None:
        node = above.node
        node.last_use = max(node.last_use, last_use)
        if above.child_count:
            return
        node.tree.leaf_changed(node)
        if above.copy_count:
            return
        above = above.parent


def remove(top: Node, cause: Cause = Cause.REMOVED) -> Removed:
    """Take ``top`` and everything below it out of the index, for a ``cause``.

    Copies that nobody holds go at once (CACHED to FREE); the others are detached
    and go at their last release. A hold that reaches into them keeps what is
    above by other anchors there; a named pin that does ends altogether.
    """
    above = top.parent
    assert above is not None  # the root stays
    namespace = namespace_of(top)
    for node in subtree(top):
        note_removed(node, cause)
    for hold in dict.fromkeys(a.hold for node in subtree(top) for a in _anchors(node)):
        if hold.pages_leave():
            let_go(hold.anchors)
    nodes = namespace.index.detach(top)
    end = Position(above, len(above.slots))
    for node in nodes:
        for anchor in _anchors(node):
            if anchor in anchor.hold.anchors:
                anchor.hold.stand_above(anchor, end)
    given_back, kept = 0, 0
    for node in reversed(nodes):
        for copies in node.leaves():
            keep = copies.copy_count if copies.child_count else copies.held_pages
            slots, gone = drop(copies, keep)
            given_back += gone
            arena = namespace.arena_in(copies.tier)
            arena.recycle(slots, CACHED)
            arena.change(copies.copied(), CACHED, SlotState.DETACHED)
        kept += len(node.slots)
    namespace.detached_page_count += kept
    last_use = max(node.last_use for node in nodes)
    for copies in above.leaves():
        succeed(copies, last_use)
    return Removed(given_back, kept)


def _anchors(node: Node) -> list[Anchor]:
    return [anchor for copies in node.leaves() for anchor in copies.anchors]


def remove_corrupt(at: Position) -> Removed:
    """Take the page that ends at ``at`` and all below it out of the index, as :func:`remove` does.

    Next tokens within the page go too, also where another page begins with the same
    tokens: they may have been computed on this one.
    """
    top = at.node
    namespace = namespace_of(top)
    if at.pages > 1:
        namespace.index.split(top, at.pages - 1)
    above, page = top.parent, top.edge[: namespace.width]
    assert above is not None  # the root has no pages
    removed = remove(top, Cause.CORRUPT)
    if above.ends is not None:
        above.ends.forget(top.start, page, NO_CHILDREN.has_begun_by)
    namespace.index.compact(above)
    return removed


def release(anchors: list[Anchor]) -> None:
    """Let go of a hold's anchors, and merge what they alone had told apart. Empties the list.

    Whoever calls it has no place in the tree in mind.
    """
    if len(anchors) == 1 and anchors[0].other is None:
        # As nearly all are.
        [anchor] = anchors
        node = anchor.node
        anchor.leave()
        if node.detached:
            _give_back(node)
        else:
            node.tree.leaf_changed(node)
            namespace_of(node).index.compact(node)
        anchors.clear()
        return
    nodes = [anchor.node for anchor in anchors]
    nodes += [anchor.other.node for anchor in anchors if anchor.other is not None]
    let_go(anchors)
    for node in nodes:
        namespace_of(node).index.compact(node)


def let_go(anchors: list[Anchor]) -> None:
    """Drop a hold's anchors; detached pages that nobody holds any more go. Empties the list."""
    for anchor in anchors:
        for each in (anchor,) if anchor.other is None else (anchor, anchor.other):
            each.leave()
            if each.node.detached:
                _give_back(each.node)
            else:
                each.node.tree.leaf_changed(each.node)
    anchors.clear()


def _give_back(leaf: Node | None) -> None:
    """Free the unheld copies at the end of a detached path, upward. DETACHED to FREE."""
    while leaf is not None:
        namespace, emptied = namespace_of(leaf), False
        for copies in leaf.leaves():
            if not copies.child_count:
                slots, gone = drop(copies, copies.held_pages)
                namespace.arena_in(copies.tier).recycle(slots, SlotState.DETACHED)
                namespace.detached_page_count -= gone
                emptied = emptied or not copies.copy_count
        if not emptied:
            break
        leaf = leaf.parent


# Python 3.11 looks a member up in 0.2 us each time that it is asked of its enumeration.
EVICTED, REMOVED, COPIES_REMOVED = Cause.EVICTED, PagesChange.REMOVED, PagesChange.COPIES_REMOVED


def nominate(arena: Arena, pages: int) -> list[Victim]:
    """Returns victims of ``pages`` pages; if there are too few, of half as many, and so on."""
    victims: list[Victim] = []
    while pages and not victims:
        victims = arena.policy.nominate(pages)
        pages //= 2
    return victims


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
