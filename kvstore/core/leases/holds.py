"""Holds on paths: pins and reservations of a lease.

A hold protects a path by one anchor at its deepest page, since only tails of leaf edges are
evicted. If a match handed out copies of both tiers, a second anchor is at the deepest page
of the other tier. When an operator removes a part of the path, the hold keeps its anchors
on the removed part and gets more on what remains above.
"""

from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.index.node import NO_ANCHORS, Anchor, Node, PageAnchors, Position
from kvstore.core.index.radix import ancestor, path_slots, path_tokens
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import Tiers, end_of_other, slots_in, tier_at
from kvstore.core.pool.prefills import Prefill
from kvstore.core.values.counters import Lookup
from kvstore.core.values.slots import Slots
from kvstore.errors import ParentNotCovered


class Hold:
    """A hold on a path. ``anchors`` are its ends, the deepest first.

    ``number`` counts its lease's holds as they are taken, and is zero before that. ``tiers``
    says which copy of each page is held: the one that was handed out. ``group_anchors`` are on
    pages of KV cache groups, which belong to pages of the path.
    """

    __slots__ = (
        "anchors",
        "group_anchors",
        "hold_id",
        "namespace",
        "number",
        "taken_at",
        "tiers",
    )

    def __init__(self, hold_id: int, namespace: Namespace, now: float, tiers: Tiers = None) -> None:
        self.hold_id = hold_id
        self.tiers = tiers
        self.number = 0
        self.namespace = namespace
        self.taken_at = now
        self.anchors: list[Anchor] = []
        self.group_anchors: list[Anchor] = []

    @property
    def held_end(self) -> int:
        """Pages from the sequence's beginning through the deepest one held."""
        return self.anchors[0].end if self.anchors else 0

    @property
    def covered_end(self) -> int:
        """Whole pages from the beginning that another sequence may continue from."""
        return self.held_end

    @property
    def page_count(self) -> int:
        """The number of pages that its holder uses."""
        return self.held_end

    @property
    def token_count(self) -> int:
        """The number of the sequence's tokens in the pages of its path."""
        return self.held_end * self.namespace.layout.page_tokens

    @property
    def detached_page_count(self) -> int:
        """The number of pages on its path that are out of the index and wait for holds to end."""
        starts = [each.end for each in self.anchors[1:]] + [0]
        ends = zip(self.anchors, starts, strict=False)
        on_path = sum(each.end - start for each, start in ends if each.node.detached)
        return on_path + sum(each.node.detached for each in self.group_anchors)

    def position_at(self, depth: int) -> Position:
        """Returns the place on the held path ``depth`` pages from the beginning.

        It is in the tree, or in a removed part of it, as the path is there. ``depth`` MUST NOT be
        beyond ``held_end``.
        """
        if depth == 0:
            return Position(self.namespace.index.root, 0)
        anchor = next(each for each in reversed(self.anchors) if each.end >= depth)
        return ancestor(Position(anchor.node, anchor.pages), depth)

    def stand_at(self, at: Position, top: int = 0) -> None:
        """Adds the path to ``at`` to the hold, from ``top`` on, the top of ``at``'s tree."""
        if self.tiers is None:
            self.anchors.append(Anchor(self, at.node, at.pages))
            return
        anchor = Anchor(self, at.node, at.pages, tier_at(self.tiers, at.depth))
        self.anchors.append(anchor)
        end = end_of_other(self.tiers, at.depth)
        if end > top:
            node, pages = ancestor(at, end)
            anchor.other = Anchor(self, node, pages, tier_at(self.tiers, end))

    def stand_above(self, anchor: Anchor, above: Position) -> None:
        """Adds what remains above to the hold, after the end of ``anchor``'s path was cut off."""
        other = anchor.other
        if other is not None and other.end <= above.depth:
            other.leave()
            anchor.other = None
        if above.depth:
            self.stand_at(above)

    def hold_pages(self, pages: Iterable[tuple[Node, int]]) -> None:
        """Adds pages of KV cache groups, each in a tier, to the hold."""
        for node, tier in pages:
            copies = node.copies_in(tier)
            if copies.anchors is NO_ANCHORS:
                copies.anchors = PageAnchors()
            self.group_anchors.append(Anchor(self, node, 1, tier))

    def pages_leave(self) -> bool:
        """Returns False: a hold keeps the pages that leave the index until it is released."""
        return False

    def slots(self) -> Slots:
        """Returns all slots of the held path, in prefix order."""
        if len(self.anchors) == 1:
            [anchor] = self.anchors
            at = Position(anchor.node, anchor.pages)
            return path_slots(at) if self.tiers is None else slots_in(self.tiers, at)
        slots = array("Q")
        for anchor in reversed(self.anchors):
            slots.extend(slots_in(self.tiers, Position(anchor.node, anchor.pages), len(slots)))
        return slots

    def slot_at(self, at: Position) -> int:
        """Returns the slot of the held page that ends at ``at``."""
        return at.node.copies_in(tier_at(self.tiers, at.depth)).slots[at.pages - 1]

    def last_slot(self) -> int:
        """Returns the slot of the deepest page held, which MUST exist."""
        return self.slot_at(Position(self.anchors[0].node, self.anchors[0].pages))

    def tokens(self) -> bytes:
        """Returns the token bytes of the held path."""
        width = self.namespace.index.width
        parts = [path_tokens(Position(a.node, a.pages), width) for a in reversed(self.anchors)]
        return b"".join(parts)


def covered_position(namespace: Namespace, base: Hold | None, depth: int) -> Position:
    """Returns the place ``depth`` pages along the base's path, or the beginning.

    Raises ParentNotCovered if the base does not reach that far.
    """
    covered = 0 if base is None else base.covered_end
    if depth > covered:
        raise ParentNotCovered(page_position=depth, covered=covered)
    if base is None:
        return Position(namespace.index.root, 0)
    return base.position_at(depth)


class Unanswered:
    """A match whose answer nobody got yet.

    It has the counts for the time at which somebody does, and the reservation made with it.
    """

    __slots__ = ("lookup", "reservation_id")

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.reservation_id: int | None = None


class HeldGroup(NamedTuple):
    """The pages of a KV cache group that a pin holds: ``page_count`` of them in prefix order."""

    group: int
    start_page: int
    page_count: int


class Pin(Hold):
    """A hold on a matched path. ``fingerprint`` tells a repeated call from a reused id.

    ``source_id``, ``next_token`` and ``groups`` are the other parts of the match's answer. The
    group anchors are those of ``groups``, one after the other. A match without a page to use in
    place has no anchor. ``unanswered`` is set until the answer is given.
    """

    __slots__ = ("fingerprint", "groups", "next_token", "source_id", "unanswered")

    def __init__(
        self,
        hold_id: int,
        namespace: Namespace,
        at: Position,
        fingerprint: object,
        now: float,
        tiers: Tiers = None,
    ) -> None:
        super().__init__(hold_id, namespace, now, tiers)
        self.fingerprint = fingerprint
        self.source_id: int | None = None
        self.next_token: int | None = None
        self.unanswered: Unanswered | None = None
        self.groups: tuple[HeldGroup, ...] = ()
        if at.pages:
            self.stand_at(at)

    @property
    def page_count(self) -> int:
        """The number of pages that its holder uses, those of groups included."""
        return self.held_end + len(self.group_anchors)

    def hold_group(self, group: int, start_page: int, pages: Items[tuple[Node, int]]) -> None:
        """Adds the pages of a group, each in a tier, to the hold."""
        self.groups += (HeldGroup(group, start_page, len(pages)),)
        self.hold_pages(pages)

    def group_slots(self) -> Iterator[tuple[HeldGroup, Slots]]:
        """Yields each group with the slots of its pages."""
        start = 0
        for each in self.groups:
            anchors = self.group_anchors[start : start + each.page_count]
            yield each, array("Q", [anchor.copies.slots[0] for anchor in anchors])
            start += each.page_count


class SourcePin(Hold):
    """A hold on a page to copy from, which ends at its anchor.

    It is off the matched path, so nothing can continue from it. ``valid_token_count`` of the
    page's tokens belong to the matched sequence.
    """

    __slots__ = ("valid_token_count",)

    def __init__(
        self,
        hold_id: int,
        namespace: Namespace,
        at: Position,
        valid_token_count: int,
        now: float,
        tiers: Tiers = None,
    ) -> None:
        super().__init__(hold_id, namespace, now, tiers)
        self.valid_token_count = valid_token_count
        self.stand_at(at)

    @property
    def covered_end(self) -> int:
        """Zero: the path is another sequence's."""
        return 0

    @property
    def page_count(self) -> int:
        """The one page."""
        return 1

    @property
    def token_count(self) -> int:
        """The number of the page's tokens that belong to the sequence."""
        return self.valid_token_count

    @property
    def detached_page_count(self) -> int:
        """One if the page is out of the index."""
        return int(self.anchors[0].node.detached)


class Reservation(Hold):
    """Slots that one worker may write, for pages from ``start_page`` on.

    The first ``inserted`` of them went through an insert. Slot k of those belongs to the index
    if ``published[k]`` is set. Otherwise it is a duplicate, and stays reserved. A later slot with
    ``published[k]`` set moved to another reservation. After an insert the reservation also
    holds the path through its last inserted page. ``tail_token_count`` tokens of that page were
    inserted; zero means all. ``whole_end`` counts whole pages from the sequence's beginning
    through the last one inserted. ``prefill`` is what it announced to others, or None.

    ``group_pages`` are the pages of KV cache groups that went through an insert, by group and
    position, and True for those that were published. The slots of the others are ``duplicates``.
    ``base`` has the ids of the pin and of the reservation that its first insert named as the base,
    or is None before. ``lease_number`` is that of its lease, and ``written_count`` the number of
    slots that it had when a journal last had all of it. ``written_at`` is the place of that record,
    or None.
    """

    __slots__ = (
        "base",
        "duplicates",
        "group_pages",
        "inserted",
        "lease_number",
        "prefill",
        "published",
        "reserved",
        "start_page",
        "tail_token_count",
        "whole_end",
        "written_at",
        "written_count",
    )

    def __init__(self, hold_id: int, namespace: Namespace, start_page: int, now: float) -> None:
        super().__init__(hold_id, namespace, now)
        self.lease_number = 0
        self.written_count = 0
        self.written_at: int | None = None
        self.start_page = start_page
        self.whole_end = start_page
        self.reserved: Slots = array("Q")
        self.published = bytearray()
        self.inserted = 0
        self.tail_token_count = 0
        self.prefill: Prefill | None = None
        self.group_pages: dict[tuple[int, int], bool] = {}
        self.base: tuple[int | None, int | None] | None = None
        self.duplicates: Slots = array("Q")

    @property
    def covered_end(self) -> int:
        """Its ``whole_end``, once it holds its path."""
        return self.whole_end if self.inserted else 0

    @property
    def token_count(self) -> int:
        """The number of tokens through the last one that it inserted."""
        return self.token_end(self.namespace.layout.page_tokens) if self.inserted else 0

    def token_end(self, page_tokens: int) -> int:
        """Returns the tokens from the sequence's beginning through the last one inserted."""
        return self.whole_end * page_tokens + self.tail_token_count

    @property
    def reserved_end(self) -> int:
        """Pages from the sequence's beginning through its last slot."""
        return self.start_page + len(self.reserved)

    @property
    def moved_count(self) -> int:
        """The number of its slots that moved to other reservations."""
        return self.published.count(1, self.inserted)

    @property
    def own_count(self) -> int:
        """The number of slots that are still the reservation's own."""
        return self.published.count(0) + len(self.duplicates)

    def unpublished(self) -> Slots:
        """Returns the slots that are still the reservation's own."""
        pairs = zip(self.reserved, self.published, strict=True)
        own = [slot for slot, published in pairs if not published]
        return array("Q", own) + self.duplicates

    def grow(self, slots: Slots) -> None:
        """Adds slots, first in place of those that moved."""
        taken = 0
        while taken < len(slots):
            place = self.published.find(1, self.inserted)
            if place < 0:
                break
            self.reserved[place] = slots[taken]
            self.published[place] = 0
            taken += 1
        self.reserved.extend(slots[taken:])
        self.published.extend(bytes(len(self.reserved) - len(self.published)))

    def has_at(self, offset: int) -> bool:
        """Returns True if the slot at an offset is its own and went through no insert."""
        return self.inserted <= offset < len(self.reserved) and not self.published[offset]

    def move_out(self, offset: int) -> int:
        """Removes the slot at an offset and returns it, which is another reservation's from now."""
        self.published[offset] = 1
        return self.reserved[offset]

    def drop_prefill(self) -> None:
        """Withdraws the announcement of what it was to compute."""
        if self.prefill is not None:
            self.namespace.prefills.drop(self.prefill)
            self.prefill = None

    def record(
        self,
        published: Iterable[bool],
        at: Position,
        tail_token_count: int = 0,
        tiers: Tiers = None,
    ) -> None:
        """Records that the next pages were inserted, ending at ``at``, and holds the path."""
        self.tail_token_count = tail_token_count
        for flag in published:
            self.published[self.inserted] = flag
            self.inserted += 1
        self.whole_end = self.start_page + self.inserted - (1 if tail_token_count else 0)
        self.tiers = tiers
        # All that it held is in the index, or the insert would have been refused.
        for anchor in self.anchors:
            anchor.leave()
            if anchor.other is not None:
                anchor.other.leave()
        self.anchors.clear()
        self.stand_at(at)
