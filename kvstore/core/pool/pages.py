"""Pages enter and leave an index here, together with the states of their slots.

Every function keeps the invariants: the tree, the slots' states and the policy's order
change together. Each change is recorded as an event. If somebody watches, the event has
the digest of the path. A digest costs a microsecond for each page whose digest no node
remembers; from then on nodes remember it, as they do for the disk. If somebody follows
changes of copies, they are recorded too, by the pages' ids.
"""

from array import array
from collections.abc import Iterable

from kvstore.core.eviction.protocol import Leaf, Victim
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Anchor, AnyCopies, Node, Position
from kvstore.core.index.path_hashes import hashes_to, remember
from kvstore.core.index.radix import end_of_path, subtree, trim
from kvstore.core.index.removal import work_of
from kvstore.core.index.usage import begin_pages, inherit_uses
from kvstore.core.journal.records import NO_PAGE
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.copy_changes import has_whole_pages, note_copies_removed, note_node_removed
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.values.change_log import NO_PARENT, CopiesStored
from kvstore.core.values.event_log import Cause, PagesChange, PagesEvent
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.requests import NO_HINT, Hint, Removed
from kvstore.core.values.slots import (
    CACHED,
    INDEX_BITS,
    INDEX_MASK,
    RESERVED,
    Slots,
    SlotState,
)

EVENT_DIGEST_BYTES = 16

# A named tuple's constructor costs a Python frame: with it an eviction takes 8 % longer.
_new_tuple = tuple.__new__


def note_pages(
    namespace: Namespace,
    change: PagesChange,
    cause: Cause,
    node: Node,
    end: int,
    pages: int,
    tier: int,
) -> None:
    """Records a change of the last ``pages`` of a node's pages through ``end``, done or imminent.

    They may begin in a node above. All of them are in the index, with everything above.
    """
    log, tenant, namespace_id = namespace.events, namespace.tenant, namespace.namespace_id
    depth, digest = node.start + end, b""
    if log.watches and log.is_watched(tenant, namespace_id):
        at = Position(node, end)
        digests = hashes_to(at)
        digest = digests.through(depth)[:EVENT_DIGEST_BYTES]
        remember(at, digests, 0)
    start = depth - pages
    event = (log.now, tenant, namespace_id, change, cause, start, pages, tier, digest)
    log.note(_new_tuple(PagesEvent, event))


def _note_removed(namespace: Namespace, node: Node, cause: Cause) -> None:
    """Records that a node's pages are about to leave the index, whatever their tiers."""
    pages = len(node.slots)
    tier = FIRST if node.copy_count == pages else LOWER
    note_pages(namespace, PagesChange.REMOVED, cause, node, pages, pages, tier)
    if namespace.events.changes is not None:
        note_node_removed(namespace.events.changes, node)


def publish(
    namespace: Namespace,
    at: Position,
    tokens: bytes,
    slots: Slots,
    hint: Hint = NO_HINT,
    *,
    cause: Cause = Cause.INSERTED,
    page_id: int = 0,
) -> tuple[Position, int, int]:
    """Adds reserved ``slots`` as the pages of ``tokens`` after ``at``. RESERVED to CACHED.

    Adds whole pages, or one partial page, none of which is there, as for
    ``RadixIndex.extend``. Supersedes a partial page that the first of them begins with.
    ``hint`` is that of the pages, and ``page_id`` the first one's id: with a journal, they MUST be
    written there already. Without one they get ids if somebody follows changes. Returns the last
    page's end, how many pages were superseded, and how many had been evicted lately.
    """
    superseded = supersede(at, tokens[: namespace.index.width])
    arena, changes, parent_id = namespace.arena, namespace.events.changes, NO_PARENT
    if changes is not None:
        page_id = page_id or changes.take_ids(len(slots))
        # A split moves the page before to another node.
        parent_id = at.page_id
    arena.change(slots, RESERVED, CACHED)
    cut = at.node if at.pages < len(at.node.slots) else None
    end = namespace.index.extend(at, tokens, slots)
    note_pages(namespace, PagesChange.INSERTED, cause, *end, len(slots), arena.tier)
    if changes is not None and has_whole_pages(tokens, namespace.width):
        ids = (range(page_id, page_id + len(slots)),)
        changes.note(CopiesStored(namespace, arena.tier, parent_id, ids, tokens))
    back = 0
    policy, slot_count = namespace.last
    for node, start in _fresh(end, len(slots)):
        # A new node has no uses and no hint, so there is nothing to keep apart.
        if start or hint != NO_HINT:
            begin_pages(node, start, hint)
        if page_id:
            node.add_ids(start, page_id)
            page_id += len(node.slots) - start
        back += policy.come_back(node, start, slot_count)
    if cut is not None:
        # Each hold is now on one part, so either part may merge with its neighbour.
        upper = cut.parent
        assert upper is not None  # the part above the cut
        namespace.index.compact(cut)
        namespace.index.compact(upper)
    return end, superseded, back


def _fresh(end: Position, pages: int) -> list[tuple[Node, int]]:
    """Returns the nodes of the last ``pages`` pages through ``end``, each with its first one."""
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


def begun(at: Position, page: bytes) -> Node | None:
    """Returns the partial page after ``at`` that ``page`` begins with, or None."""
    node = at.node
    return node.children.beginning(page) if at.pages == len(node.slots) else None


def supersede(at: Position, page: bytes) -> int:
    """Removes the partial page after ``at`` that ``page``, about to be published, begins with.

    Returns the number of pages removed. Next tokens within the partial page stay, since the
    fuller page has the same tokens.
    """
    node, partial = at.node, begun(at, page)
    if partial is None:
        return 0
    next_tokens, node.next_tokens = node.next_tokens, None
    remove(partial, Cause.SUPERSEDED)
    node.next_tokens = next_tokens
    return 1


def drop(copies: AnyCopies, keep: int) -> tuple[Slots, int]:
    """Cuts a leaf of a tier down to its first ``keep`` copies.

    Pages without another copy leave the tree. Returns the slots cut off, in their old state,
    and how many pages left.
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
    """Offers the nearest copies above those that went whole to the policy, in their place."""
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
    """Removes ``top`` and everything below it from the index, for a ``cause``.

    Copies that nobody holds go at once (CACHED to FREE). The others are detached and go at
    their last release. A hold that reaches into them gets more anchors on what remains above.
    A named pin that reaches into them ends.
    """
    above = top.parent
    assert above is not None  # the root stays
    namespace = namespace_of(top)
    if namespace.journal is not None and not has_left(top):
        # That a condemned page leaves is written already, with everything below it.
        _write_removal(namespace, top, cause)
    for node in subtree(top):
        _note_removed(namespace, node, cause)
    _end_holds(top)
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


def _end_holds(top: Node) -> None:
    """Ends the holds on pages from ``top`` on that end with them."""
    for hold in dict.fromkeys(a.hold for node in subtree(top) for a in _anchors(node)):
        if hold.pages_leave():
            let_go(hold.anchors)


def _write_removal(namespace: Namespace, top: Node, cause: Cause) -> None:
    """Writes to the journal that ``top`` leaves the index with everything below it.

    The record of a page tells which one it supersedes. A second record does, if that one is held:
    it then may be there for longer than the page.
    """
    is_told = cause is Cause.SUPERSEDED and not any(each.held_pages for each in top.leaves())
    if namespace.journal is not None and not is_told:
        slots = array("Q", [each.slots[0] for each in top.leaves() if each.copy_count])
        generations = array("Q", [_generation(namespace, each) for each in slots])
        page_id = Position(top, 1).page_id
        namespace.journal.detach(namespace.number, page_id, slots, generations)


def _generation(namespace: Namespace, slot: int) -> int:
    return namespace.extents[slot >> INDEX_BITS].generations[slot & INDEX_MASK]


def _anchors(node: Node) -> list[Anchor]:
    return [anchor for copies in node.leaves() for anchor in copies.anchors]


def remove_corrupt(at: Position, most: int) -> Removed:
    """Removes the page that ends at ``at`` and everything below it, as :func:`remove` does.

    With a page of a KV cache group it removes the pages of the path after it: they may have been
    computed on it. Next tokens within the page go too, even if another page begins with the same
    tokens: they may have been computed on this page.

    Condemns the pages instead if their removal is more than ``most`` work, as of ``removal_work``.
    Then nobody finds them from now on, and no recovery does, but they have still to be removed.
    """
    top = at.node
    namespace = namespace_of(top)
    if is_group_page(top.edge):
        end = end_of_path(top)
        return remove(top, Cause.CORRUPT).plus(remove_below(end, most))
    if at.pages > 1:
        namespace.index.split(top, at.pages - 1)
    above, page = top.parent, top.edge[: namespace.width]
    assert above is not None  # the root has no pages
    removed = _remove_or_condemn(top, is_little=work_of(top, most) <= most)
    if above.next_tokens is not None:
        above.next_tokens.forget(top.start, page, NO_CHILDREN.has_begun_by)
        forget_ends(namespace, Position(above, len(above.slots)), page)
    namespace.index.compact(above)
    return removed


def forget_ends(namespace: Namespace, at: Position, page: bytes) -> None:
    """Writes to the journal that the next tokens within ``page``, after ``at``, are dropped."""
    if namespace.journal is not None:
        namespace.journal.end(namespace.number, at.page_id, NO_PAGE, page, None)


def _remove_or_condemn(top: Node, *, is_little: bool) -> Removed:
    """Removes ``top`` and everything below it as corrupt, or condemns it if that is much work."""
    if is_little:
        return remove(top, Cause.CORRUPT)
    namespace = namespace_of(top)
    if namespace.journal is not None:
        _write_removal(namespace, top, Cause.CORRUPT)
    namespace.index.condemn(top)
    return Removed(0, 0)


def remove_below(at: Position, most: int) -> Removed:
    """Removes the pages that continue the path after ``at`` as corrupt. Pages of groups stay.

    Condemns the pages beyond ``most`` work, as :func:`remove_corrupt` does. Costs a few steps for
    each child, however many there are.
    """
    namespace, removed = namespace_of(at.node), Removed(0, 0)
    is_inside = at.pages < len(at.node.slots)
    above = namespace.index.split(at.node, at.pages) if is_inside else at.node
    for child in list(above.children.values()):
        if not is_group_page(child.edge) and child not in namespace.condemned:
            work = work_of(child, most)
            removed = removed.plus(_remove_or_condemn(child, is_little=work <= most))
            most = max(most - work, 0)
    namespace.index.compact(above)
    return removed


def release(anchors: list[Anchor]) -> None:
    """Releases a hold's anchors and merges the nodes that only they kept apart. Empties the list.

    The caller MUST NOT keep a place in the tree.
    """
    if len(anchors) == 1 and anchors[0].other is None:
        # Nearly all holds are like this.
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
    """Drops a hold's anchors and frees the detached pages that only it held. Empties the list."""
    for anchor in anchors:
        for each in (anchor,) if anchor.other is None else (anchor, anchor.other):
            each.leave()
            if each.node.detached:
                _give_back(each.node)
            else:
                each.node.tree.leaf_changed(each.node)
    anchors.clear()


def release_groups(anchors: list[Anchor]) -> None:
    """Releases a hold's anchors on pages of KV cache groups. Empties the list.

    Does as :func:`let_go`, but a page that is still in its policy's order keeps its place there.
    """
    for anchor in anchors:
        copies = anchor.copies
        copies.anchors.discard(anchor)
        node = anchor.node
        if node.detached:
            _give_back(node)
        elif not copies.queued:
            node.tree.leaf_changed(node)
    anchors.clear()


def _give_back(leaf: Node | None) -> None:
    """Frees the unheld copies at the end of a detached path, upward. DETACHED to FREE."""
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


# Python 3.11 takes 0.2 us to look a member up in its enumeration.
EVICTED, REMOVED, COPIES_REMOVED = Cause.EVICTED, PagesChange.REMOVED, PagesChange.COPIES_REMOVED


def nominate(arena: Arena, pages: int) -> list[Victim]:
    """Returns victims of ``pages`` pages. If there are too few, of half as many, and so on."""
    victims: list[Victim] = []
    while pages and not victims:
        victims = arena.policy.nominate(pages)
        pages //= 2
    return victims


def evict(victims: Iterable[Victim]) -> int:
    """Evicts nominated copies, in order. CACHED to FREE.

    A page whose last copy goes leaves the index. Returns how many left. Skips a tier-2 victim
    that has since gained a dependent copy in another tier.
    """
    evicted = 0
    # The nodes that lost pages or children, in order, each once.
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
    # After all are evicted: a merged node is not the victim that was nominated.
    for node in touched:
        namespace_of(node).index.compact(node)
    return evicted


def _evict_node(node: Node, pages: int) -> Node:
    """Evicts a whole node, whose ``pages`` have copies in tier 1 alone; returns the node above.

    Does as :func:`_evict_copies` with fewer steps, since most evictions are of this kind.
    """
    namespace, above = namespace_of(node), node.parent
    assert above is not None  # only the root has none, and it has no pages
    arena = namespace.arena
    note_pages(namespace, REMOVED, EVICTED, node, pages, pages, arena.tier)
    if namespace.events.changes is not None:
        note_copies_removed(namespace.events.changes, node, 0, pages, arena.tier)
    policy, slot_count = namespace.last
    policy.leave(node, pages, slot_count)
    arena.recycle(namespace.index.cut_tail(node, pages), CACHED)
    namespace.counters.evicted_page_count += pages
    inherit_uses(above, node)
    if len(above.children) == above.bare:
        succeed(above, node.last_use)
    return above


def _evict_copies(leaf: Leaf, pages: int) -> int:
    """Evicts a leaf's last copies in a tier; returns how many pages had no other copy."""
    node = leaf.node
    copies, namespace = node.copies_in(leaf.tier), namespace_of(node)
    keep = copies.copy_count - pages
    elsewhere = max(keep, node.copied_pages_beside(leaf.tier))
    leaving = len(node.slots) - elsewhere
    _note_evicted(namespace, leaf, keep, elsewhere)
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


def _note_evicted(namespace: Namespace, leaf: Leaf, keep: int, elsewhere: int) -> None:
    """Records that a leaf's copies after ``keep`` go; its first ``elsewhere`` pages have others."""
    node, tier = leaf.node, leaf.tier
    pages = len(node.slots)
    if elsewhere > keep:
        end = min(elsewhere, leaf.copy_count)
        note_pages(namespace, COPIES_REMOVED, EVICTED, node, end, end - keep, tier)
    if pages > elsewhere:
        note_pages(namespace, REMOVED, EVICTED, node, pages, pages - elsewhere, tier)
    if namespace.events.changes is not None:
        note_copies_removed(namespace.events.changes, node, keep, leaf.copy_count, tier)
