"""Reserving slots, making room for them, and giving them back."""

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld, make_layout, node_at, picture, places
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import ReservationRequest
from kvstore.errors import (
    IdReused,
    InvalidField,
    LimitExceeded,
    PoolExhausted,
    QuotaExceeded,
    Tombstoned,
)


def reserve(world: CoreWorld, *requests: tuple[int, int, int]) -> list[list[int]]:
    """Reserves for several (id, start, pages) in one call; returns each one's slots."""
    asked = [ReservationRequest(*each) for each in requests]
    grants = world.cache.reserve(world.worker.caller, NAMESPACE_ID, asked, world.now)
    assert [each.reservation_id for each in grants] == [each[0] for each in requests]
    return [places(each.runs) for each in grants]


def test_reserved_slots_are_the_callers_and_not_visible() -> None:
    """A grant names slots in page order; no match finds them."""
    world = CoreWorld()
    grant = world.worker.reserve(1, 3, start=2)
    assert (grant.reservation_id, grant.start_page, places(grant.runs)) == (1, 2, [0, 1, 2])
    assert world.states() == {"FREE": 5, "RESERVED": 3}
    assert world.shape() == {}


def test_one_call_serves_many_sequences() -> None:
    """Each request has slots of its own, in the order of requests."""
    world = CoreWorld()
    one, two, none = reserve(world, (1, 0, 2), (2, 5, 3), (3, 0, 0))
    assert (len(one), len(two), none) == (2, 3, [])
    assert not set(one) & set(two)
    assert len(world.worker.lease.reservations) == 3


def test_a_repeated_reserve_is_answered_again() -> None:
    """The same total has the same slots; a smaller one takes nothing away."""
    world = CoreWorld()
    first = world.worker.reserve(1, 3)
    assert world.worker.reserve(1, 3) == first
    assert world.worker.reserve(1, 1) == first
    assert world.states()["RESERVED"] == 3


def test_a_reservation_grows_to_a_total() -> None:
    """A larger total adds what is missing, behind what is there; new ones can be among them."""
    world = CoreWorld()
    ((first,), (grown, new)) = reserve(world, (1, 0, 2)), reserve(world, (1, 0, 4), (2, 0, 1))
    assert grown[:2] == first
    assert (len(grown), len(new)) == (4, 1)
    assert world.states()["RESERVED"] == 5


def test_a_reservation_stays_where_it_started() -> None:
    """Another start page or namespace under the same id is a bug of the caller."""
    world = CoreWorld()
    world.worker.reserve(1, 2, start=1)
    with pytest.raises(IdReused) as error:
        world.worker.reserve(1, 3, start=2)
    assert error.value.metadata == {"id": "1"}
    identity = NamespaceIdentity(b"another")
    world.cache.open_namespace(world.worker.caller, identity, make_layout(), b"2nd", world.now)
    with pytest.raises(IdReused):
        world.cache.reserve(world.worker.caller, b"2nd", [ReservationRequest(1, 1, 2)], world.now)
    assert world.states()["RESERVED"] == 2


def test_an_id_stands_in_a_call_once() -> None:
    """Two requests for one reservation in one call are refused."""
    world = CoreWorld()
    with pytest.raises(InvalidField) as error:
        reserve(world, (1, 0, 1), (1, 0, 2))
    assert error.value.metadata["field"] == "reservations"
    assert world.states() == {"FREE": 8}


def test_on_shortage_the_least_recently_used_goes() -> None:
    """Room is made for exactly what is missing, from the tail of what was used longest ago."""
    world = CoreWorld(slots=6)
    world.worker.publish("abc", "xyz")
    world.worker.reserve(1, 2)
    assert world.shape() == {"a": {}, "xyz": {}}
    assert world.cache.counters.evicted_page_count == 2
    assert world.worker.lease.counters.evicted_page_count == 2
    assert world.namespace.counters.evicted_page_count == 2
    world.laws.check()


def test_available_slots_are_used_before_any_page_goes() -> None:
    """While there are FREE slots nothing is evicted."""
    world = CoreWorld(slots=6)
    world.worker.publish("abc")
    world.worker.reserve(1, 3)
    assert world.shape() == {"abc": {}}
    assert world.cache.counters.evicted_page_count == 0


def test_a_reserve_that_fails_takes_nothing_with_it() -> None:
    """A request for too many slots evicts and takes nothing, and can be tried for less."""
    world = CoreWorld(slots=6)
    world.worker.publish("abc", "xyz")
    world.worker.match("ab", 7)
    with pytest.raises(PoolExhausted) as error:
        reserve(world, (1, 0, 2), (2, 0, 3))
    assert error.value.metadata == {"requested": "5", "available": "0"}
    assert world.shape() == {"abc": {}, "xyz": {}}
    assert not world.worker.lease.reservations
    for counters in (world.cache.counters, world.namespace.counters, world.worker.lease.counters):
        assert (counters.exhausted_count, counters.evicted_page_count) == (1, 0)
    world.laws.check()
    reserve(world, (1, 0, 2), (2, 0, 2))
    assert world.shape() == {"ab": {}}


def test_a_reservation_that_cannot_grow_stays_as_it_was() -> None:
    """A failed growth leaves the slots that were granted before."""
    world = CoreWorld(slots=4)
    first = world.worker.reserve(1, 3)
    with pytest.raises(PoolExhausted):
        world.worker.reserve(1, 5)
    assert world.worker.reserve(1, 3) == first
    assert world.states() == {"FREE": 1, "RESERVED": 3}


def test_slots_come_back_in_a_new_generation() -> None:
    """A slot that was evicted is granted under a generation that it never had."""
    world = CoreWorld(slots=2)
    seen: set[tuple[int, int]] = set()
    for round_number in range(4):
        world.worker.publish("ab" if round_number % 2 else "xy")
        (run,) = world.worker.match("ab" if round_number % 2 else "xy", round_number).runs
        pairs = set(zip(run.indexes, run.generations, strict=True))
        assert not pairs & seen
        seen |= pairs
        world.worker.release(round_number)


def test_pages_of_any_namespace_of_the_arena_make_room() -> None:
    """A shortage in one namespace evicts from another that shares its arena, and counts there."""
    world = CoreWorld(slots=4)
    world.worker.publish("abcd")
    other = world.cache.open_namespace(
        world.worker.caller, NamespaceIdentity(b"another"), make_layout(), b"2nd", world.now
    )
    world.cache.reserve(world.worker.caller, b"2nd", [ReservationRequest(1, 0, 3)], world.now)
    assert world.shape() == {"a": {}}
    assert world.namespace.counters.evicted_page_count == 3
    assert other.counters.evicted_page_count == 0
    assert world.worker.lease.counters.evicted_page_count == 3
    world.laws.check()


def test_only_mapped_slots_are_granted_and_nothing_goes_for_others() -> None:
    """A lease that has not mapped an extent gets slots of the others, and evicts nothing."""
    world = CoreWorld(slots=3)
    world.worker.publish("ab")
    world.cache.add_extent(1, 2, 5)
    assert [run.extent_id for run in world.worker.reserve(1, 1).runs] == [1]
    with pytest.raises(PoolExhausted) as error:
        world.worker.reserve(2, 6)
    assert error.value.metadata == {"requested": "6", "available": "0"}
    assert world.shape() == {"ab": {}}
    world.worker.map_memory()
    assert [run.extent_id for run in world.worker.reserve(2, 6).runs] == [1, 2]
    world.laws.check()


def test_a_reservation_may_begin_one_page_beyond_the_longest_sequence() -> None:
    """The last page of a sequence of the greatest length may be only begun; no more than that."""
    world = CoreWorld(limits=Limits(max_tokens=7))
    assert len(places(world.worker.reserve(1, 3, start=1).runs)) == 3
    with pytest.raises(LimitExceeded) as error:
        world.worker.reserve(2, 4, start=1)
    assert error.value.metadata == {"limit": "max_tokens", "maximum": "7", "value": "10"}


def test_a_full_page_at_the_limit_is_the_last() -> None:
    """One page more may be begun if the greatest length is whole pages."""
    world = CoreWorld(limits=Limits(max_tokens=8))
    world.worker.reserve(1, 4)
    with pytest.raises(LimitExceeded):
        world.worker.reserve(2, 5)


def test_an_aborted_id_is_dead() -> None:
    """A reserve that comes after the abort of its id fails whole, with all others of its call."""
    world = CoreWorld()
    world.worker.abort(2)
    with pytest.raises(Tombstoned):
        reserve(world, (1, 0, 2), (2, 0, 2))
    assert world.states() == {"FREE": 8}
    assert not world.worker.lease.reservations


def test_an_abort_can_be_repeated() -> None:
    """Many at once, known or not, twice: slots go back once."""
    world = CoreWorld()
    world.worker.reserve(1, 3)
    world.worker.reserve(2, 2)
    for _ in range(2):
        world.worker.abort(1, 2, 2, 99)
        assert world.states() == {"FREE": 8}
    world.laws.check()


def test_published_pages_stay_when_their_reservation_ends() -> None:
    """After inserts an abort gives back what was not published, and the rest is evictable."""
    world = CoreWorld(slots=4)
    world.worker.reserve(1, 4)
    world.worker.insert(1, "ab")
    world.worker.abort(1)
    assert world.states() == {"FREE": 2, "CACHED": 2}
    assert world.shape() == {"ab": {}}
    world.worker.reserve(2, 4)
    assert world.shape() == {}


def test_holds_are_bounded() -> None:
    """A call that would make too many reservations makes none; growing needs no room."""
    world = CoreWorld(limits=Limits(max_holds_per_lease=2))
    reserve(world, (1, 0, 1))
    with pytest.raises(QuotaExceeded):
        reserve(world, (2, 0, 1), (3, 0, 1))
    assert list(world.worker.lease.reservations) == [1]
    reserve(world, (1, 0, 2), (2, 0, 1))
    reserve(world, (1, 0, 3), (2, 0, 2))


def test_batches_are_bounded() -> None:
    """Too many requests or aborts in one call are refused whole."""
    world = CoreWorld(limits=Limits(max_batch_size=2))
    world.worker.reserve(1, 1)
    with pytest.raises(LimitExceeded):
        reserve(world, (2, 0, 1), (3, 0, 1), (4, 0, 1))
    with pytest.raises(LimitExceeded):
        world.worker.abort(1, 2, 3)
    assert world.states() == {"FREE": 7, "RESERVED": 1}


def test_a_last_use_is_inherited_where_it_counts() -> None:
    """A shared beginning whose continuation was just evicted outlives what was used before it."""
    world = CoreWorld(slots=6)
    world.worker.publish("ab", "mn", "abx", "aby")
    world.worker.match("abx", 1)
    world.worker.release(1)
    parent = node_at(world.namespace.index, "ab")
    used = node_at(world.namespace.index, "abx").last_use
    world.worker.reserve(2, 4)
    assert world.shape() == {"ab": {}}
    assert parent.last_use == used


def test_reserving_changes_no_tree_where_there_is_room() -> None:
    """With FREE slots enough the index is untouched."""
    world = CoreWorld()
    world.worker.publish("ab")
    before = picture(world.namespace.index)
    world.worker.reserve(1, 4)
    world.worker.reserve(1, 6)
    assert picture(world.namespace.index) == before
