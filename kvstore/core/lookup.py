"""Finding the cached prefix of a sequence for a lease. Nothing here changes state."""

from kvstore.core.holds import Hold
from kvstore.core.lease import Lease
from kvstore.core.namespace import Namespace
from kvstore.core.node import Position
from kvstore.core.radix import ancestor, path_slots
from kvstore.core.requests import Sequence
from kvstore.core.slots import INDEX_BITS
from kvstore.errors import InvalidField, ParentNotCovered


def page_position(namespace: Namespace, position: int) -> int:
    """Return a position in pages; raises InvalidField unless it is page-aligned."""
    pages, rest = divmod(position, namespace.layout.page_tokens)
    if rest:
        raise InvalidField(field="position", value=position, why="not at a page's start")
    return pages


def base_of(lease: Lease, namespace: Namespace, sequence: Sequence) -> Hold | None:
    """Return the pin or reservation that a sequence names as its base.

    Raises PinNotFound, ReservationNotFound, Tombstoned, or InvalidField where it
    belongs to another namespace.
    """
    base: Hold | None = None
    if sequence.base_pin_id is not None:
        base = lease.pin(sequence.base_pin_id)
    elif sequence.base_reservation_id is not None:
        base = lease.reservation(sequence.base_reservation_id)
    if base is not None and base.namespace is not namespace:
        raise InvalidField(field="base", value=base.hold_id, why="of another namespace")
    return base


def covered_position(namespace: Namespace, base: Hold | None, depth: int) -> Position:
    """Return the place ``depth`` pages along the base's path, or the beginning.

    Raises ParentNotCovered where the base does not reach that far.
    """
    covered = 0 if base is None else base.held_end
    if depth > covered:
        raise ParentNotCovered(page_position=depth, covered=covered)
    if base is None:
        return Position(namespace.index.root, 0)
    return base.position_at(depth)


def longest(lease: Lease, namespace: Namespace, sequence: Sequence, matchable: int) -> Position:
    """Return the end of the longest cached prefix of at most ``matchable`` pages.

    Ends before the first page in an extent that some process of the lease has
    not mapped. Where the base's path was removed, only what is left of it counts.
    """
    base = base_of(lease, namespace, sequence)
    depth = page_position(namespace, sequence.position)
    start = covered_position(namespace, base, depth)
    if base is not None and start.node.detached:
        at = _attached_end(base, namespace)
    else:
        at = namespace.index.descend(start, sequence.tokens, max(matchable - depth, 0))
    if at.depth > matchable:
        at = ancestor(at, matchable)
    return _clip(lease, namespace, at)


def _attached_end(hold: Hold, namespace: Namespace) -> Position:
    """Return the end of what is still in the index of a hold's path."""
    last = hold.anchors[-1]
    if last.node.detached:
        return Position(namespace.index.root, 0)
    return Position(last.node, last.pages)


def _clip(lease: Lease, namespace: Namespace, at: Position) -> Position:
    """Shorten a path to what all processes of the lease have mapped."""
    usable = lease.usable_extents(namespace.arena)
    if len(usable) == len(namespace.arena.extents):
        return at
    for depth, slot in enumerate(path_slots(at)):
        if slot >> INDEX_BITS not in usable:
            return ancestor(at, depth)
    return at
