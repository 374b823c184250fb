"""Answers that are kept back until their pages were looked at, and what happens to bad ones."""

from collections.abc import Sequence as Items

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged, places
from core.verify_calls import ask, conclude, everything, publish
from kvstore.core.values.event_log import Cause
from kvstore.core.values.requests import (
    Caller,
    Grant,
    Match,
    MatchOptions,
    NamedPinRequest,
    Sequence,
)
from kvstore.core.verbs.verify import Inspection


def test_pages_with_a_checksum_are_looked_at() -> None:
    """A check has the picked page's place, its generation and its checksum."""
    world = CoreWorld()
    publish(world.worker, "ab")
    world.worker.publish("abc")
    publish(world.worker, "abcd", 901)
    match, inspection = ask(world.worker, "abcd")
    slots = places(match.runs)
    assert [(each.slot, each.checksum, each.page_position) for each in inspection.pages] == [
        (1 << 32 | slots[3], ord("d"), 3),
        (1 << 32 | slots[1], ord("b"), 1),
        (1 << 32 | slots[0], ord("a"), 0),
    ]
    assert {each.generation for each in inspection.pages} == {0}


@pytest.mark.parametrize(("picked", "expected"), [([0], "a"), ([1, 3], "db"), ([], "")])
def test_only_picked_pages_are_looked_at(picked: Items[int], expected: str) -> None:
    """Pages that nobody picked are not read; without any, the answer is given at once."""
    world = CoreWorld()
    publish(world.worker, "abcd")
    publish(world.worker, "abx", 901)
    options = MatchOptions(1)
    sequence = world.worker.sequence("abcd")
    caller = world.worker.caller
    _, inspection = world.cache.match_with_checks(
        caller, NAMESPACE_ID, sequence, options, world.now, lambda _: picked
    )
    pages = () if inspection is None else inspection.pages
    assert "".join(chr(each.checksum) for each in pages) == expected
    assert world.cache.counters.lookup_count == (2 if expected else 3)


def test_a_good_answer_is_given_and_counts_then() -> None:
    """Nothing is counted before, and a repeated call neither counts nor is looked at again."""
    world = CoreWorld()
    publish(world.worker, "ab")
    lookups = world.cache.counters.lookup_count
    match, inspection = ask(world.worker, "ab")
    assert world.cache.counters.lookup_count == lookups
    assert conclude(world.worker, inspection)
    counters = world.worker.lease.counters
    assert (counters.lookup_count, counters.full_hit_count) == (lookups + 1, 1)
    assert (counters.verified_page_count, counters.corrupt_page_count) == (2, 0)
    sequence = world.worker.sequence("ab")
    again = world.cache.match_with_checks(
        world.worker.caller, NAMESPACE_ID, sequence, MatchOptions(1), world.now, everything
    )
    assert again == (match, None)
    assert counters.lookup_count == lookups + 1
    world.laws.check()


def test_a_bad_page_leaves_with_all_below_it() -> None:
    """From within a node: what is above stays, siblings stay, and the same call finds less."""
    world = CoreWorld(slots=12)
    publish(world.worker, "abcd")
    publish(world.worker, "abcde", 901)
    publish(world.worker, "ax", 902)
    _, inspection = ask(world.worker, "abcd")
    assert not conclude(world.worker, inspection, "b")
    assert world.shape() == {"ax": {}}
    assert world.states() == {"FREE": 10, "CACHED": 2}
    match, again = ask(world.worker, "abcd")
    assert match.matched_token_count == 2
    assert conclude(world.worker, again)
    assert world.worker.match("abcd", 1) == match
    counters = world.cache.counters
    assert (counters.corrupt_page_count, counters.removed_page_count) == (1, 4)
    assert world.cache.state.removed_pages == {Cause.CORRUPT: 4}
    world.laws.check()


def test_a_first_page_found_bad_leaves_nothing() -> None:
    """The call is a miss then, and takes no pin."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    assert not conclude(world.worker, inspection, "a")
    sequence = world.worker.sequence("ab")
    answer = world.cache.match_with_checks(
        world.worker.caller, NAMESPACE_ID, sequence, MatchOptions(1), world.now, everything
    )
    assert answer == (Match(0, ()), None)
    assert world.worker.lease.pins == {}
    assert world.states() == {"FREE": 8}
    world.laws.check()


def test_several_bad_pages_are_counted_each() -> None:
    """Those below another one leave with it, and were no less bad."""
    world = CoreWorld()
    publish(world.worker, "abcd")
    _, inspection = ask(world.worker, "abcd")
    assert not conclude(world.worker, inspection, "bd")
    assert world.cache.counters.corrupt_page_count == 2
    assert world.shape() == {"a": {}}


def test_holders_read_on_and_insert_no_more() -> None:
    """A pin that was answered before keeps its slots until it is released."""
    world = CoreWorld()
    other = world.join("other")
    publish(world.worker, "abc")
    other.match("abc", 7)
    _, inspection = ask(world.worker, "abc")
    assert not conclude(world.worker, inspection, "b")
    assert world.states() == {"FREE": 5, "CACHED": 1, "DETACHED": 2}
    assert len(places(other.match("abc", 7).runs)) == 3
    world.laws.check()
    other.release(7)
    assert world.states() == {"FREE": 7, "CACHED": 1}


def test_an_answer_that_is_withdrawn_holds_nothing() -> None:
    """Its pin is removed without a tombstone; an answered or removed one stays as it is."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.cache.withdraw(inspection)
    assert not world.worker.lease.pins
    world.cache.withdraw(inspection)
    _, again = ask(world.worker, "ab")
    world.cache.withdraw(inspection)
    assert conclude(world.worker, again)
    world.cache.withdraw(again)
    assert list(world.worker.lease.pins) == [1]
    world.worker.release(1)
    world.laws.check()


def test_a_named_pin_on_a_bad_page_ends() -> None:
    """As where an operator removes a page."""
    world = CoreWorld()
    publish(world.worker, "ab")
    request = NamedPinRequest("kept", paged("ab"))
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    _, inspection = ask(world.worker, "ab")
    assert not conclude(world.worker, inspection, "b")
    assert world.cache.state.named_pins.of(world.namespace) == {}
    world.laws.check()


class Acquiring:
    """A worker that acquires four pages, the first three of which are cached."""

    def __init__(self) -> None:
        self.world = CoreWorld()
        self.worker = self.world.worker
        publish(self.worker, "abc")
        self.inspection: Inspection | None = None

    @property
    def caller(self) -> Caller:
        """The caller of the world's worker."""
        return self.worker.caller

    def ask(self) -> tuple[Match, Grant | None]:
        """Acquires under pin 1 and reservation 2, to be verified."""
        match, grant, self.inspection = self.world.cache.acquire_with_checks(
            self.caller,
            NAMESPACE_ID,
            self.worker.sequence("abcd"),
            MatchOptions(1),
            reservation_id=2,
            total_page_count=4,
            now=self.world.now,
            pick=everything,
        )
        return match, grant


def test_an_acquire_reserves_again_from_where_its_match_ends() -> None:
    """The slots of the answer that was not given go back, and the new ones follow the match."""
    acquiring = Acquiring()
    world = acquiring.world
    _, grant = acquiring.ask()
    assert grant is not None
    assert grant.start_page == 3
    assert acquiring.inspection is not None
    assert not conclude(acquiring.worker, acquiring.inspection, "b")
    assert world.states() == {"FREE": 7, "CACHED": 1}
    match, grant = acquiring.ask()
    assert grant is not None
    assert (match.matched_token_count, grant.start_page, len(places(grant.runs))) == (2, 1, 3)
    assert conclude(acquiring.worker, acquiring.inspection)
    assert acquiring.ask() == (match, grant)
    world.laws.check()


def test_a_withdrawn_acquire_leaves_nothing_and_can_be_repeated() -> None:
    """Neither slots nor a tombstone: the same call under the same ids is a first one again."""
    acquiring = Acquiring()
    world, lease = acquiring.world, acquiring.worker.lease
    answer = acquiring.ask()
    assert acquiring.inspection is not None
    world.cache.withdraw(acquiring.inspection)
    assert (lease.pins, lease.reservations) == ({}, {})
    assert world.states() == {"FREE": 5, "CACHED": 3}
    assert lease.counters.lookup_count == 1, "of the worker that published"
    world.laws.check()
    again = acquiring.ask()
    assert again[0] == answer[0]
    assert again[1] is not None
    assert conclude(acquiring.worker, acquiring.inspection)
    world.laws.check()


def test_a_withdrawn_acquire_of_an_expired_lease_leaves_no_quarantine() -> None:
    """Nobody was told of its slots, so nobody writes them."""
    acquiring = Acquiring()
    world = acquiring.world
    acquiring.ask()
    assert acquiring.inspection is not None
    world.now += 1e6
    world.cache.expire(world.now)
    assert world.states() == {"FREE": 4, "CACHED": 3, "QUARANTINED": 1}
    world.cache.withdraw(acquiring.inspection)
    assert world.states() == {"FREE": 5, "CACHED": 3}
    world.laws.check()
    [process_id] = world.cache.table.processes
    world.cache.process_died(process_id, world.now)
    world.cache.withdraw(acquiring.inspection)
    assert not world.cache.table.leases
    world.laws.check()


def test_a_reservation_that_was_there_before_stays() -> None:
    """Only what came with the answer that was not given goes."""
    acquiring = Acquiring()
    world = acquiring.world
    world.worker.match("abcd", 1)
    acquiring.ask()
    assert acquiring.inspection is None
    assert list(world.worker.lease.reservations) == [2]


def tokens(*numbers: int) -> bytes:
    """Returns token ids as bytes."""
    return b"".join(each.to_bytes(4, "little") for each in numbers)


def test_a_source_page_is_looked_at_too() -> None:
    """Found bad, another one is answered, or none; next tokens within it go with it."""
    world = CoreWorld(page_tokens=4, divides_by_token=True)
    caller, cache = world.worker.caller, world.cache
    for number, page in ((1, tokens(1, 2, 3, 4)), (2, tokens(1, 2, 3, 5))):
        world.worker.reserve(number, 1)
        cache.insert(caller, number, Sequence(page), world.now, checksums=[number])
    # Computed, for all that is known, on either of the two.
    cache.insert(caller, 1, Sequence(tokens(1, 2)), world.now, next_token=3)
    world.worker.abort(1, 2)
    asked = Sequence(tokens(1, 2))
    options = MatchOptions(5, 6, accept_next_token=True)

    def ask_again() -> tuple[Match, Inspection | None]:
        return cache.match_with_checks(caller, NAMESPACE_ID, asked, options, world.now, everything)

    match, inspection = ask_again()
    assert (match.next_token, match.matched_token_count) == (3, 0)
    assert inspection is not None
    assert [each.page_position for each in inspection.pages] == [0]
    cache.remove_corrupt(inspection, inspection.pages, 1)
    assert not cache.settle(inspection, inspection.pages)
    match, inspection = ask_again()
    assert match.source is not None
    assert (match.next_token, match.source.valid_token_count) == (None, 1)
    assert inspection is not None
    assert cache.settle(inspection, ())
    assert world.states() == {"FREE": 7, "CACHED": 1}
    world.laws.check()
