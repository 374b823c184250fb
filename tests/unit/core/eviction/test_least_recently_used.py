"""The least recently used policy: what it nominates; the cost is in test_nomination_cost."""

from itertools import chain
from random import Random

import pytest

from core.core_builders import letters_of, make_namespace, node_at, paged, picture, plant
from kvstore.core.eviction.leaf_order import HOT_HITS, SWEEP_FROM
from kvstore.core.eviction.protocol import Victim
from kvstore.core.index.node import Anchor
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict


def nominate(namespace: Namespace, pages: int) -> list[tuple[str, int]]:
    """Nominate, and return the victims as (the node's letters, pages of its tail)."""
    return named(namespace, namespace.arena.policy.nominate(pages))


def named(namespace: Namespace, victims: list[Victim]) -> list[tuple[str, int]]:
    """Returns victims with their nodes' letters."""
    width = namespace.index.width
    return [(letters_of(each.leaf.node.edge, width), each.pages) for each in victims]


def pin(namespace: Namespace, letters: str) -> Anchor:
    """Holds the path of ``letters``, which is cached."""
    node = node_at(namespace.index, letters)
    return Anchor(Hold(1, namespace, 0.0), node, len(letters) - node.start)


def test_a_leaf_is_in_the_index_has_pages_and_no_children() -> None:
    """Neither the root, nor an inner node, nor what was detached or emptied is a leaf."""
    namespace = make_namespace()
    for letters in ("ab", "abc", "abd", "x"):
        plant(namespace, letters)
    leaf, inner = node_at(namespace.index, "abc"), node_at(namespace.index, "ab")
    plant(namespace, "abe")
    assert leaf.is_leaf
    assert not inner.is_leaf
    assert not namespace.index.root.is_leaf
    gone = node_at(namespace.index, "x")
    namespace.index.detach(gone)
    assert not gone.is_leaf
    emptied = node_at(namespace.index, "abd")
    namespace.index.cut_tail(emptied, 1)
    assert not emptied.is_leaf


def test_of_nothing_nothing_is_nominated() -> None:
    """An empty cache has no victims, and no pages need none."""
    namespace = make_namespace()
    assert nominate(namespace, 1) == []
    plant(namespace, "a")
    assert nominate(namespace, 0) == []


def test_the_least_recently_used_leaf_goes_first() -> None:
    """Order is by last use, whatever the order of insertion."""
    namespace = make_namespace()
    for letters, last_use in (("c", 3), ("a", 1), ("d", 4), ("b", 2)):
        plant(namespace, letters, last_use)
    assert nominate(namespace, 3) == [("a", 1), ("b", 1), ("c", 1)]


def test_a_touch_counts_though_the_policy_was_not_told() -> None:
    """A leaf used since it was offered stands where its use puts it."""
    namespace = make_namespace()
    for letters, last_use in (("a", 1), ("b", 2), ("c", 3)):
        plant(namespace, letters, last_use)
    node_at(namespace.index, "a").last_use = 9
    assert nominate(namespace, 3) == [("b", 1), ("c", 1), ("a", 1)]


def test_only_as_many_pages_of_a_tail_as_needed() -> None:
    """For one page a long edge gives its last one, not itself."""
    namespace = make_namespace()
    plant(namespace, "abcdefgh", 1)
    for pages in range(1, 9):
        assert nominate(namespace, pages) == [("abcdefgh", pages)]
        plant(namespace, "abcdefgh", 1)


def test_one_leaf_is_used_up_before_the_next() -> None:
    """Pages come from the oldest leaf while it has any, the rest from the next one's tail."""
    namespace = make_namespace()
    plant(namespace, "abc", 1)
    plant(namespace, "xyz", 2)
    assert nominate(namespace, 4) == [("abc", 3), ("xyz", 1)]


def test_held_pages_are_no_victims() -> None:
    """A hold protects the pages up to it: only the tail behind it can go."""
    namespace = make_namespace()
    plant(namespace, "abcd", 1)
    plant(namespace, "xy", 2)
    pin(namespace, "abc")
    assert nominate(namespace, 3) == [("abcd", 1), ("xy", 2)]


def test_a_hold_protects_all_that_is_above_it() -> None:
    """A path is held by its deepest anchor alone: nodes above have a child that stays."""
    namespace = make_namespace()
    for letters, last_use in (("ab", 1), ("abcd", 2), ("abce", 3), ("x", 4)):
        plant(namespace, letters, last_use)
    pin(namespace, "abcd")
    assert nominate(namespace, 2) == [("e", 1), ("x", 1)]
    assert nominate(namespace, 3) == []


def test_a_wholly_held_leaf_comes_back_when_it_is_offered() -> None:
    """A leaf passed over for its hold is nominated once the hold went and it was offered."""
    namespace = make_namespace()
    node = plant(namespace, "ab", 1).node
    anchor = pin(namespace, "ab")
    assert nominate(namespace, 1) == []
    node.anchors.discard(anchor)
    namespace.arena.policy.offer(node)
    assert nominate(namespace, 2) == [("ab", 2)]


def test_nomination_is_all_or_nothing() -> None:
    """The policy nominates nothing if too few pages can go, and keeps its order."""
    namespace = make_namespace()
    for letters, last_use in (("abc", 1), ("abd", 2), ("xy", 3), ("z", 4)):
        plant(namespace, letters, last_use)
    pin(namespace, "z")
    before = nominate(namespace, 7), nominate(namespace, 100)
    assert before == ([], [])
    assert nominate(namespace, 6) == [("c", 1), ("d", 1), ("ab", 2), ("xy", 2)]


def test_nomination_is_exact() -> None:
    """For every number of pages that there are, exactly that many are nominated."""
    for pages in range(1, 12):
        namespace = make_namespace()
        for use, letters in enumerate(("abcd", "abxy", "mmm", "abcdq", "zz")):
            plant(namespace, letters, use)
        victims = namespace.arena.policy.nominate(pages)
        assert sum(victim.pages for victim in victims) == pages
        assert evict(victims) == pages


def test_nomination_changes_no_page() -> None:
    """A nomination leaves the tree's pages where they are, with victims and without."""
    namespace = make_namespace()
    for use, letters in enumerate(("abcd", "abxy", "mmm")):
        plant(namespace, letters, use)
    before = [each[:5] for each in picture(namespace.index)]
    for pages in (1, 6, 99):
        namespace.arena.policy.nominate(pages)
        assert [each[:5] for each in picture(namespace.index)] == before


def test_a_parent_goes_after_all_its_children() -> None:
    """A node is a victim only behind every victim below it."""
    namespace = make_namespace()
    for letters, last_use in (("ab", 1), ("abc", 2), ("abd", 8), ("x", 5)):
        plant(namespace, letters, last_use)
    node_at(namespace.index, "ab").last_use = 1
    assert nominate(namespace, 5) == [("c", 1), ("x", 1), ("d", 1), ("ab", 2)]


def test_a_parent_inherits_its_childs_later_use() -> None:
    """A parent that was not used itself stands where its last child stood."""
    namespace = make_namespace()
    for letters, last_use in (("ab", 1), ("abc", 3), ("abd", 4), ("x", 5), ("w", 2)):
        plant(namespace, letters, last_use)
    node_at(namespace.index, "ab").last_use = 1
    assert nominate(namespace, 6) == [("w", 1), ("c", 1), ("d", 1), ("ab", 2), ("x", 1)]


def test_a_parents_own_later_use_counts() -> None:
    """A parent used after its children stays behind leaves that were used between."""
    namespace = make_namespace()
    for letters, last_use in (("abc", 1), ("abd", 2), ("x", 5)):
        plant(namespace, letters, last_use)
    node_at(namespace.index, "ab").last_use = 9
    assert nominate(namespace, 5) == [("c", 1), ("d", 1), ("x", 1), ("ab", 2)]


def test_use_is_inherited_through_generations() -> None:
    """In one nomination a grandparent inherits what its child inherited."""
    namespace = make_namespace()
    for letters, last_use in (("abcx", 1), ("abcy", 6), ("abz", 2), ("w", 5), ("v", 7)):
        plant(namespace, letters, last_use)
    for letters in ("ab", "abc"):
        node_at(namespace.index, letters).last_use = 0
    expected = [("x", 1), ("z", 1), ("w", 1), ("y", 1), ("c", 1), ("ab", 2), ("v", 1)]
    assert nominate(namespace, 8) == expected


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_what_goes_in_steps_goes_in_the_same_order(step: int) -> None:
    """Nominated at once or evicted bit by bit, pages go in one order."""

    def build() -> Namespace:
        namespace = make_namespace()
        for use, letters in enumerate(("abcx", "abcy", "abz", "ww", "abcxq", "v"), start=1):
            plant(namespace, letters, use)
        return namespace

    def gone(namespace: Namespace, pages: int) -> list[str]:
        victims = namespace.arena.policy.nominate(pages)
        tails = []
        for node, count in victims:
            letters = letters_of(node.edge, namespace.index.width)
            tails += list(reversed(letters[len(letters) - count :]))
        evict(victims)
        return tails

    whole, stepwise = build(), build()
    pages = whole.index.page_count
    parts = [gone(stepwise, min(step, pages - done)) for done in range(0, pages, step)]
    assert list(chain(*parts)) == gone(whole, pages)


def test_a_held_parent_keeps_its_held_pages() -> None:
    """Behind all its children a parent gives its tail down to its own hold."""
    namespace = make_namespace()
    for letters, last_use in (("abcd", 1), ("abce", 2)):
        plant(namespace, letters, last_use)
    pin(namespace, "a")
    assert nominate(namespace, 4) == [("d", 1), ("e", 1), ("abc", 2)]
    plant(namespace, "abcd", 1)
    plant(namespace, "abce", 2)
    assert nominate(namespace, 5) == []


def test_what_is_a_leaf_no_more_is_passed_over() -> None:
    """Entries of nodes that got children, were emptied or detached are not nominated."""
    namespace = make_namespace()
    for letters, last_use in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        plant(namespace, letters, last_use)
    plant(namespace, "axy", 9)
    plant(namespace, "axz", 10)
    namespace.index.cut_tail(node_at(namespace.index, "b"), 1)
    namespace.index.detach(node_at(namespace.index, "c"))
    assert nominate(namespace, 2) == [("d", 1), ("y", 1)]


def test_a_sweep_loses_no_leaf_and_no_order() -> None:
    """After entries of nodes that went were swept out, every leaf goes in its turn."""
    namespace = make_namespace(slots=3 * SWEEP_FROM)
    letters = [chr(0x4000 + k) for k in range(2 * SWEEP_FROM)]
    uses = Random(7).sample(range(1000), len(letters))
    kept = []
    for use, letter in zip(uses, letters, strict=True):
        node = plant(namespace, letter, use).node
        if use % 4:
            namespace.index.cut_tail(node, 1)
        else:
            kept.append((use, letter))
    assert nominate(namespace, len(kept)) == [(letter, 1) for _, letter in sorted(kept)]


def test_what_was_swept_out_can_be_offered_again() -> None:
    """A node swept out while it was no leaf is nominated when it is one again."""
    namespace = make_namespace(slots=3 * SWEEP_FROM)
    node = plant(namespace, "a", 0).node
    node.add_child(paged("b"), node_at(namespace.index, "a"))
    for k in range(SWEEP_FROM + 1):
        plant(namespace, chr(0x4000 + k), 2 + k)
    assert not node.queued
    node.children.clear()
    namespace.arena.policy.offer(node)
    assert nominate(namespace, 1) == [("a", 1)]


def test_the_only_leaf_goes_however_hot() -> None:
    """The share of the hot set is of as many leaves as there are: of one, none is hot for ever."""
    namespace = make_namespace()
    node = plant(namespace, "a", 1).node
    node.hits = HOT_HITS
    assert nominate(namespace, 1) == [("a", 1)]
