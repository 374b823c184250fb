"""The announcements of open reservations, their ends, and the callers that yield to them."""

import pytest

from core.core_builders import ADMIN, NAMESPACE_ID, OWNER, CoreWorld, paged
from core.prefill_calls import acquire, in_flight
from kvstore.core.stats import hold_stats, snapshot
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, InFlight, Match, Sequence
from kvstore.errors import Tombstoned


def test_of_two_for_one_prefix_one_computes() -> None:
    """The first reserves; the second holds nothing, and is told how far the first will come."""
    world = CoreWorld(slots=16)
    other = world.join("other")
    _, first = acquire(world.worker, "abcd", (1, 2))
    assert first is not None
    world.now += 3
    match, second = acquire(other, "abcx", (1, 2))
    assert second is None
    assert match == Match(0, (), in_flight=InFlight(6, 0, 3.0))
    assert not other.lease.pins
    assert not other.lease.reservations
    counters = world.cache.counters
    assert (counters.lookup_count, counters.yielded_count) == (1, 1)
    assert other.lease.counters.yielded_count == 1
    world.laws.check()


def test_one_worker_waits_for_itself_too() -> None:
    """Two requests of one lease are no other than those of two."""
    world = CoreWorld()
    acquire(world.worker, "abc", (1, 2))
    match, grant = acquire(world.worker, "abc", (3, 4))
    assert grant is None
    assert match.in_flight == InFlight(6, 0, 0.0)


def test_a_waiter_matches_what_was_computed() -> None:
    """As pages are inserted the waiter sees how far, and at the end they are matched."""
    world = CoreWorld(slots=16)
    other = world.join("other")
    acquire(world.worker, "abcd", (1, 2))
    world.now += 1
    world.worker.insert(2, "ab")
    world.now += 1
    match, _ = acquire(other, "abcdx", (1, 2))
    assert match == Match(4, (), in_flight=InFlight(8, 4, 1.0))
    world.laws.check()
    world.worker.insert(2, "cd", 2)
    match, grant = acquire(other, "abcdx", (3, 4))
    assert (match.matched_token_count, match.in_flight) == (8, None)
    assert grant is not None
    assert world.cache.counters.lookup_count == 2
    world.laws.check()


def test_without_the_wish_nobody_yields() -> None:
    """A match and an acquire that do not yield do as ever, and are told all the same."""
    world = CoreWorld(slots=16)
    other = world.join("other")
    world.worker.publish("ab")
    acquire(world.worker, "abcd", (1, 2))
    assert other.match("abcd", 1).in_flight == InFlight(8, 4, 0.0)
    match, grant = acquire(other, "abcd", (2, 3), idle=None)
    assert (match.matched_token_count, match.in_flight) == (4, InFlight(8, 4, 0.0))
    assert grant is not None
    assert world.cache.counters.yielded_count == 0
    world.laws.check()


@pytest.mark.parametrize("how", ["abort", "dies", "expires", "revokes", "is expired"])
def test_whoever_comes_next_takes_over(how: str) -> None:
    """When the computing one is gone, or late, the next acquire gets what is left to do."""
    world = CoreWorld(slots=16)
    other = world.join("other")
    worker = world.worker
    acquire(worker, "abcd", (1, 2))
    worker.insert(2, "a")
    assert acquire(other, "abcd", (1, 2))[1] is None
    if how == "abort":
        worker.abort(2)
    elif how == "dies":
        world.cache.process_died(worker.process_id, world.now)
    elif how == "expires":
        world.now += 5
        world.cache.renew(other.caller, world.now)
        world.now += 5
        world.cache.expire(world.now)
    elif how == "revokes":
        world.cache.revoke(worker.caller, world.now)
    else:
        expiry = Caller(ADMIN, worker.caller.lease_id, b"", None)
        world.cache.revoke(expiry, world.now)
    world.laws.check()
    assert in_flight(world, "abcd") is None
    match, grant = acquire(other, "abcd", (3, 4))
    assert match.matched_token_count == 2
    assert grant is not None
    assert (grant.start_page, match.in_flight) == (1, None)
    assert in_flight(world, "abcd") == (4, 1)
    world.laws.check()


def test_what_is_inside_a_page_is_not_announced() -> None:
    """Neither the last tokens of a prompt, nor pages for decoding, nor what matched."""
    world = CoreWorld(slots=16)
    worker = world.worker
    acquire(worker, "abc", (1, 2))
    assert in_flight(world, "abcz") == (3, 0)
    sequence = Sequence(paged("x")[:4])
    acquire(worker, "xxx", (3, 4), sequence=sequence)
    assert worker.lease.reservations[4].prefill is None
    # All that may match has matched.
    assert world.cache.peek(OWNER, NAMESPACE_ID, b"", world.now).in_flight is None
    world.laws.check()


def test_no_more_is_announced_than_slots_were_had_for() -> None:
    """A reservation announces only the pages that it has slots for."""
    world = CoreWorld()
    sequence = world.worker.sequence("abcdef")
    acquire(world.worker, "abc", (1, 2), sequence=sequence)
    assert in_flight(world, "abcdef") == (3, 0)
    world.laws.check()


@pytest.mark.parametrize("other", ["x", "bx", "bc tail"])
def test_whoever_does_something_else_is_not_waited_for(other: str) -> None:
    """A reservation that inserts other tokens than it announced announces nothing any more."""
    world = CoreWorld(slots=16, divides_by_token=True)
    worker = world.worker
    acquire(worker, "abcdef", (1, 2))
    worker.insert(2, "a")
    if other == "bc tail":
        tokens = paged("bc") + paged("d")[:4]
        world.cache.insert(worker.caller, 2, Sequence(tokens, 2), world.now)
    else:
        worker.insert(2, other, 1)
    assert worker.lease.reservations[2].prefill is None
    assert in_flight(world, "abcdef") is None
    world.laws.check()


def test_below_another_path_it_is_another_sequence() -> None:
    """A first insert under another pin than its match's is of another sequence."""
    world = CoreWorld(slots=16)
    worker = world.worker
    worker.publish("ab", "xy")
    acquire(worker, "abcd", (1, 2))
    worker.match("xy", 3)
    worker.insert(2, "c", 2, base_pin_id=3)
    assert worker.lease.reservations[2].prefill is None
    world.laws.check()


def test_a_repeated_acquire_does_not_wait_for_itself() -> None:
    """It is answered again; under a yielded call's ids the next one may reserve."""
    world = CoreWorld(slots=16)
    worker, other = world.worker, world.join("other")
    first = acquire(worker, "abcd", (1, 2))
    assert acquire(worker, "abcd", (1, 2)) == first
    assert acquire(other, "abcd", (1, 2))[1] is None
    worker.abort(2)
    again = acquire(other, "abcd", (1, 2))
    assert again[1] is not None
    assert acquire(other, "abcd", (1, 2)) == again
    world.laws.check()


def test_a_late_copy_of_a_call_that_yielded_is_dead() -> None:
    """Once its ids are given back it takes nothing."""
    world = CoreWorld(slots=16)
    worker, other = world.worker, world.join("other")
    acquire(worker, "abcd", (1, 2))
    acquire(other, "abcd", (1, 2))
    other.abort(2)
    worker.abort(2)
    with pytest.raises(Tombstoned):
        acquire(other, "abcd", (1, 2))
    assert not other.lease.reservations


def test_announced_tokens_are_bounded() -> None:
    """A tenant that announces too much computes all the same; what ends makes room."""
    world = CoreWorld(slots=32, limits=Limits(max_announced_bytes=40))
    worker = world.worker
    acquire(worker, "abcd", (1, 2))
    acquire(worker, "efgh", (3, 4))
    assert in_flight(world, "efgh") is None
    assert worker.lease.owner.announced_bytes == 36
    world.laws.check()
    worker.abort(2)
    acquire(worker, "ijkl", (5, 6))
    assert in_flight(world, "ijkl") == (4, 0)
    world.laws.check()


def test_without_slots_nothing_is_announced() -> None:
    """An acquire that got no slots announces nothing."""
    world = CoreWorld(slots=2)
    assert acquire(world.worker, "abcd", (1, 2))[1] is None
    assert in_flight(world, "abcd") is None


def test_statistics_tell_of_it() -> None:
    """Snapshots count the prefills in flight, and holds name the last token of theirs."""
    world = CoreWorld(slots=16)
    worker = world.worker
    acquire(worker, "abcd", (1, 2))
    worker.reserve(3, 1)
    stats = snapshot(world.cache, OWNER, world.now)
    assert (stats.in_flight_count, stats.leases[0].in_flight_count) == (1, 1)
    holds = {each.hold_id: each.announced_token_count for each in hold_stats(worker.lease, 0.0)}
    assert holds == {2: 8, 3: 0}
    worker.insert(2, "abcd")
    assert snapshot(world.cache, OWNER, world.now).in_flight_count == 0
