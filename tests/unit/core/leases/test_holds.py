"""Pins and reservations by themselves; tombstones are in pool/test_tombstones.py."""

from array import array

import pytest

from core.core_builders import make_namespace, node_at, paged, plant
from kvstore.core.index.node import Anchor, Position
from kvstore.core.index.radix import path_slots
from kvstore.core.leases.holds import Hold, Pin, Reservation
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import remove
from kvstore.core.values.slots import Slots


def make_pin(namespace: Namespace, letters: str) -> Pin:
    """Cache ``letters`` and pin them."""
    return Pin(5, namespace, plant(namespace, letters), "fingerprint", 101.0)


def removed_twice() -> tuple[Namespace, Pin, Slots]:
    """Returns a pin on a path of six pages, cut off at its fifth page and then its third."""
    namespace = make_namespace()
    pin = make_pin(namespace, "abcdef")
    slots = pin.slots()
    for letters in ("abcde", "abc"):
        namespace.index.split(node_at(namespace.index, letters), len(letters) - 1)
        remove(node_at(namespace.index, letters))
    return namespace, pin, slots


def test_a_pin_holds_what_it_was_made_on() -> None:
    """A new pin has one anchor, at its place, and knows since when."""
    namespace = make_namespace()
    pin = make_pin(namespace, "abc")
    assert (pin.hold_id, pin.fingerprint, pin.taken_at) == (5, "fingerprint", 101.0)
    assert [anchor.end for anchor in pin.anchors] == [3]
    assert pin.held_end == 3
    assert node_at(namespace.index, "abc").held_pages == 3


def test_a_hold_without_anchors_holds_nothing() -> None:
    """A reservation before its first insert has no path."""
    namespace = make_namespace()
    hold = Hold(1, namespace, 0.0)
    assert hold.held_end == 0
    assert not hold.slots()
    assert hold.tokens() == b""
    assert hold.position_at(0) == Position(namespace.index.root, 0)


def test_every_place_of_a_held_path_can_be_found() -> None:
    """A position on the path is in the node of that page, the deepest and the root included."""
    namespace = make_namespace()
    plant(namespace, "abcd")
    pin = make_pin(namespace, "abxyz")
    plant(namespace, "abxq")
    assert pin.position_at(0) == Position(namespace.index.root, 0)
    for depth in range(1, 6):
        assert pin.position_at(depth).depth == depth
        assert path_slots(pin.position_at(depth)) == pin.slots()[:depth]


def test_a_removed_path_is_held_in_parts() -> None:
    """A pin on a path cut off twice has an anchor on each part, the deepest first."""
    _, pin, _ = removed_twice()
    assert [anchor.end for anchor in pin.anchors] == [6, 4, 2]
    assert [anchor.node.detached for anchor in pin.anchors] == [True, True, False]
    assert pin.held_end == 6


def test_a_removed_path_reads_whole() -> None:
    """Slots and tokens of a path in three parts are those that were pinned, in order."""
    _, pin, slots = removed_twice()
    assert pin.slots() == slots
    assert pin.tokens() == paged("abcdef")


def test_every_place_of_a_removed_path_can_be_found() -> None:
    """A position is in the part that holds its page: attached above, detached below."""
    namespace, pin, slots = removed_twice()
    root = Position(namespace.index.root, 0)
    places = [pin.position_at(depth) for depth in range(7)]
    assert places[0] == root
    assert [at.depth for at in places] == list(range(7))
    assert [at.node.detached for at in places] == [False] * 3 + [True] * 4
    for depth in range(1, 7):
        at = places[depth]
        assert at.node.slots[at.pages - 1] == slots[depth - 1]


def test_what_was_cached_again_is_not_the_held_path() -> None:
    """A path removed and published anew has other slots; the pin keeps the old ones."""
    namespace, pin, slots = removed_twice()
    again = path_slots(plant(namespace, "abcdef"))
    assert again[:2] == slots[:2]
    assert not set(again[2:]) & set(slots)
    assert pin.slots() == slots


def test_a_reservation_owns_what_it_was_given() -> None:
    """All slots of a new reservation are its own, in order, and it may grow."""
    reservation = Reservation(3, make_namespace(), 2, 101.0)
    assert not reservation.unpublished()
    reservation.grow([10, 11])
    reservation.grow(array("Q", [12]))
    reservation.grow([])
    assert list(reservation.reserved) == [10, 11, 12]
    assert list(reservation.unpublished()) == [10, 11, 12]
    assert (reservation.start_page, reservation.whole_end, reservation.held_end) == (2, 2, 0)


def test_an_insert_is_recorded_page_by_page() -> None:
    """Published pages leave the reservation's own slots; duplicates stay its own."""
    namespace = make_namespace()
    reservation = Reservation(3, namespace, 0, 101.0)
    reservation.grow([10, 11, 12, 13])
    reservation.record([False, True, True], plant(namespace, "abc"))
    assert list(reservation.unpublished()) == [10, 13]
    assert list(reservation.published) == [0, 1, 1, 0]
    assert (reservation.inserted, reservation.whole_end) == (3, 3)


def test_growth_after_an_insert_is_unpublished() -> None:
    """Slots that come later are the reservation's own, whatever was published before."""
    namespace = make_namespace()
    reservation = Reservation(3, namespace, 0, 101.0)
    reservation.grow([10])
    reservation.record([True], plant(namespace, "a"))
    reservation.grow([11, 12])
    assert list(reservation.unpublished()) == [11, 12]


def test_an_insert_makes_a_hold_that_moves_with_it() -> None:
    """The first insert anchors the path, later ones anchor it deeper instead."""
    namespace = make_namespace()
    plant(namespace, "ab")
    reservation = Reservation(3, namespace, 1, 101.0)
    reservation.grow([10, 11, 12])
    reservation.record([True], plant(namespace, "ax"))
    assert (reservation.held_end, reservation.whole_end) == (2, 2)
    reservation.record([True, True], plant(namespace, "axyz"))
    (anchor,) = reservation.anchors
    assert not node_at(namespace.index, "ab").anchors
    assert reservation.held_end == reservation.whole_end == 4
    assert set(node_at(namespace.index, "axyz").anchors) == {anchor}


def test_a_hold_needs_no_dictionary() -> None:
    """Holds, of which there are many, have no attributes but their own."""
    pin = make_pin(make_namespace(), "a")
    with pytest.raises(AttributeError):
        pin.color = "red"  # type: ignore[attr-defined]


def test_an_anchor_knows_its_hold() -> None:
    """From a node one finds who holds it."""
    namespace = make_namespace()
    pin = make_pin(namespace, "ab")
    (anchor,) = node_at(namespace.index, "ab").anchors
    assert isinstance(anchor, Anchor)
    assert anchor.hold is pin
