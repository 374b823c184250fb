"""The laws of trees and holds: each is seen to be broken on a cache damaged on purpose."""

from array import array

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, node_at, paged
from kvstore.core.index.node import Anchor, Node
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.pages import let_go
from kvstore.core.values.requests import NamedPinRequest


def make_world() -> CoreWorld:
    """Returns a world with a small tree, of which nothing is held."""
    world = CoreWorld()
    world.worker.publish("abcd", "abxy", "q")
    world.laws.check()
    return world


def make_removed() -> CoreWorld:
    """Returns a world with a pin on a path whose last pages were removed."""
    world = make_world()
    world.worker.match("abcd", 1)
    world.evict_prefix("abc")
    world.laws.check()
    return world


def broken(world: CoreWorld) -> str:
    """Checks the laws and returns the sentence of the one that does not hold."""
    with pytest.raises(InvariantBroken) as error:
        world.laws.check()
    return str(error.value).split(":")[0]


def at(world: CoreWorld, letters: str) -> Node:
    """Returns the node of the last page of ``letters``."""
    return node_at(world.namespace.index, letters)


def test_an_unlisted_node_breaks_a_law() -> None:
    """A node of the tree that the index does not list is found, and one listed that is none."""
    world = make_world()
    node = world.namespace.index.nodes.pop(at(world, "q").number)
    assert broken(world) == "only nodes of the tree are listed"
    world.namespace.index.nodes[node.number] = node
    world.namespace.index.nodes[99] = node
    assert broken(world) == "only nodes of the tree are listed"


@pytest.mark.parametrize(
    ("letters", "field", "wrong", "law"),
    [
        ("abcd", "parent", None, "a page is cached only if its parent is"),
        ("abcd", "start", 3, "a node starts where its parent ends"),
        ("q", "slots", array("Q"), "a node has pages"),
        ("q", "edge", paged("qz"), "an edge has its pages' tokens"),
        ("q", "detached", True, "a page in the index is not detached"),
    ],
    ids=["no parent", "another start", "no pages", "a longer edge", "removed"],
)
def test_a_node_with_a_wrong_field_breaks_a_law(
    letters: str, field: str, wrong: object, law: str
) -> None:
    """A node that lost its parent or pages, starts elsewhere, or counts as removed is found."""
    world = make_world()
    setattr(at(world, letters), field, wrong)
    assert broken(world) == law


def test_a_stale_parent_breaks_a_law() -> None:
    """A node whose parent is not the one that it stands under is found."""
    world = make_world()
    at(world, "abcd").parent = at(world, "q")
    assert broken(world) == "a child stands under its first page"


def test_a_miscounted_index_breaks_a_law() -> None:
    """An index that counts another number of pages than it has is found."""
    world = make_world()
    world.namespace.index.page_count += 1
    assert broken(world) == "the index counts its pages"


def test_anchors_out_of_order_break_a_law() -> None:
    """A hold whose anchors don't go upward is found."""
    world = make_removed()
    world.worker.lease.pins[1].anchors.reverse()
    assert broken(world) == "a hold's anchors go upward"


def test_an_anchor_unknown_to_its_node_breaks_a_law() -> None:
    """A hold that its node does not know of, so that it protects nothing, is found."""
    world = make_world()
    world.worker.match("abcd", 1)
    anchor = world.worker.lease.pins[1].anchors[0]
    anchor.node.anchors.discard(anchor)
    assert broken(world) == "a node knows its anchors"


@pytest.mark.parametrize("pages", [0, 3])
def test_an_anchor_beyond_its_node_breaks_a_law(pages: int) -> None:
    """A hold on pages that its node does not have is found."""
    world = make_world()
    world.worker.match("abcd", 1)
    world.worker.lease.pins[1].anchors[0].pages = pages
    assert broken(world) == "a held page is not recycled"


def test_two_anchors_in_the_index_break_a_law() -> None:
    """A hold that stands twice in the index is found: one anchor holds all that is above."""
    world = make_world()
    world.worker.match("abcd", 1)
    pin = world.worker.lease.pins[1]
    pin.anchors.append(Anchor(pin, at(world, "ab"), 2))
    assert broken(world) == "one anchor at most is in the index"


def test_a_hold_with_a_gap_breaks_a_law() -> None:
    """A hold on a removed part that lost its anchor above is found."""
    world = make_removed()
    anchor = world.worker.lease.pins[1].anchors.pop()
    anchor.node.anchors.discard(anchor)
    assert broken(world) == "a held path is whole"


def test_an_anchor_of_no_lease_breaks_a_law() -> None:
    """A node held by what no lease has is found: a leaked pin."""
    world = make_world()
    Anchor(Hold(9, world.namespace, 0.0), at(world, "q"), 1)
    assert broken(world) == "a lease that is gone owns nothing"


def test_an_unheld_removed_page_breaks_a_law() -> None:
    """A removed page that stays though no one holds it is found."""
    world = make_removed()
    anchor = world.worker.lease.pins[1].anchors[0]
    anchor.move(anchor.node, anchor.pages - 1)
    assert anchor.node.detached
    assert broken(world) == "a detached page is held"


def test_miscounted_removed_pages_break_a_law() -> None:
    """A namespace that counts another number of detached pages than there are is found."""
    world = make_removed()
    world.namespace.detached_page_count -= 1
    assert broken(world) == "detached pages are counted"


def make_named() -> CoreWorld:
    """Returns a world with a named pin on a small tree."""
    world = make_world()
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("p", paged("abc")), world.now)
    world.laws.check()
    return world


def test_a_named_pin_under_another_name_breaks_a_law() -> None:
    """A named pin that is not the one its name says is found."""
    world = make_named()
    pins = world.cache.state.named_pins.of(world.namespace)
    pins["q"] = pins.pop("p")
    assert broken(world) == "a named pin stands under its name"


def test_a_named_pin_that_holds_nothing_breaks_a_law() -> None:
    """A named pin that let go of its path and still stands in the table is found."""
    world = make_named()
    let_go(world.cache.state.named_pins.of(world.namespace)["p"].anchors)
    assert broken(world) == "a named pin holds pages of the index"


def test_a_named_pin_on_removed_pages_breaks_a_law() -> None:
    """A named pin that outlived the removal of its pages is found."""
    world = make_removed()
    other = make_named()
    named = other.cache.state.named_pins.of(other.namespace)["p"]
    (pin,) = world.worker.lease.pins.values()
    named.namespace, named.anchors = world.namespace, pin.anchors
    world.cache.state.named_pins.add(named)
    assert broken(world) == "a named pin holds pages of the index"


def test_a_named_pin_that_is_gone_owns_nothing() -> None:
    """An anchor of a named pin that is not in the table any more is found."""
    world = make_named()
    world.cache.state.named_pins.of(world.namespace).clear()
    assert broken(world) == "a lease that is gone owns nothing"
