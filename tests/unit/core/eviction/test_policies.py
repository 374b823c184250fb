"""The nominations of each policy, in a few letters; the least recently used has its own file."""

import pytest

from core.core_builders import CoreWorld, node_at, paged, plant
from core.eviction_world import going, make, put
from kvstore.core.eviction import leaf_order
from kvstore.core.eviction.ghosts import MAX_RUNS, GhostList
from kvstore.core.eviction.policies import MAX_LEVELS, POLICIES, GreedyDual
from kvstore.core.pool.pages import evict
from kvstore.core.values.requests import ExpectedReuse, Hint, ReuseHint, Sequence


def test_a_hint_counts_from_its_receipt() -> None:
    """An insert's hint is of the pages that it publishes, until its horizon is over."""
    world = CoreWorld()
    expected = ReuseHint(ExpectedReuse.CONTINUES, 5.0, 2)
    world.worker.reserve(1, 2)
    sequence = Sequence(paged("ab"))
    world.cache.insert(world.worker.caller, 1, sequence, world.now, hint=expected)
    node = node_at(world.namespace.index, "ab")
    assert node.hint == Hint(ExpectedReuse.CONTINUES, world.now + 5.0, 2)
    assert ReuseHint().at(3.0) == Hint()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_nominates_exactly_or_nothing(policy: str) -> None:
    """Whatever its order: as many pages as wanted, tails before what they continue."""
    for pages in range(1, 12):
        namespace = make(POLICIES[policy]())
        for use, letters in enumerate(("abcd", "abxy", "mmm", "abcdq", "zz")):
            put(namespace, letters, use, hits=use % 3)
        assert namespace.arena.policy.nominate(100) == []
        assert sum(pages for _, pages in going(namespace, pages)) == pages


def test_lfu_takes_what_was_hit_least_and_of_those_the_oldest() -> None:
    """Hits come first, uses second."""
    namespace = make(POLICIES["lfu"]())
    for letters, last_use, hits in (("a", 9, 0), ("b", 1, 2), ("c", 5, 1), ("d", 3, 1)):
        put(namespace, letters, last_use, hits)
    assert going(namespace, 3) == [("a", 1), ("d", 1), ("c", 1)]


def test_level_takes_the_deepest_page_first() -> None:
    """A long path gives its tail until it is no deeper than the next; then the older one."""
    namespace = make(POLICIES["level"]())
    put(namespace, "abcd", 9)
    put(namespace, "xy", 1)
    assert going(namespace, 2) == [("abcd", 2)]
    assert going(namespace, 2) == [("xy", 1), ("ab", 1)]


def test_slru_takes_what_was_never_hit_first() -> None:
    """However old what was hit is."""
    namespace = make(POLICIES["slru"]())
    for letters, last_use, hits in (("a", 1, 1), ("b", 5, 0), ("c", 7, 0)):
        put(namespace, letters, last_use, hits)
    assert going(namespace, 2) == [("b", 1), ("c", 1)]


def test_slru_bounds_what_was_hit() -> None:
    """The oldest page that was hit once goes before a new one if nearly all were hit once."""
    namespace = make(POLICIES["slru"]())
    for number in range(9):
        put(namespace, chr(ord("a") + number), number, hits=1)
    put(namespace, "x", 20)
    assert going(namespace, 1) == [("a", 1)]
    assert going(namespace, 2) == [("b", 1), ("c", 1)]


def test_gdsf_keeps_what_is_deep_and_often_hit() -> None:
    """A deeper page costs more to compute again; each hit is worth as much again."""
    namespace = make(POLICIES["gdsf"]())
    put(namespace, "abcdefgh", 1)
    put(namespace, "x", 2)
    put(namespace, "y", 3, hits=1)
    assert going(namespace, 2) == [("x", 1), ("abcdefgh", 1)]


def test_gdsf_ages_what_was_hit_long_ago() -> None:
    """A page that is used later stands above a level that rose meanwhile."""
    namespace = make(GreedyDual(), 4)
    put(namespace, "old", 1, hits=2)
    gone = []
    for use in range(2, 8):
        put(namespace, chr(0x100 + use), use)
        gone += going(namespace, 1)
    assert gone[:3] == [(chr(0x100 + use), 1) for use in (2, 3, 4)]
    assert ("old", 1) in gone[3:]


def test_gdsf_remembers_so_many_levels() -> None:
    """After any number of evictions what it keeps is bounded."""
    policy = GreedyDual()
    namespace = make(policy, 2)
    for use in range(1, 2 * MAX_LEVELS):
        put(namespace, chr(0x100 + use % 7), use, hits=use)
        going(namespace, 1)
    assert len(policy._levels) <= MAX_LEVELS


@pytest.mark.parametrize("policy", ["auto", "lru"])
def test_the_hot_set_goes_last_and_is_a_small_part(policy: str) -> None:
    """A page with many recent hits outlives younger ones; once it cools it is like any other."""
    namespace = make(POLICIES[policy]())
    for number in range(40):
        put(namespace, chr(0x100 + number), 100 + number)
    put(namespace, "h", 1, hits=leaf_order.HOT_HITS)
    for number in range(20):
        put(namespace, chr(0x200 + number), 1, hits=leaf_order.HOT_HITS)
    assert len(namespace.arena.policy.queues[leaf_order.HOT]) <= 1 + leaf_order.HOT_SHARE * 61  # type: ignore[attr-defined]
    gone = [letters for letters, _ in going(namespace, 40)]
    assert "h" not in gone
    put(namespace, "i", 1, hits=leaf_order.HOT_HITS)
    put(namespace, "y", 1000 + leaf_order.HOT_WINDOW)
    put(namespace, "z", 1001 + leaf_order.HOT_WINDOW)
    rest = namespace.index.page_count
    assert [letters for letters, _ in going(namespace, rest)][-2:] == ["y", "z"]


def test_ghosts_are_bounded_in_pages_and_in_runs() -> None:
    """The oldest are forgotten, and what is counted of each kind with them."""
    namespace, ghosts = make(POLICIES["lru"]()), GhostList()
    node = plant(namespace, "abcdef").node
    ghosts.note(node, 4, 6, 7, slot_count=2)
    ghosts.note(node, 2, 4, 8, slot_count=2)
    assert ghosts.by_kind == {7: 2, 8: 2}
    ghosts.note(node, 0, 2, 8, slot_count=2)
    assert ghosts.by_kind == {7: 0, 8: 4}
    found = list(ghosts.find(node, 0))
    assert [(each.start, each.pages, each.kind, each.left_since) for each in found] == [
        (0, 2, 8, 2),
        (2, 2, 8, 4),
    ]
    assert list(ghosts.find(node, 0)) == []
    assert MAX_RUNS > 1


def test_a_ghost_that_leaves_again_is_one_ghost() -> None:
    """A run that was not asked for in between counts once, as what left last."""
    namespace, ghosts = make(POLICIES["lru"]()), GhostList()
    node = plant(namespace, "abcdef").node
    for kind in (7, 8):
        ghosts.note(node, 0, 2, kind, slot_count=8)
    assert ghosts.by_kind == {7: 0, 8: 2}
    assert [(each.kind, each.left_since) for each in ghosts.find(node, 0)] == [(8, 2)]


def test_a_ghost_that_goes_on_otherwise_counts_as_its_first_page() -> None:
    """One page is known of a run that is published again in part, or with another end."""
    namespace, ghosts = make(POLICIES["lru"]()), GhostList()
    for again in ("ab", "abx"):
        ghosts.note(plant(namespace, "abc").node, 0, 3, 0, slot_count=8)
        evict(namespace.arena.policy.nominate(namespace.index.page_count))
        node = plant(namespace, again).node
        assert [(each.start, each.pages) for each in ghosts.find(node, 0)] == [(0, 1)]
        evict(namespace.arena.policy.nominate(namespace.index.page_count))


def test_what_left_long_ago_is_not_counted() -> None:
    """Pages come back of late only if the arena had not been filled anew since."""
    policy = POLICIES["lru"]()
    namespace = make(policy, 4)
    for use, (letters, counted) in enumerate((("ab", 0), ("ab", 2), ("wxyz", 0), ("abc", 2)), 1):
        node = plant(namespace, letters, use).node
        del counted, node
        going(namespace, namespace.index.page_count)
    tail = plant(namespace, "mnop", 9).node
    assert policy.come_back(tail, 0, 4) == 0


def test_nobody_has_a_policy_of_no_order() -> None:
    """The base class of all policies cannot be made."""
    with pytest.raises(TypeError, match="place"):
        leaf_order.LeafOrder()  # type: ignore[abstract]
