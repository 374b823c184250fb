"""Source pages: reuse to the token."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, picture, places
from core.letter_world import LetterWorld, letters
from kvstore.core.stats import HoldKind, hold_stats, snapshot
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Grant, Match, MatchOptions, Sequence
from kvstore.errors import IdReused, ParentNotCovered, PoolExhausted, QuotaExceeded, Tombstoned


def source(match: Match) -> tuple[int, int] | None:
    """Returns the slot of a match's source page and how many of its tokens are of use."""
    if match.source is None:
        return None
    [place] = places([match.source.page])
    return place, match.source.valid_token_count


@pytest.mark.parametrize(
    ("text", "matched", "expected"),
    [
        ("abcdefxxx", 4, (1, 2)),
        ("abcdefgh", 4, (1, 3)),
        ("abcdefghi", 8, None),
        ("abcdefghijk", 8, (2, 2)),
        ("abcdefghijxx", 8, (2, 2)),
        ("abcxyz", 0, (0, 3)),
        ("abc", 0, (0, 2)),
        ("abcd", 0, (0, 3)),
        ("a", 0, None),
        ("", 0, None),
        ("xyz", 0, None),
    ],
)
def test_what_lies_within_a_page_is_reused(
    text: str, matched: int, expected: tuple[int, int] | None
) -> None:
    """The page where the sequence parts, ends or is capped is answered, and its tokens counted."""
    world = LetterWorld()
    world.write("abcdefghij", 1)
    match = world.match(text, 1, 2)
    assert (match.matched_token_count, source(match)) == (matched, expected)
    peeked = world.cache.peek(OWNER, NAMESPACE_ID, letters(text), 100.0)
    assert peeked.matched_token_count == matched
    assert peeked.source_token_count == (expected[1] if expected else 0)
    world.check()


def test_the_best_of_siblings_is_the_source() -> None:
    """The source page is the one that agrees longest among those after the same path."""
    world = LetterWorld()
    for number, text in enumerate(["abcdmmmm", "abcdmnnn", "abcdmnop", "abcdz"], start=1):
        world.write(text, number)
    match = world.match("abcdmnoqxx", 1, 2)
    assert match.source is not None
    assert match.source.valid_token_count == 3


def test_a_source_pin_counts_one_page() -> None:
    """Whatever lies above its page, that is what it is for."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    lease = snapshot(world.cache, OWNER, world.core.now).leases[0]
    assert (lease.pin_count, lease.pinned_page_count) == (2, 1 + 1)


def test_a_source_page_is_pinned_by_its_own_pin() -> None:
    """Eviction spares it until its pin is released; the path's pin does not hold it."""
    world = LetterWorld(slots=3)
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    world.worker.release(1)
    world.worker.reserve(2, 1)
    with pytest.raises(PoolExhausted):
        world.worker.reserve(3, 1)
    world.worker.release(2)
    world.worker.reserve(3, 1)
    world.check()


def test_a_source_page_that_is_removed_stays_until_its_release() -> None:
    """A copy under way is not torn."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    world.worker.release(1)
    world.evict_prefix("abcde")
    assert world.core.states() == {"FREE": 14, "CACHED": 1, "DETACHED": 1}
    world.check()
    world.worker.release(2)
    assert world.core.states() == {"FREE": 15, "CACHED": 1}


def test_a_hit_within_the_first_page_is_a_hit() -> None:
    """Nothing is used in place, and both pins are there."""
    world = LetterWorld()
    world.write("abcd", 1)
    match = world.match("abxx", 1, 2)
    assert (match.matched_token_count, source(match)) == (0, (0, 2))
    assert set(world.worker.lease.pins) == {1, 2}
    assert world.match("abxx", 1, 2) == match
    assert world.cache.counters.partial_hit_count == 1
    assert world.cache.counters.copied_token_count == 2
    world.check()


def test_source_pages_come_to_those_who_want_them() -> None:
    """Without a pin for it, or in a layout that does not divide, there is none."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    assert source(world.match("abcdefxx", 1)) is None
    assert world.cache.counters.full_hit_count == 1
    rigid = LetterWorld(divides_by_token=False)
    rigid.write("abcdefgh", 1)
    assert source(rigid.match("abcdefxx", 1, 2)) is None
    peeked = rigid.cache.peek(OWNER, NAMESPACE_ID, letters("abcdefxx"), 100.0)
    assert peeked.source_token_count == 0


def test_a_source_page_that_is_not_mapped_is_not_handed_out() -> None:
    """Only what all processes of the lease can read is answered."""
    world = LetterWorld(slots=1)
    world.core.cache.add_extent(1, 2, 4)
    other = world.core.join("other")
    world.worker.map_memory()
    world.write("abcdefgh", 1)
    world.cache.bind(other.caller, process_id=77, pid=1, uid=1)
    world.cache.acknowledge(77, [1])
    match = world.match("abcdefxx", 1, 2, worker=other)
    assert (match.matched_token_count, source(match)) == (4, None)


def test_ids_are_of_one_match() -> None:
    """A pin's id is not taken for a source's, nor one for both, nor one that was released."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    for pin_id, source_id in ((3, 1), (3, 2), (4, 4), (2, None), (1, 5)):
        with pytest.raises(IdReused):
            world.match("abcdefxx", pin_id, source_id)
    world.worker.release(2)
    for pin_id, source_id in ((1, 2), (5, 2)):
        with pytest.raises(Tombstoned):
            world.match("abcdefxx", pin_id, source_id)
    assert set(world.worker.lease.pins) == {1}


def test_nothing_is_continued_from_a_source_page() -> None:
    """Its path is another sequence's."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    with pytest.raises(ParentNotCovered):
        world.cache.match(
            world.worker.caller,
            NAMESPACE_ID,
            Sequence(letters("i"), 4, base_pin_id=2),
            MatchOptions(3),
            world.core.now,
        )


def test_both_pins_count_against_the_lease() -> None:
    """A match that may take two pins needs room for two, and else changes nothing."""
    world = LetterWorld(limits=Limits(max_holds_per_lease=1))
    world.write("abcdefgh", 1)
    before = picture(world.core.namespace.index)
    with pytest.raises(QuotaExceeded):
        world.match("abcdefxx", 1, 2)
    assert picture(world.core.namespace.index) == before
    world.match("abcdefxx", 1)


def test_an_acquire_reserves_the_page_that_the_source_is_copied_into() -> None:
    """The reservation starts behind the pages in place: its first slot is for the copy."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    match, grant = world.cache.acquire(
        world.worker.caller,
        NAMESPACE_ID,
        Sequence(letters("abcdefxx")),
        MatchOptions(1, 2),
        reservation_id=3,
        total_page_count=2,
        now=world.core.now,
    )
    assert grant is not None
    assert (grant.start_page, source(match)) == (1, (1, 2))
    inserted = world.insert(3, "efxx", 4, base_pin_id=1)
    assert places(inserted.runs) == places(grant.runs)
    world.check()


def test_a_repeat_long_after_the_source_was_released_is_refused() -> None:
    """Its tombstone is gone by then; the pin that is held still names it."""
    world = LetterWorld(limits=Limits(tombstone_ttl=5.0, default_ttl=100.0))
    world.write("abcdefgh", 1)
    world.match("abcdefxx", 1, 2)
    world.worker.release(2)
    world.core.now += 6.0
    world.cache.expire(world.core.now)
    with pytest.raises(Tombstoned):
        world.match("abcdefxx", 1, 2)
    world.match("abcdefgh", 2)
    with pytest.raises(Tombstoned):
        world.match("abcdefxx", 1, 2)
    world.check()


def test_an_acquire_under_a_released_source_fails_whole() -> None:
    """Also where the first call's match was a miss, and its reservation is there."""
    world = LetterWorld()

    def acquire(total: int) -> tuple[Match, Grant | None]:
        return world.cache.acquire(
            world.worker.caller,
            NAMESPACE_ID,
            Sequence(letters("abcdef")),
            MatchOptions(1, 2),
            reservation_id=3,
            total_page_count=total,
            now=world.core.now,
        )

    acquire(2)
    world.worker.release(2)
    with pytest.raises(Tombstoned):
        acquire(3)
    assert world.core.states() == {"FREE": 14, "RESERVED": 2}


def test_a_source_is_listed_as_a_hold_of_one_page() -> None:
    """Its tokens are those that belong to the sequence, and it is detached when its page is."""
    world = LetterWorld()
    world.write("abcdefgh", 9)
    world.match("abcdefxx", 1, 2)
    world.evict_prefix("abcdefgh")
    pin, source = hold_stats(world.worker.lease, world.core.now)
    assert (pin.kind, pin.token_count, pin.detached_page_count) == (HoldKind.PIN, 4, 0)
    assert (source.kind, source.hold_id) == (HoldKind.SOURCE, 2)
    assert (source.page_count, source.token_count, source.detached_page_count) == (1, 2, 1)
