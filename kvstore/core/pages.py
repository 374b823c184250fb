"""How pages enter and leave an index, their slots' states following.

Every function keeps the laws of ``invariants.py`` whole: the tree, the slots'
states and the policy's order change together.
"""

from kvstore.core.eviction.policy import Leaf
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.node import Anchor, AnyCopies, Node, Position
from kvstore.core.index.radix import subtree, trim
from kvstore.core.index.usage import begin_pages
from kvstore.core.namespace import Namespace, namespace_of
from kvstore.core.page_events import note_pages, note_removed
from kvstore.core.values.events import Cause, PagesChange
from kvstore.core.values.requests import NO_HINT, Hint, Removed
from kvstore.core.values.slots import CACHED, RESERVED, Slots, SlotState


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
