"""Matching and releasing; the other verbs have files of their own."""

import pytest

from core.core_builders import FILLER, NAMESPACE_ID, CoreWorld, node_at, paged, picture, places
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import GroupWindow, Match, MatchOptions, Sequence
from kvstore.errors import (
    LeaseExpired,
    LimitExceeded,
    NamespaceNotFound,
    PinNotFound,
    PoolExhausted,
    QuotaExceeded,
    Tombstoned,
)


def test_a_miss_takes_no_pin() -> None:
    """The answer of an empty cache has no pages and no hold, and the miss is counted."""
    world = CoreWorld()
    assert world.worker.match("ab", 1) == Match(0, ())
    assert not world.worker.lease.pins
    assert world.cache.counters.miss_count == 1


def test_a_match_names_the_slots_of_its_pages() -> None:
    """The answer has a slot for each matched page, in prefix order, with its generation."""
    world = CoreWorld()
    world.worker.publish("abc", "abxy")
    match = world.worker.match("abxq", 1)
    assert match.matched_token_count == 6
    (run,) = match.runs
    assert (run.extent_id, run.tier, list(run.generations)) == (1, 1, [0, 0, 0])
    above, node = node_at(world.namespace.index, "ab"), node_at(world.namespace.index, "abx")
    assert places(match.runs) == [slot & 0xFF for slot in [*above.slots, node.slots[0]]]


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_pitfall_rounding_up(page_tokens: int) -> None:
    """A sequence of any length matches whole pages of all tokens but its last, never one more."""
    world = CoreWorld(page_tokens=page_tokens)
    world.worker.publish("abc")
    tokens = paged("abcx", page_tokens)
    for count in range(len(tokens) // 4 + 1):
        sequence = Sequence(tokens[: 4 * count])
        match = world.cache.match(
            world.worker.caller, NAMESPACE_ID, sequence, MatchOptions(count), world.now
        )
        pages = min(max(count - 1, 0) // page_tokens, 3)
        assert match.matched_token_count == pages * page_tokens
        assert len(places(match.runs)) == pages


def test_pitfall_missing_reference_on_match() -> None:
    """Matched pages are held by the match itself: no shortage takes them before the release."""
    world = CoreWorld(slots=4)
    world.worker.publish("abc")
    other = world.join("other")
    match = world.worker.match("abc", 1)
    with pytest.raises(PoolExhausted):
        other.reserve(1, 2)
    assert world.worker.match("abc", 2).runs == match.runs
    world.worker.release(1)
    with pytest.raises(PoolExhausted):
        other.reserve(1, 2)
    world.worker.release(2)
    other.reserve(1, 2)
    world.laws.check()


def test_a_pin_protects_no_more_than_it_matched() -> None:
    """Pages behind the matched ones can go."""
    world = CoreWorld(slots=4)
    world.worker.publish("abcd")
    world.worker.match("ab", 1)
    world.join("other").reserve(1, 2)
    assert world.shape() == {"ab": {}}


def test_a_match_changes_no_structure() -> None:
    """After a match into the middle of an edge every node is what it was, but for its anchor."""
    world = CoreWorld()
    world.worker.publish("abcd", "abxy")
    before = [each[:-1] for each in picture(world.namespace.index)]
    world.worker.match("abc", 1)
    world.worker.match("a", 2)
    world.worker.match("q", 3)
    assert [each[:-1] for each in picture(world.namespace.index)] == before
    anchors = [anchor for node in world.namespace.index.nodes.values() for anchor in node.anchors]
    assert sorted(anchor.end for anchor in anchors) == [1, 3]


def test_a_match_touches_its_deepest_node_alone() -> None:
    """Recency and hits change on one node, however many lie above it."""
    world = CoreWorld()
    world.worker.publish("abcd", "abce", "abx")
    nodes = world.namespace.index.nodes.values()
    before = {node.number: (node.last_use, node.hits) for node in nodes}
    world.worker.match("abcd", 1)
    after = {node.number: (node.last_use, node.hits) for node in nodes}
    deepest = node_at(world.namespace.index, "abcd")
    assert {each for each in after if after[each] != before[each]} == {deepest.number}
    assert deepest.last_use == max(use for use, _ in after.values())
    assert deepest.hits == before[deepest.number][1] + 1


def test_the_base_of_an_insert_is_no_use_of_its_pages() -> None:
    """It pins as any match, and counts neither a lookup nor a hit, with groups too."""
    world = CoreWorld()
    world.worker.publish_groups("abc", g1="111")
    counted = world.cache.counters.copy()
    nodes = world.namespace.index.nodes.values()
    hits = {node.number: node.hits for node in nodes}
    for number, sequence in enumerate(("abc", "x"), start=1):
        options = MatchOptions(number, groups=(GroupWindow(1, 1),), is_base=True)
        found = world.cache.match(
            world.worker.caller, NAMESPACE_ID, world.worker.sequence(sequence), options, 0.0
        )
        assert bool(found.matched_token_count) is (sequence == "abc")
    assert list(world.worker.lease.pins) == [1]
    assert world.cache.counters == counted
    assert {node.number: node.hits for node in nodes} == hits
    world.laws.check()


def test_what_was_matched_goes_later() -> None:
    """Under pressure the prefix that was not used since goes first."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab", "xy")
    world.worker.match("ab", 1)
    world.worker.release(1)
    world.worker.reserve(2, 2)
    assert world.shape() == {"ab": {}}


def test_a_repeated_match_is_answered_again() -> None:
    """The same call under the same id has the same answer and counts once."""
    world = CoreWorld()
    world.worker.publish("ab")
    first = world.worker.match("abcd", 1)
    counted = world.cache.counters.copy()
    world.worker.publish("abcd")
    assert world.worker.match("abcd", 1) == first
    assert world.cache.counters.lookup_count == counted.lookup_count + 1  # publish's own
    assert list(world.worker.lease.pins) == [1]


def test_a_repeated_match_names_removed_pages() -> None:
    """A pin's answer stays what it was, though an operator removed the prefix."""
    world = CoreWorld()
    world.worker.publish("abc")
    first = world.worker.match("abc", 1)
    world.evict_prefix("ab")
    world.worker.publish("abc")
    assert world.worker.match("abc", 1) == first
    assert world.worker.match("abc", 2) != first


def test_ids_are_a_leases_own() -> None:
    """Two leases may use the same number, and release their own alone."""
    world = CoreWorld()
    world.worker.publish("ab")
    other = world.join("other")
    world.worker.match("ab", 1)
    other.match("a", 1)
    other.release(1)
    assert list(world.worker.lease.pins) == [1]


def test_a_released_id_is_dead() -> None:
    """A match that comes after the release of its id fails whole: no pin, no count, no touch."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.release(1)
    counters, before = world.cache.counters.copy(), picture(world.namespace.index)
    with pytest.raises(Tombstoned) as error:
        world.worker.match("ab", 1)
    assert error.value.metadata == {"id": "1"}
    assert world.cache.counters == counters
    assert picture(world.namespace.index) == before


def test_a_release_can_be_repeated() -> None:
    """Many at once, known or not, twice: all succeed, and what was held goes back once."""
    world = CoreWorld()
    world.worker.publish("ab", "ax")
    world.worker.match("ab", 1)
    world.worker.match("ax", 2)
    world.evict_prefix("a")
    assert world.states() == {"FREE": 5, "DETACHED": 3}
    for _ in range(2):
        world.worker.release(1, 2, 2, 99)
        assert world.states() == {"FREE": 8}
    world.laws.check()


def test_tombstones_last_their_time() -> None:
    """An id is dead for the tombstone's lifetime, counted from the latest release."""
    world = CoreWorld(limits=Limits(tombstone_ttl=5.0, default_ttl=100.0))
    world.worker.publish("ab")
    world.worker.release(1)
    world.now = 103.0
    world.worker.release(1)
    world.cache.expire(107.9)
    with pytest.raises(Tombstoned):
        world.worker.match("ab", 1)
    world.cache.expire(108.0)
    assert world.worker.match("ab", 1).matched_token_count == 4


def test_an_expired_lease_may_release_and_nothing_else() -> None:
    """Past the TTL a match is refused, and a release gives back."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.cache.expire(world.now + 10)
    with pytest.raises(LeaseExpired):
        world.worker.match("ab", 2)
    world.worker.release(1)
    assert not world.worker.lease.pins


def test_holds_are_bounded() -> None:
    """At the quota no match is made, before anything is looked up; a repeated one is answered."""
    world = CoreWorld(limits=Limits(max_holds_per_lease=2))
    world.worker.publish("ab")
    first = world.worker.match("ab", 1)
    world.worker.match("ab", 2)
    counters = world.cache.counters.copy()
    with pytest.raises(QuotaExceeded):
        world.worker.match("ab", 3)
    assert world.cache.counters == counters
    assert world.worker.match("ab", 1) == first
    world.worker.release(2)
    world.worker.match("ab", 3)


def test_batches_are_bounded() -> None:
    """A release of too many ids releases none of them."""
    world = CoreWorld(limits=Limits(max_batch_size=3))
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    with pytest.raises(LimitExceeded) as error:
        world.worker.release(1, 2, 3, 4)
    assert error.value.metadata == {"limit": "max_batch_size", "maximum": "3", "value": "4"}
    world.worker.release(1, 2, 3)
    assert not world.worker.lease.pins


def test_a_match_from_a_pin_answers_the_whole_path() -> None:
    """Tokens may be sent from a pin's place on; the answer has all pages from the beginning."""
    world = CoreWorld()
    world.worker.publish("abcdef")
    short = world.worker.match("ab", 1)
    long = world.worker.match("cdef", 2, 2, base_pin_id=1)
    assert long.matched_token_count == 12
    assert places(long.runs)[:2] == places(short.runs)
    assert long.runs == world.worker.match("abcdef", 3).runs


def test_what_fails_changes_nothing() -> None:
    """An unknown base, namespace or too long a sequence is an error without effect."""
    world = CoreWorld(limits=Limits(max_tokens=5))
    world.worker.publish("ab")
    counters, before = world.cache.counters.copy(), picture(world.namespace.index)
    caller = world.worker.caller
    with pytest.raises(PinNotFound):
        world.worker.match("b", 1, 1, base_pin_id=77)
    with pytest.raises(NamespaceNotFound):
        world.cache.match(caller, b"unknown", Sequence(FILLER), MatchOptions(1), world.now)
    with pytest.raises(LimitExceeded):
        world.worker.match("abc", 1)
    assert world.cache.counters == counters
    assert picture(world.namespace.index) == before
    assert not world.worker.lease.pins


def test_a_lookup_counts_for_namespace_lease_and_total() -> None:
    """Full hits, partial hits and misses are counted alike in all three places."""
    world = CoreWorld()
    world.worker.publish("ab")
    other = world.join("other")
    for pin_id, letters in enumerate(("ab", "abc", "x")):
        other.match(letters, pin_id)
    mine = other.lease.counters
    assert (mine.full_hit_count, mine.partial_hit_count, mine.miss_count) == (1, 1, 1)
    assert (mine.asked_token_count, mine.matched_token_count) == (5 + 7 + 3, 4 + 4)
    assert world.cache.counters == world.namespace.counters
    world.laws.check()
