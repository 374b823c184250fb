"""The bases that an insert may continue, and the inserts that are refused."""

import pytest

from core.core_builders import FILLER, CoreWorld, paged
from kvstore.core.values.requests import Sequence
from kvstore.errors import (
    InsertExceedsReservation,
    InvalidField,
    LeaseExpired,
    ParentDetached,
    ParentNotCovered,
    PinNotFound,
    ReservationNotFound,
    Tombstoned,
)


def test_only_whole_pages_are_inserted() -> None:
    """Tokens or a position that end inside a page are refused."""
    world = CoreWorld()
    world.worker.reserve(1, 2)
    for sequence, field in (
        (Sequence(paged("a") + FILLER), "tokens"),
        (Sequence(paged("a"), 1), "position"),
        (Sequence(b"abc"), "tokens"),
    ):
        with pytest.raises(InvalidField) as error:
            world.cache.insert(world.worker.caller, 1, sequence, world.now)
        assert error.value.metadata["field"] == field
    assert world.states() == {"FREE": 6, "RESERVED": 2}


def test_an_insert_stays_within_its_reservation() -> None:
    """Pages before the reservation's start or behind its end are refused, all of them."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.worker.reserve(2, 2, start=1)
    for letters, page in (("bcd", 1), ("ab", 0), ("de", 3)):
        with pytest.raises(InsertExceedsReservation) as error:
            world.worker.insert(2, letters, page, base_pin_id=1)
        expected = {"page_position": str(page), "page_count": str(len(letters))}
        assert error.value.metadata == {**expected, "reserved_end": "3"}
    assert world.states() == {"FREE": 4, "CACHED": 2, "RESERVED": 2}


def test_pages_are_inserted_in_prefix_order() -> None:
    """A gap after what was inserted is refused: no page without its parent."""
    world = CoreWorld()
    world.worker.reserve(1, 4)
    world.worker.insert(1, "a")
    with pytest.raises(ParentNotCovered) as error:
        world.worker.insert(1, "cd", 2)
    assert error.value.metadata == {"page_position": "2", "covered": "1"}
    assert world.shape() == {"a": {}}


def test_what_follows_a_prefix_needs_a_hold_on_it() -> None:
    """A reservation that starts deeper than 0 publishes only under a base that reaches there."""
    world = CoreWorld()
    world.worker.publish("abc")
    world.worker.match("a", 1)
    world.worker.match("ab", 2)
    world.worker.reserve(3, 2, start=2)
    for base in ({}, {"base_pin_id": 1}):
        with pytest.raises(ParentNotCovered):
            world.worker.insert(3, "xy", 2, **base)
    with pytest.raises(PinNotFound):
        world.worker.insert(3, "xy", 2, base_pin_id=9)
    world.worker.insert(3, "xy", 2, base_pin_id=2)
    assert world.shape() == {"ab": {"c": {}, "xy": {}}}


def test_a_base_may_reach_further_than_the_insert() -> None:
    """A pin on a longer path covers every place above its end."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abcd", 1)
    world.worker.reserve(2, 2, start=1)
    world.worker.insert(2, "xy", 1, base_pin_id=1)
    assert world.shape() == {"a": {"bcd": {}, "xy": {}}}
    assert world.worker.match("abcd", 1).matched_token_count == 8
    world.laws.check()


def test_another_reservation_can_be_the_base() -> None:
    """A reservation may continue the pages that another one published."""
    world = CoreWorld()
    world.worker.reserve(1, 2)
    world.worker.insert(1, "ab")
    world.worker.reserve(2, 2, start=2)
    world.worker.insert(2, "cd", 2, base_reservation_id=1)
    assert world.shape() == {"abcd": {}}
    world.laws.check()


def test_after_the_first_insert_no_base_is_needed() -> None:
    """A reservation carries its own continuation, its base released or not."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.acquire("abcd", 1, 2, total=5)
    world.worker.insert(2, "c", 2, base_pin_id=1)
    world.worker.release(1)
    world.worker.insert(2, "d", 3)
    world.worker.insert(2, "e", 4)
    assert world.shape() == {"abcde": {}}


def test_nothing_is_published_on_a_removed_path() -> None:
    """Under a pin whose path was removed at the place an insert fails, and its slots stay."""
    world = CoreWorld()
    world.worker.publish("abc")
    world.worker.match("abc", 1)
    world.worker.reserve(2, 2, start=3)
    world.evict_prefix("abc")
    with pytest.raises(ParentDetached) as error:
        world.worker.insert(2, "de", 3, base_pin_id=1)
    assert error.value.metadata == {"page_position": "3"}
    assert world.states()["RESERVED"] == 2
    world.worker.publish("abc")
    with pytest.raises(ParentDetached):
        world.worker.insert(2, "de", 3, base_pin_id=1)
    world.laws.check()


def test_what_is_left_of_a_removed_path_can_be_continued() -> None:
    """Above the removed page the base still covers, and an insert there succeeds."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abcd", 1)
    world.evict_prefix("abc")
    world.worker.reserve(2, 1, start=2)
    world.worker.insert(2, "x", 2, base_pin_id=1)
    assert world.shape() == {"abx": {}}
    assert world.states() == {"FREE": 3, "CACHED": 3, "DETACHED": 2}
    world.laws.check()


def test_who_may_not_insert() -> None:
    """An unknown or ended reservation and an expired lease publish nothing."""
    world = CoreWorld()
    world.worker.reserve(1, 2)
    with pytest.raises(ReservationNotFound):
        world.worker.insert(2, "ab")
    world.worker.abort(2)
    with pytest.raises(Tombstoned):
        world.worker.insert(2, "ab")
    world.cache.expire(world.now + 10)
    with pytest.raises(LeaseExpired):
        world.worker.insert(1, "ab")
    assert world.shape() == {}
