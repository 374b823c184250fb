"""The tree of a namespace, built anew from pages and from what left the index."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from kvstore.core.index.node import Lower, Node, Position
from kvstore.core.index.radix import ancestor, subtree
from kvstore.core.journal.records import NO_PAGE, DetachRecord, EndRecord, PagesRecord
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import remove, supersede
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.recovery.pages import LivePages
from kvstore.core.values.slots import CACHED, Slots

# Puts a hold on a page, as soon as the page is there. Another call adds where the rest of the path
# ends, if the page left the index before.
Placing: TypeAlias = Callable[[Position], None]


class Removal(NamedTuple):
    """A page that left the index before page ``next_id`` was published."""

    next_id: int
    page_id: int


# The id at which it happened, what left before what came, and which of the two.
_Step: TypeAlias = tuple[int, int, Removal | LivePages]


class TreeRecovery:
    """Builds the tree of one namespace, in the order of the pages' ids.

    Ids tell what came first, whatever the order of records: a page is in the tree before those
    that continue it, and leaves it before those that were published afterwards. Holds are placed
    on a page as soon as it is there, so they keep what leaves, as they did then.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._bases: list[int] = []
        self._pages: list[LivePages] = []
        # The pages that are found by way of a node.
        self._by_node: dict[Node, list[LivePages]] = {}
        self._waiting: dict[int, list[Placing]] = {}
        self._waiting_ids: list[int] = []

    def wait_for(self, page_id: int, place: Placing) -> None:
        """Calls ``place`` with the end of a page once it is in the tree."""
        self._waiting.setdefault(page_id, []).append(place)

    def build(
        self,
        pages: Iterable[LivePages],
        records: Iterable[PagesRecord],
        detached: Iterable[DetachRecord],
    ) -> None:
        """Adds pages, by id, and removes what left. May go on with what came later."""
        self._waiting_ids = sorted(self._waiting)
        superseded = [Removal(r.base_id, r.supersedes_id) for r in records if r.supersedes_id]
        left = [Removal(each.next_id, each.page_id) for each in detached]
        steps: list[_Step] = [(each.next_id, 0, each) for each in sorted([*superseded, *left])]
        steps += [(each.base_id, 1, each) for each in pages]
        steps.sort(key=itemgetter(0, 1))
        for _, _, each in steps:
            if isinstance(each, Removal):
                self.take_out(each.page_id)
            else:
                self._add(each)

    def place_at(self, places: Callable[[int], Iterable[Position]]) -> None:
        """Puts the holds on pages that are in the tree already, where ``places`` says.

        A page that was removed has several places: its own, and those where the path above ends.
        """
        for page_id in list(self._waiting):
            found = list(places(page_id))
            if found:
                for place in self._waiting.pop(page_id):
                    for at in found:
                        place(at)

    def stop_waiting(self) -> None:
        """Forgets the holds on pages that are not there."""
        self._waiting.clear()

    def finish(self, ends: Iterable[EndRecord]) -> None:
        """Stores the next tokens, in their order, and joins the nodes that can be one.

        Raises ValueError if a held page is lost.
        """
        if self._waiting:
            raise ValueError(f"{len(self._waiting)} held pages of a namespace are not there")
        for each in ends:
            self._store(each)
        index = self.namespace.index
        for node in list(index.nodes.values()):
            index.compact(node)

    def find(self, page_id: int) -> Position | None:
        """Returns the end of a page, even of one that left and is held, or None."""
        place = bisect_right(self._bases, page_id) - 1
        if place < 0:
            return None
        pages = self._pages[place]
        offset = page_id - pages.base_id
        depth = pages.depth + offset + 1
        node = pages.node_below(depth)
        if offset >= pages.count or node is None:
            return None
        at = ancestor(Position(node, len(node.slots)), depth)
        # It may have left since, and nobody held it.
        return at if at.pages <= len(at.node.slots) and at.page_id == page_id else None

    def _add(self, pages: LivePages) -> None:
        """Adds pages below their parent. Gives them back if that is not there."""
        namespace, index = self.namespace, self.namespace.index
        above: Position | None = Position(index.root, 0)
        if pages.parent_id != NO_PAGE:
            above = self.find(pages.parent_id)
        first = pages.tokens[: index.width]
        if above is None or above.node.detached or self._is_there(above, first):
            self._give_back(pages.slots, FIRST)
            self._give_back(pages.lower, LOWER)
            return
        supersede(above, first)
        pages.depth = above.depth
        if namespace.lower_arena is None:
            pages.tail = self._extend(above, pages)
        else:
            pages.tail = self._hang(above, pages)
        self._bases.append(pages.base_id)
        self._pages.append(pages)
        self._by_node.setdefault(pages.tail, []).append(pages)
        self._place(pages)

    def _is_there(self, above: Position, page: bytes) -> bool:
        """Returns True if a page is cached, or one that begins with it."""
        index = self.namespace.index
        if len(page) < index.width:
            return index.beginning_with(above, page) is not None
        node, pages = above
        if pages == len(node.slots):
            return page in node.children
        return node.edge.startswith(page, pages * index.width)

    def _extend(self, above: Position, pages: LivePages) -> Node:
        """Adds pages in tier 1 alone, whole ones and then perhaps a partial one."""
        index, at, page_id = self.namespace.index, above, pages.base_id
        whole = len(pages.tokens) // index.width
        cut = whole * index.width
        parts = (
            (pages.slots[:whole], pages.tokens[:cut]),
            (pages.slots[whole:], pages.tokens[cut:]),
        )
        for slots, tokens in parts:
            if not slots:
                continue
            at = index.extend(at, tokens, slots)
            node, left = at.node, len(slots)
            while left > 0:
                start = max(len(node.slots) - left, 0)
                left -= len(node.slots) - start
                node.add_ids(start, page_id + left)
                assert node.parent is not None  # the root has no pages
                node = node.parent
            page_id += len(slots)
        return at.node

    def _hang(self, above: Position, pages: LivePages) -> Node:
        """Adds one page with its copies in both tiers, as a node of its own."""
        index = self.namespace.index
        slots = pages.slots or array("Q", bytes(8))
        child = index.hang(above.node, pages.tokens, slots, 0 if pages.slots else 1)
        child.add_ids(0, pages.base_id)
        if not pages.lower:
            return child
        child.lower = Lower(child, pages.lower, 0)
        if child.lower.parent is not None:
            child.lower.parent.below += 1
        return child

    def _place(self, pages: LivePages) -> None:
        """Puts the holds on pages that wait for them."""
        ids = self._waiting_ids
        start = bisect_left(ids, pages.base_id)
        for page_id in ids[start : bisect_left(ids, pages.base_id + pages.count)]:
            at = self.find(page_id)
            assert at is not None  # it was just added
            for place in self._waiting.pop(page_id, ()):
                place(at)

    def take_out(self, page_id: int) -> int:
        """Removes a page with everything below it, if it is still in the index.

        Returns the number of pages that holds keep.
        """
        at = self.find(page_id)
        if at is None or at.node.detached:
            return 0
        if at.pages > 1:
            self.namespace.index.split(at.node, at.pages - 1)
        self._cut_above(at.node)
        return remove(at.node).detached_page_count

    def _cut_above(self, top: Node) -> None:
        """Finds what stays above ``top`` by way of the node there, before ``top`` is detached."""
        above = top.parent
        assert above is not None  # the root has no pages
        for node in subtree(top):
            for pages in self._by_node.get(node, ()):
                if pages.depth < top.start:
                    pages.cuts.append((top.start, above))
                    self._by_node.setdefault(above, []).append(pages)

    def _give_back(self, slots: Slots, tier: int) -> None:
        if slots:
            self.namespace.arena_in(tier).recycle(slots, CACHED)

    def _store(self, end: EndRecord) -> None:
        """Stores a next token if the page is there that it was computed on."""
        root = Position(self.namespace.index.root, 0)
        at = root if end.above_id == NO_PAGE else self.find(end.above_id)
        if at is None or at.node.detached:
            return
        if end.token is None:
            if at.node.next_tokens is not None:
                at.node.next_tokens.forget(at.depth, end.tail, lambda _: False)
            return
        page = self.find(end.page_id)
        if page is not None and not page.node.detached:
            at.store_next_token(end.tail, end.token)
