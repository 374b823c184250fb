"""The default policy: its nominations, and how it learns the worth of hints."""

from math import log

import pytest

from core.core_builders import node_at, plant
from core.eviction_world import going, hint, make, put
from kvstore.core.eviction import leaf_order, policies
from kvstore.core.eviction.policies import (
    EXPECTED,
    FIRST,
    HINT_STEP,
    KINDS,
    LEAST,
    MOST,
    MOST_STEPS,
    ONE_SHOT,
    ORDINARY,
    SEEN,
    SPILLING,
    Auto,
)
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.requests import ExpectedReuse, Hint


def test_auto_takes_hints_for_what_they_are_worth_at_first() -> None:
    """One shot goes before what nothing is known of, and that before what goes on."""
    namespace = make(Auto())
    put(namespace, "a", 16, hint=hint(ExpectedReuse.CONTINUES))
    put(namespace, "b", 20)
    put(namespace, "c", 28, hint=hint(ExpectedReuse.ONE_SHOT))
    put(namespace, "z", 40)
    assert [letters for letters, _ in going(namespace, 4)] == ["c", "b", "a", "z"]


def test_what_is_seen_goes_down_as_anything() -> None:
    """With another tier below, the order is by last use and by the hints' first weights."""
    policy = Auto()
    namespace = make(policy)
    policy.spills = True
    assert policy.weights == SPILLING
    put(namespace, "s", 10, hits=2)
    put(namespace, "b", 11)
    put(namespace, "c", 28, hint=hint(ExpectedReuse.ONE_SHOT))
    put(namespace, "z", 40)
    assert [letters for letters, _ in going(namespace, 4)] == ["s", "b", "c", "z"]


def test_a_hint_ends_with_its_horizon() -> None:
    """Later than its time a hint says nothing: the older one goes."""
    namespace = make(Auto())
    put(namespace, "a", 10)
    put(namespace, "b", 20, hint=hint(ExpectedReuse.ONE_SHOT, until=5.0, priority=-3))
    put(namespace, "z", 40)
    namespace.arena.policy.now = 5.1
    assert going(namespace, 1) == [("a", 1)]


def test_higher_priority_goes_later_and_in_the_end_goes() -> None:
    """Priority is worth age, within bounds."""
    namespace = make(Auto())
    put(namespace, "a", 10, hint=hint(ExpectedReuse.UNKNOWN, priority=1 << 30))
    put(namespace, "b", 20)
    put(namespace, "c", 30, hint=hint(ExpectedReuse.UNKNOWN, priority=-(1 << 30)))
    put(namespace, "z", 40)
    assert [letters for letters, _ in going(namespace, 4)] == ["c", "b", "a", "z"]


def come_back(namespace: Namespace, letters: str, last_use: int) -> Hint:
    """Evicts everything, plant a path again, and returns what its pages are known as."""
    going(namespace, namespace.index.page_count)
    plant(namespace, letters, last_use)
    return node_at(namespace.index, letters).hint


@pytest.mark.parametrize(
    ("kind", "known"),
    [(ONE_SHOT, hint(ExpectedReuse.ONE_SHOT)), (EXPECTED, hint(ExpectedReuse.CONTINUES))],
)
def test_a_kind_that_comes_back_is_kept_longer(kind: int, known: Hint) -> None:
    """A page that is evicted and published again raises its kind's weight, and counts as seen."""
    policy = Auto()
    namespace = make(policy)
    before = policy.weights
    put(namespace, "xyz", 1)
    put(namespace, "abc", 1, hint=known)
    assert come_back(namespace, "abc", 2).returned
    assert policy.weights[kind] > before[kind]
    after = policy.weights
    assert come_back(namespace, "abc", 3).returned
    assert policy.weights[SEEN] > after[SEEN]


def remembering(**pages: int) -> Auto:
    """Returns a policy that remembers so many pages of some kinds, by their names."""
    policy = Auto()
    policy.ghosts.by_kind = {getattr(policies, kind): count for kind, count in pages.items()}
    return policy


def test_wrong_hints_end_as_none() -> None:
    """A one-shot page that comes back is ordinary, and so is one that goes on if others return."""
    policy = remembering(ORDINARY=9, SEEN=9, ONE_SHOT=9, EXPECTED=9)
    policy.learn(ORDINARY, 1 << 30)
    assert policy.weights == pytest.approx((1.0, 1.0, LEAST[ONE_SHOT], 1.0))
    policy.learn(ONE_SHOT, 1 << 30)
    assert policy.weights == pytest.approx((1.0, 1.0, 1.0, 1.0))
    policy.learn(leaf_order.HOT, 100)
    assert policy.weights == pytest.approx((1.0, 1.0, 1.0, 1.0))
    policy.learn(EXPECTED, 1 << 30)
    assert policy.weights == pytest.approx((1.0, 1.0, LEAST[ONE_SHOT], MOST[EXPECTED]))
    policy.learn(SEEN, 1 << 30)
    assert policy.weights == pytest.approx((1.0, MOST[SEEN], LEAST[ONE_SHOT], 1.0))


def test_hints_are_weighed_against_each_other() -> None:
    """With a hint on every page, a wrong eviction moves both weights; an absent kind moves none."""
    policy = remembering(ONE_SHOT=90, EXPECTED=10)
    policy.learn(ONE_SHOT, 100)
    _, seen, one_shot, expected = policy.weights
    assert one_shot / FIRST[ONE_SHOT] == pytest.approx(FIRST[EXPECTED] / expected)
    assert one_shot > FIRST[ONE_SHOT]
    assert seen == FIRST[SEEN]


def test_the_fewer_are_remembered_the_more_is_learned() -> None:
    """Up to a bound; a priority changes nothing of a page's kind, and the hot set has none."""
    moved = []
    for few in (100, 10, 1):
        policy = remembering(ONE_SHOT=few, EXPECTED=100)
        policy.ghosts.by_kind[leaf_order.HOT] = 1 << 20
        policy.learn(ONE_SHOT + 2 * KINDS, 1)
        moved.append(log(policy.weights[ONE_SHOT] / FIRST[ONE_SHOT]))
    assert moved == pytest.approx([HINT_STEP / 2, 5 * HINT_STEP, MOST_STEPS * HINT_STEP / 2])
