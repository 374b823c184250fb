"""The calls of others between the read of a page and the verdict on it."""

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld, places
from core.verify_calls import ask, conclude, found_bad, publish
from kvstore.core.values.requests import MatchOptions, Sequence
from kvstore.errors import LeaseExpired, LeaseNotFound, PageCorrupt, Tombstoned


def test_two_who_find_the_same_page_count_it_once() -> None:
    """The second finds it gone, and asks again like the first."""
    world = CoreWorld()
    other = world.join("other")
    publish(world.worker, "ab")
    (_, first), (_, second) = ask(world.worker, "ab"), ask(other, "ab")
    assert not conclude(world.worker, first, "b")
    assert not conclude(other, second, "b")
    assert world.cache.counters.corrupt_page_count == 1
    assert world.cache.counters.removed_page_count == 1
    assert world.states() == {"FREE": 7, "CACHED": 1}
    world.laws.check()


def test_an_answer_whose_pin_a_repeated_call_dropped_is_asked_for_again() -> None:
    """Two copies of one call found the same page bad: the later one has no pin of its own left."""
    world = CoreWorld()
    publish(world.worker, "ab")
    (_, first), (_, repeated) = ask(world.worker, "ab"), ask(world.worker, "ab")
    assert not conclude(world.worker, repeated, "b")
    assert not conclude(world.worker, first, "b")
    assert world.cache.counters.corrupt_page_count == 1
    assert not world.worker.lease.pins
    world.laws.check()


def test_both_copies_of_a_call_are_answered_where_nothing_is_wrong() -> None:
    """The one that comes to its verdict later has the same pin."""
    world = CoreWorld()
    publish(world.worker, "ab")
    (_, first), (_, repeated) = ask(world.worker, "ab"), ask(world.worker, "ab")
    assert conclude(world.worker, repeated)
    assert conclude(world.worker, first)
    assert list(world.worker.lease.pins) == [1]


def test_who_did_not_look_at_the_bad_page_asks_again_too() -> None:
    """An answer kept back is not given once a page of it is known to be bad."""
    world = CoreWorld()
    other = world.join("other")
    publish(world.worker, "ab")
    (_, first), (_, second) = ask(world.worker, "ab"), ask(other, "ab")
    assert not conclude(world.worker, first, "b")
    assert not conclude(other, second)
    assert other.match("ab", 1).matched_token_count == 2


def test_a_page_is_found_where_a_split_put_it() -> None:
    """Between the look and the verdict others insert; the page is above or below the cut then."""
    for bad, left in (("a", {}), ("c", {"abx": {}})):
        world = CoreWorld()
        publish(world.worker, "abc")
        _, inspection = ask(world.worker, "abc")
        world.join("other").publish("abx")
        assert world.shape() == {"ab": {"c": {}, "x": {}}}
        assert not conclude(world.worker, inspection, bad)
        assert world.shape() == left
        world.laws.check()


def test_what_was_given_back_meanwhile_is_not_blamed() -> None:
    """The lease ends, the slot is another page's: that its bytes changed is no fault."""
    world = CoreWorld(slots=2)
    other = world.join("other")
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.cache.process_died(world.worker.process_id, world.now)
    other.publish("xy")
    corrupt = found_bad(inspection, "ab")
    assert world.cache.remove_corrupt(inspection, corrupt, 2) == []
    with pytest.raises(LeaseNotFound):
        world.cache.settle(inspection, corrupt)
    assert world.shape() == {"xy": {}}
    assert world.cache.state.ended.verified_page_count == 2
    world.laws.check()


def test_a_bad_page_goes_whoever_asked_is_gone() -> None:
    """The lease ended between the look and the verdict: the page leaves, the error says so."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.cache.process_died(world.worker.process_id, world.now)
    with pytest.raises(LeaseNotFound):
        conclude(world.worker, inspection, "b")
    assert world.shape() == {"a": {}}
    assert world.cache.state.ended.corrupt_page_count == 1
    world.laws.check()


def test_an_expired_lease_is_told_so() -> None:
    """Its holds stay until it releases them or is dead."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.cache.expire(world.now + 1000)
    with pytest.raises(LeaseExpired):
        conclude(world.worker, inspection)
    assert list(world.worker.lease.pins) == [1]
    world.laws.check()


def test_a_pin_that_was_released_meanwhile_stays_released() -> None:
    """The client gave up before it had an answer."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.worker.release(1)
    with pytest.raises(Tombstoned):
        conclude(world.worker, inspection, "b")
    assert world.shape() == {"a": {}}
    world.laws.check()


def test_a_repeated_call_may_answer_first() -> None:
    """Once it did, its pin is not dropped: the pages may be in use. The first call says why."""
    world = CoreWorld()
    publish(world.worker, "ab")
    match, inspection = ask(world.worker, "ab")
    _, repeated = ask(world.worker, "ab")
    assert conclude(world.worker, repeated)
    with pytest.raises(PageCorrupt) as caught:
        conclude(world.worker, inspection, "b")
    assert caught.value.metadata == {"page_position": "1"}
    assert places(world.worker.match("ab", 1).runs) == places(match.runs)
    assert world.states() == {"FREE": 6, "CACHED": 1, "DETACHED": 1}
    world.laws.check()


def test_a_repeated_call_may_ask_again_first() -> None:
    """Then the first one's pin is gone, and it has to ask again for the one there is."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    _, repeated = ask(world.worker, "ab")
    assert not conclude(world.worker, repeated, "b")
    shorter, again = ask(world.worker, "ab")
    assert conclude(world.worker, again)
    assert not conclude(world.worker, inspection)
    assert world.worker.match("ab", 1) == shorter


@pytest.mark.parametrize("bad", [True, False])
def test_a_superseded_page_found_bad_takes_its_next_token_along(*, bad: bool) -> None:
    """The fuller page keeps the next tokens of a good one; of a bad one nobody is told."""
    world = CoreWorld(page_tokens=4, divides_by_token=True)
    caller, cache = world.worker.caller, world.cache
    page = b"".join(each.to_bytes(4, "little") for each in (1, 2, 3, 4))
    for number in (1, 2):
        world.worker.reserve(number, 1)
    cache.insert(caller, 1, Sequence(page[:8]), world.now, checksums=[11], next_token=3)
    options = MatchOptions(5, 6, accept_next_token=True)
    asked = (caller, NAMESPACE_ID, Sequence(page[:8]), options, world.now)
    match, inspection = cache.match_with_checks(*asked, range)
    assert match.next_token == 3
    assert inspection is not None
    cache.insert(caller, 2, Sequence(page), world.now, checksums=[12])
    corrupt = inspection.pages if bad else ()
    assert cache.remove_corrupt(inspection, corrupt, 1) == []
    assert not cache.settle(inspection, corrupt)
    match = cache.match(*asked)
    assert match.source is not None
    assert (match.next_token, match.source.valid_token_count) == ((None, 1) if bad else (3, 2))
    world.laws.check()


def test_a_repeated_call_without_checks_answers_and_counts_once() -> None:
    """A repeat whose pages nobody picks gives the answer of the first call, which counts then."""
    world = CoreWorld()
    publish(world.worker, "ab")
    lookups = world.cache.counters.lookup_count
    match, _ = ask(world.worker, "ab")
    sequence, options = world.worker.sequence("ab"), MatchOptions(1)
    for _ in range(2):
        again, inspection = world.cache.match_with_checks(
            world.worker.caller, NAMESPACE_ID, sequence, options, world.now, lambda _: []
        )
        assert (again, inspection) == (match, None)
        assert world.cache.counters.lookup_count == lookups + 1
