"""How pages enter and leave an index, their slots' states following.

Every function keeps the laws of ``invariants.py`` whole: the tree, the slots'
states and the policy's order change together.
"""

from collections.abc import Iterable

from kvstore.core.children import Children
from kvstore.core.eviction import Victim
from kvstore.core.hints import NO_HINT, Hint
from kvstore.core.merging import compact
from kvstore.core.named_pin import NamedPin
from kvstore.core.namespace import Namespace
from kvstore.core.node import Anchor, Node, Position
from kvstore.core.radix import subtree, trim
from kvstore.core.requests import Removed
from kvstore.core.slots import Slots, SlotState
from kvstore.core.steps import begin_pages, inherit_uses


def publish(
    namespace: Namespace, at: Position, tokens: bytes, slots: Slots, hint: Hint = NO_HINT
) -> tuple[Position, int, int]:
    """Add reserved ``slots`` as the pages of ``tokens`` after ``at``. RESERVED to CACHED.

    Whole pages, or one partial page; as for ``RadixIndex.extend``, none of them is
    there. A partial page that the first of them begins with is superseded. ``hint``
    is what is expected of the pages. Returns the last page's end, how many pages were
    superseded, and how many had been evicted lately.
    """
    superseded = supersede(at, tokens[: namespace.index.width])
    arena = namespace.arena
    arena.change(slots, SlotState.RESERVED, SlotState.CACHED)
    cut = at.node if at.pages < len(at.node.slots) else None
    end = namespace.index.extend(at, tokens, slots)
    back = 0
    for node, start in _fresh(end, len(slots)):
        begin_pages(node, start, hint)
        back += arena.policy.come_back(node, start, arena.slot_count)
    if cut is not None:
        # Holds went to one part or the other, so that each may be one with its neighbour.
        upper = cut.parent
        assert upper is not None  # the part above the cut
        compact(cut)
        compact(upper)
    return end, superseded, back


def _fresh(end: Position, pages: int) -> list[tuple[Node, int]]:
    """Return the nodes that the last ``pages`` pages through ``end`` are in, and from where on."""
    found = []
    node = end.node
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
    remove(partial)
    node.ends = ends
    return 1


def evict(victims: Iterable[Victim]) -> int:
    """Carry out nominations in their order and return the pages evicted. CACHED to FREE."""
    evicted = 0
    bereaved: list[Node] = []
    for leaf, pages in victims:
        node = leaf.node
        namespace = node.namespace
        namespace.arena.policy.leave(leaf, pages, namespace.arena.slot_count)
        namespace.arena.recycle(namespace.index.cut_tail(node, pages), SlotState.CACHED)
        namespace.counters.evicted_page_count += pages
        evicted += pages
        if node.slots:
            namespace.arena.policy.offer(node)
        else:
            bereaved.append(_inherit(node))
    # Not before all are out: what is merged is no victim that was nominated any more.
    for parent in bereaved:
        compact(parent)
    return evicted


def _inherit(gone: Node) -> Node:
    """Let the parent of a node that was evicted whole take its place in the order; return it."""
    parent = gone.parent
    assert parent is not None  # only the root has none, and it has no pages
    inherit_uses(parent, gone)
    offer_leaf(parent)
    return parent


def offer_leaf(node: Node) -> None:
    """Offer ``node`` to its arena's policy if it is a leaf."""
    if node.is_leaf:
        node.namespace.arena.policy.offer(node)


def remove(top: Node) -> Removed:
    """Take ``top`` and everything below it out of the index.

    Pages that nobody holds go at once (CACHED to FREE); the others are detached
    and go at their last release. A hold that reaches into them keeps what is
    above by another anchor there; a named pin that does ends altogether.
    """
    above = top.parent
    assert above is not None  # the root stays
    namespace = top.namespace
    anchors = [anchor for node in subtree(top) for anchor in node.anchors]
    for anchor in anchors:
        if isinstance(anchor.hold, NamedPin):
            anchor.hold.namespace.drop_named_pin(anchor.hold)
            let_go(anchor.hold.anchors)
    nodes = namespace.index.detach(top)
    for node in nodes:
        for anchor in node.anchors:
            if above.parent is not None:
                anchor.hold.anchors.append(Anchor(anchor.hold, above, len(above.slots)))
    given_back, kept = 0, 0
    for node in reversed(nodes):
        keep = len(node.slots) if node.children else node.held_pages
        slots = trim(node, keep, namespace.index.width)
        namespace.arena.recycle(slots, SlotState.CACHED)
        namespace.arena.change(node.slots, SlotState.CACHED, SlotState.DETACHED)
        given_back += len(slots)
        kept += keep
    namespace.detached_page_count += kept
    above.last_use = max(above.last_use, *(node.last_use for node in nodes))
    offer_leaf(above)
    return Removed(given_back, kept)


def remove_corrupt(at: Position) -> Removed:
    """Take the page that ends at ``at`` and all below it out of the index, as :func:`remove` does.

    Next tokens within the page go too, also where another page begins with the same
    tokens: they may have been computed on this one.
    """
    top, width = at.node, at.node.namespace.index.width
    if at.pages > 1:
        top.namespace.index.split(top, at.pages - 1)
    above, page = top.parent, top.edge[:width]
    assert above is not None  # the root has no pages
    removed = remove(top)
    if above.ends is not None:
        above.ends.forget(top.start, page, Children())
    compact(above)
    return removed


def end_named_pin(pin: NamedPin) -> None:
    """Take a named pin out of its namespace's table and let go of its path."""
    pin.namespace.drop_named_pin(pin)
    release(pin.anchors)


def release(anchors: list[Anchor]) -> None:
    """Let go of a hold's anchors, and merge what they alone had told apart. Empties the list.

    Whoever calls it has no place in the tree in mind.
    """
    nodes = [anchor.node for anchor in anchors]
    let_go(anchors)
    for node in nodes:
        compact(node)


def let_go(anchors: list[Anchor]) -> None:
    """Drop a hold's anchors; detached pages that nobody holds any more go. Empties the list."""
    for anchor in anchors:
        anchor.node.anchors.discard(anchor)
        if anchor.node.detached:
            _give_back(anchor.node)
        else:
            offer_leaf(anchor.node)
    anchors.clear()


def _give_back(leaf: Node | None) -> None:
    """Free the unheld tail of a detached path, upward from its end. DETACHED to FREE."""
    while leaf is not None and not leaf.children:
        namespace = leaf.namespace
        slots = trim(leaf, leaf.held_pages, namespace.index.width)
        namespace.arena.recycle(slots, SlotState.DETACHED)
        namespace.detached_page_count -= len(slots)
        if leaf.slots:
            break
        leaf = leaf.parent
