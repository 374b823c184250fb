"""Pages that enter and leave an index, together with the states of their slots."""

from array import array

from core.core_builders import make_namespace, node_at, paged, plant, shape
from kvstore.core.eviction.protocol import Victim
from kvstore.core.index.node import Position
from kvstore.core.leases.holds import Pin
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict, let_go, publish, remove
from kvstore.core.values.requests import Removed
from kvstore.core.values.slots import SlotState


def states(namespace: Namespace) -> dict[str, int]:
    """Returns how many slots are in each state that some are in."""
    counts = namespace.arena.counts
    return {state.name: counts[state] for state in SlotState if counts[state]}


def pin(namespace: Namespace, letters: str) -> Pin:
    """Pins the path of ``letters``, which is cached."""
    node = node_at(namespace.index, letters)
    return Pin(1, namespace, Position(node, len(letters) - node.start), None, 0.0)


def cut(namespace: Namespace, letters: str) -> Removed:
    """Removes the last page of ``letters`` and all that continues it."""
    node = node_at(namespace.index, letters)
    if len(letters) - node.start > 1:
        namespace.index.split(node, len(letters) - node.start - 1)
    return remove(node)


def test_publishing_makes_reserved_slots_cached() -> None:
    """Pages are in the index and their slots CACHED, in one step."""
    namespace = make_namespace(slots=4)
    slots = array("Q")
    namespace.arena.take(3, [1], into=slots)
    top = Position(namespace.index.root, 0)
    at, superseded, _ = publish(namespace, top, paged("ab"), slots[:2])
    assert (at, superseded) == (Position(node_at(namespace.index, "ab"), 2), 0)
    assert states(namespace) == {"FREE": 1, "RESERVED": 1, "CACHED": 2}


def test_evicted_pages_are_free() -> None:
    """Victims' pages leave the index, their slots are FREE in a new generation, all counted."""
    namespace = make_namespace(slots=6)
    plant(namespace, "abcd")
    plant(namespace, "x")
    slots = list(node_at(namespace.index, "abcd").slots)
    victims = [
        Victim(node_at(namespace.index, "abcd"), 2),
        Victim(node_at(namespace.index, "x"), 1),
    ]
    assert evict(victims) == 3
    assert shape(namespace.index) == {"ab": {}}
    assert states(namespace) == {"FREE": 4, "CACHED": 2}
    assert [namespace.arena.extents[1].generations[slot & 0xFF] for slot in slots] == [0, 0, 1, 1]
    assert namespace.counters.evicted_page_count == 3


def test_evicting_none_changes_nothing() -> None:
    """Without victims nothing goes."""
    namespace = make_namespace(slots=4)
    plant(namespace, "ab")
    assert evict([]) == 0
    assert states(namespace) == {"FREE": 2, "CACHED": 2}


def test_a_leaf_evicted_in_part_can_go_on_being_evicted() -> None:
    """The rest of a leaf is in the order again."""
    namespace = make_namespace(slots=4)
    leaf = plant(namespace, "abcd", 1).node
    for left in (3, 2, 1, 0):
        assert evict(namespace.arena.policy.nominate(1)) == 1
        assert len(leaf.slots) == left
    assert states(namespace) == {"FREE": 4}


def test_a_parent_inherits_the_later_last_use() -> None:
    """A parent takes the later of its own and its evicted child's last use."""
    for own, childs, later in ((3, 8, 8), (9, 8, 9)):
        namespace = make_namespace()
        for letters in ("abc", "abd"):
            plant(namespace, letters, childs)
        parent = node_at(namespace.index, "ab")
        parent.last_use = own
        evict([Victim(node_at(namespace.index, "abc"), 1)])
        assert parent.last_use == later


def test_a_parent_stands_in_the_order_once_it_is_a_leaf() -> None:
    """A parent is offered with its last child's end, not before, and the root never."""
    namespace = make_namespace()
    for letters in ("abc", "abd"):
        plant(namespace, letters, 1)
    parent = node_at(namespace.index, "ab")
    hold = pin(namespace, "ab")
    evict([Victim(node_at(namespace.index, "abc"), 1)])
    assert not parent.queued
    evict([Victim(node_at(namespace.index, "abd"), 1)])
    assert parent.queued
    let_go(hold.anchors)
    evict([Victim(parent, 2)])
    assert not namespace.index.root.queued


def test_only_leaves_are_offered() -> None:
    """Neither the root, nor an inner node, nor a removed one enters the order."""
    namespace = make_namespace()
    for letters in ("abc", "abd", "x"):
        plant(namespace, letters)
    inner, gone = node_at(namespace.index, "ab"), node_at(namespace.index, "x")
    namespace.index.detach(gone)
    gone.queued = False
    for node in (namespace.index.root, inner, gone):
        namespace.leaf_changed(node)
        assert not node.queued


def test_what_no_one_holds_is_freed_when_it_is_removed() -> None:
    """Removing unheld pages gives all their slots back, below the cut and only there."""
    namespace = make_namespace(slots=8)
    for letters in ("abcd", "abxy", "z"):
        plant(namespace, letters)
    assert cut(namespace, "ab") == Removed(5, 0)
    assert shape(namespace.index) == {"a": {}, "z": {}}
    assert states(namespace) == {"FREE": 6, "CACHED": 2}
    assert namespace.detached_page_count == 0


def test_what_is_held_is_detached_when_it_is_removed() -> None:
    """The held path of a removed subtree stays until its release; all else goes at once."""
    namespace = make_namespace(slots=10)
    for letters in ("abcdef", "abcdxy", "abq"):
        plant(namespace, letters)
    hold = pin(namespace, "abcde")
    assert cut(namespace, "ab") == Removed(4, 4)
    assert shape(namespace.index) == {"a": {}}
    assert states(namespace) == {"FREE": 5, "CACHED": 1, "DETACHED": 4}
    assert namespace.detached_page_count == 4
    let_go(hold.anchors)
    assert states(namespace) == {"FREE": 9, "CACHED": 1}
    assert namespace.detached_page_count == 0


def test_a_hold_keeps_what_is_above_a_removed_page() -> None:
    """A path that is cut off below is still held above the cut, and can't be evicted there."""
    namespace = make_namespace(slots=6)
    plant(namespace, "abcd", 1)
    hold = pin(namespace, "abcd")
    cut(namespace, "abc")
    assert [anchor.end for anchor in hold.anchors] == [4, 2]
    assert namespace.arena.policy.nominate(1) == []
    let_go(hold.anchors)
    assert sum(each.pages for each in namespace.arena.policy.nominate(2)) == 2


def test_a_path_cut_off_again_and_again() -> None:
    """Each cut leaves one more anchor; every page is freed once, at the release."""
    namespace = make_namespace(slots=8)
    plant(namespace, "abcdef")
    hold = pin(namespace, "abcdef")
    for letters, anchors in (("abcdef", 2), ("abcd", 3), ("ab", 4), ("a", 4)):
        cut(namespace, letters)
        assert len(hold.anchors) == anchors
    assert [anchor.end for anchor in hold.anchors] == [6, 5, 3, 1]
    assert states(namespace) == {"FREE": 2, "DETACHED": 6}
    let_go(hold.anchors)
    assert hold.anchors == []
    assert states(namespace) == {"FREE": 8}
    assert namespace.detached_page_count == 0


def test_detached_pages_go_with_their_last_hold() -> None:
    """Each release of two holds on a removed path frees the pages that only it held."""
    namespace = make_namespace(slots=8)
    for letters in ("abcd", "abxy"):
        plant(namespace, letters)
    short, long, other = (pin(namespace, each) for each in ("abc", "abcd", "abxy"))
    assert cut(namespace, "a") == Removed(0, 6)
    let_go(long.anchors)
    assert states(namespace) == {"FREE": 3, "DETACHED": 5}
    let_go(other.anchors)
    assert states(namespace) == {"FREE": 5, "DETACHED": 3}
    let_go(short.anchors)
    assert states(namespace) == {"FREE": 8}


def test_a_hold_above_outlives_one_below() -> None:
    """Releasing the upper of two holds on a removed path frees nothing that the lower needs."""
    namespace = make_namespace(slots=8)
    for letters in ("abcd", "abxy"):
        plant(namespace, letters)
    upper, lower = pin(namespace, "ab"), pin(namespace, "abcd")
    cut(namespace, "a")
    slots = lower.slots()
    let_go(upper.anchors)
    assert states(namespace) == {"FREE": 4, "DETACHED": 4}
    assert lower.slots() == slots


def test_a_removed_page_makes_its_parent_evictable() -> None:
    """The node above a removed one stands in the order if it is a leaf by then."""
    namespace = make_namespace()
    for letters in ("abc", "abd"):
        plant(namespace, letters, 1)
    parent = node_at(namespace.index, "ab")
    cut(namespace, "abc")
    assert not parent.queued
    cut(namespace, "abd")
    assert parent.queued
    assert sum(each.pages for each in namespace.arena.policy.nominate(2)) == 2


def test_a_release_makes_a_leaf_evictable() -> None:
    """A leaf that the order had passed over for its hold stands there again when that went."""
    namespace = make_namespace()
    plant(namespace, "ab", 1)
    hold = pin(namespace, "ab")
    assert namespace.arena.policy.nominate(1) == []
    let_go(hold.anchors)
    assert len(namespace.arena.policy.nominate(1)) == 1


def test_letting_go_of_nothing() -> None:
    """A hold without anchors gives nothing back."""
    let_go([])


def test_a_parent_inherits_the_use_of_what_was_removed() -> None:
    """The path to a recently used page is not the first to go once that page is removed."""
    namespace = make_namespace()
    for letters, last_use in (("ab", 8), ("ac", 9), ("d", 5)):
        plant(namespace, letters, last_use)
    for letters in ("ab", "ac"):
        cut(namespace, letters)
    (victim,) = namespace.arena.policy.nominate(1)
    assert victim.leaf is node_at(namespace.index, "d")
