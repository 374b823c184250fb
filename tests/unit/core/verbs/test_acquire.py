"""Match and reserve in one call."""

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld, make_layout, node_at, places
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Match, MatchOptions
from kvstore.errors import IdReused, LimitExceeded, PoolExhausted, QuotaExceeded, Tombstoned


def test_the_rest_of_a_match_is_reserved() -> None:
    """The matched pages are pinned, and slots for all pages after them are granted."""
    world = CoreWorld()
    world.worker.publish("ab")
    match, grant = world.worker.acquire("abcd", 1, 2, total=6)
    assert match.matched_token_count == 4
    assert grant is not None
    assert (grant.reservation_id, grant.start_page, len(places(grant.runs))) == (2, 2, 4)
    assert world.states() == {"FREE": 2, "CACHED": 2, "RESERVED": 4}
    world.laws.check()


def test_after_a_miss_all_is_reserved() -> None:
    """A miss takes no pin, and its grant starts at page 0."""
    world = CoreWorld()
    match, grant = world.worker.acquire("abc", 1, 2)
    assert match == Match(0, ())
    assert grant is not None
    assert (grant.start_page, len(places(grant.runs))) == (0, 3)
    assert not world.worker.lease.pins


def test_without_slots_the_match_is_answered() -> None:
    """The match stays pinned if the pool has too few slots, and nothing is evicted for it."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab", "x")
    match, grant = world.worker.acquire("ab", 1, 2, total=5)
    assert (match.matched_token_count, grant) == (4, None)
    assert list(world.worker.lease.pins) == [1]
    assert not world.worker.lease.reservations
    assert world.states() == {"FREE": 1, "CACHED": 3}
    assert world.cache.counters.exhausted_count == 1
    world.laws.check()


def test_a_match_is_not_evicted_for_its_own_rest() -> None:
    """The pin is taken first: room is made of other pages, though these were used longer ago."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab", "xy")
    match, grant = world.worker.acquire("ab", 1, 2, total=4)
    assert grant is not None
    assert world.shape() == {"ab": {}}
    assert not set(places(match.runs)) & set(places(grant.runs))


def test_a_match_longer_than_wanted_reserves_nothing() -> None:
    """The grant is empty, and starts after the match, if more matched than was wanted in total."""
    world = CoreWorld()
    world.worker.publish("abc")
    match, grant = world.worker.acquire("abc", 1, 2, total=1)
    assert match.matched_token_count == 6
    assert grant is not None
    assert (grant.start_page, grant.runs) == (3, ())


def test_a_repeated_acquire_is_answered_again() -> None:
    """The second call has the first one's pin and reservation, and takes no slot."""
    world = CoreWorld()
    world.worker.publish("ab")
    first = world.worker.acquire("abcd", 1, 2)
    world.worker.publish("abcdef")
    assert world.worker.acquire("abcd", 1, 2) == first
    assert world.states()["RESERVED"] == 2
    world.laws.check()


def test_a_repeated_miss_stays_a_miss() -> None:
    """A repeated call misses if the first did: its reservation starts at page 0."""
    world = CoreWorld()
    first = world.worker.acquire("abc", 1, 2)
    world.join("other").publish("abc")
    assert world.worker.acquire("abc", 1, 2) == first
    assert not world.worker.lease.pins


def test_a_repeated_acquire_grows() -> None:
    """With a larger total more slots are granted behind those there."""
    world = CoreWorld()
    world.worker.publish("ab")
    _, small = world.worker.acquire("abcd", 1, 2)
    _, large = world.worker.acquire("abcd", 1, 2, total=7)
    assert small is not None
    assert large is not None
    assert large.start_page == small.start_page == 2
    assert len(places(large.runs)) == 5
    assert places(large.runs)[:2] == places(small.runs)


def test_what_could_not_be_reserved_can_be_asked_for_again() -> None:
    """After a match without a grant the same call reserves once there is room."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab")
    world.worker.reserve(9, 2)
    first, nothing = world.worker.acquire("ab", 1, 2, total=4)
    assert nothing is None
    world.worker.abort(9)
    match, grant = world.worker.acquire("ab", 1, 2, total=4)
    assert match == first
    assert grant is not None
    assert (grant.start_page, len(places(grant.runs))) == (2, 2)


@pytest.mark.parametrize("kind", ["pin", "reservation"])
def test_either_id_released_makes_the_call_dead(kind: str) -> None:
    """An acquire that comes after the release of one of its ids does neither half."""
    world = CoreWorld()
    world.worker.publish("ab")
    if kind == "pin":
        world.worker.release(1)
    else:
        world.worker.abort(2)
    counters = world.cache.counters.copy()
    with pytest.raises(Tombstoned):
        world.worker.acquire("abc", 1, 2)
    assert not world.worker.lease.pins
    assert not world.worker.lease.reservations
    assert world.cache.counters == counters


def test_a_released_pin_makes_a_repeated_call_dead() -> None:
    """A repeated acquire whose pin was released since gets no new one."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.acquire("abc", 1, 2)
    world.worker.release(1)
    with pytest.raises(Tombstoned):
        world.worker.acquire("abc", 1, 2)
    assert not world.worker.lease.pins


def test_ids_name_one_acquire() -> None:
    """Another sequence under the pin's id, or another namespace's reservation, is refused."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.acquire("abc", 1, 2)
    with pytest.raises(IdReused):
        world.worker.acquire("abd", 1, 2)
    identity = NamespaceIdentity(b"another")
    world.cache.open_namespace(world.worker.caller, identity, make_layout(), b"2nd", world.now)
    with pytest.raises(IdReused):
        world.cache.acquire(
            world.worker.caller,
            b"2nd",
            world.worker.sequence("abc"),
            MatchOptions(3),
            reservation_id=2,
            total_page_count=3,
            now=world.now,
        )
    assert list(world.worker.lease.pins) == [1]


def test_two_holds_need_room_for_two() -> None:
    """One below the quota neither half is done."""
    world = CoreWorld(limits=Limits(max_holds_per_lease=2))
    world.worker.publish("ab")
    world.worker.match("ab", 7)
    with pytest.raises(QuotaExceeded):
        world.worker.acquire("abc", 1, 2)
    assert list(world.worker.lease.pins) == [7]


def test_too_much_in_total_is_refused_before_the_match() -> None:
    """A total beyond the longest sequence pins nothing."""
    world = CoreWorld(limits=Limits(max_tokens=8))
    world.worker.publish("ab")
    with pytest.raises(LimitExceeded):
        world.worker.acquire("ab", 1, 2, total=5)
    assert not world.worker.lease.pins


def test_a_writer_publishes_what_it_acquired() -> None:
    """Match, reserve, insert under the pin, release both: the next one matches everything."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.acquire("abcd", 1, 2)
    world.worker.insert(2, "cd", 2, base_pin_id=1)
    world.worker.release(1)
    world.worker.abort(2)
    assert world.join("other").match("abcd", 1).matched_token_count == 8
    assert world.states() == {"FREE": 4, "CACHED": 4}
    assert world.cache.namespaces[NAMESPACE_ID].index.page_count == 4
    world.laws.check()


def test_a_repeated_acquire_needs_no_room() -> None:
    """A lease whose holds are at their limit is answered again what it has."""
    world = CoreWorld(limits=Limits(max_holds_per_lease=2))
    world.worker.publish("a")
    first = world.worker.acquire("abc", 1, 2)
    assert world.worker.acquire("abc", 1, 2) == first


def test_what_can_never_be_had_disturbs_no_order() -> None:
    """A reserve of more pages than are free or cached asks the policy for nothing."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab", "x")
    leaves = [node_at(world.namespace.index, letters) for letters in ("ab", "x")]
    with pytest.raises(PoolExhausted):
        world.worker.reserve(2, 5)
    assert all(leaf.queued for leaf in leaves)
    world.laws.check()
