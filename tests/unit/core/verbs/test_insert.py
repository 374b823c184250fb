"""Publishing reserved pages: what is answered, what was there first, what is held."""

import pytest

from core.core_builders import CoreWorld, node_at, places
from kvstore.core.values.requests import Inserted
from kvstore.errors import (
    IdReused,
    ParentDetached,
    PoolExhausted,
)


def test_what_was_inserted_is_matched_by_others() -> None:
    """Published pages are in the slots that were reserved for them, for every lease."""
    world = CoreWorld()
    grant = world.worker.reserve(1, 3)
    inserted = world.worker.insert(1, "abc")
    assert (inserted.runs, inserted.published_page_count) == (grant.runs, 3)
    assert world.join("other").match("abc", 1).runs == grant.runs
    assert world.states() == {"FREE": 5, "CACHED": 3}
    world.laws.check()


def test_what_was_not_inserted_is_not_visible() -> None:
    """Only the inserted pages of a reservation can be matched."""
    world = CoreWorld()
    world.worker.reserve(1, 4)
    world.worker.insert(1, "ab")
    assert world.join("other").match("abcd", 1).matched_token_count == 4
    assert world.states() == {"FREE": 4, "CACHED": 2, "RESERVED": 2}


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_pitfall_page_sliced_lists_by_token_count(page_tokens: int) -> None:
    """Inserted by chunks, each answer has the slots of that chunk's pages, however long a page."""
    world = CoreWorld(page_tokens=page_tokens)
    slots = places(world.worker.reserve(1, 6).runs)
    for first, letters in ((0, "a"), (1, "bc"), (3, "def")):
        inserted = world.worker.insert(1, letters, first)
        assert places(inserted.runs) == slots[first : first + len(letters)]
        assert inserted.published_page_count == len(letters)
    assert world.shape() == {"abcdef": {}}
    assert places(world.join("other").match("abcdef", 1).runs) == slots


def test_pitfall_duplicates_dropped_on_insert() -> None:
    """The first to publish a page stays; the second's slots remain its own until it ends."""
    world = CoreWorld()
    other = world.join("other")
    first = places(world.worker.reserve(1, 2).runs)
    second = places(other.reserve(1, 3).runs)
    world.worker.insert(1, "ab")
    inserted = other.insert(1, "abc")
    assert places(inserted.runs) == [*first, second[2]]
    assert inserted.published_page_count == 1
    assert world.states() == {"FREE": 3, "CACHED": 3, "RESERVED": 2}
    world.laws.check()
    other.abort(1)
    assert world.states() == {"FREE": 5, "CACHED": 3}
    world.laws.check()


def test_pitfall_empty_slot_list_on_a_cached_start() -> None:
    """A writer reserves and inserts the rest of a path whose beginning is cached."""
    world = CoreWorld()
    world.worker.publish("ab")
    match, grant = world.worker.acquire("abcd", 1, 2)
    assert grant is not None
    inserted = world.worker.insert(2, "cd", 2, base_pin_id=1)
    assert places(inserted.runs) == places(grant.runs)
    assert inserted.published_page_count == 2
    whole = places(match.runs) + places(grant.runs)
    assert places(world.worker.match("abcd", 3).runs) == whole
    assert [slot & 0xFF for slot in world.worker.lease.reservations[2].slots()] == whole


def test_duplicates_alone_are_published_by_no_one() -> None:
    """An insert of cached pages publishes nothing, and holds the path."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab")
    world.worker.reserve(1, 2)
    assert world.worker.insert(1, "ab").published_page_count == 0
    assert world.states() == {"CACHED": 2, "RESERVED": 2}
    with pytest.raises(PoolExhausted):
        world.join("other").reserve(1, 1)
    counters = world.namespace.counters
    assert (counters.inserted_page_count, counters.duplicate_page_count) == (2, 2)
    world.laws.check()


def test_a_repeated_insert_is_answered_from_the_record() -> None:
    """The same pages again have the same answer; what was the first's stays the first's."""
    world = CoreWorld()
    world.worker.publish("a")
    world.worker.reserve(1, 3)
    first = world.worker.insert(1, "abc")
    assert first.published_page_count == 2
    counters = world.cache.counters.copy()
    assert world.worker.insert(1, "abc") == first
    assert world.cache.counters == counters
    world.laws.check()


def test_a_repeated_insert_may_go_on() -> None:
    """Pages inserted before and new ones can come in one call; only the new are published."""
    world = CoreWorld()
    slots = places(world.worker.reserve(1, 4).runs)
    world.worker.insert(1, "ab")
    assert places(world.worker.insert(1, "bcd", 1).runs) == slots[1:]
    assert world.shape() == {"abcd": {}}
    assert world.cache.counters.inserted_page_count == 4


def test_a_repeated_insert_may_be_a_part() -> None:
    """Any run of pages that was inserted can be asked for again."""
    world = CoreWorld()
    slots = places(world.worker.reserve(1, 4).runs)
    world.worker.insert(1, "abcd")
    inserted = world.worker.insert(1, "bc", 1)
    assert (places(inserted.runs), inserted.published_page_count) == (slots[1:3], 2)


def test_a_repeated_part_counts_its_own_pages() -> None:
    """A repeated part of a deeper reservation counts the pages that are its own."""
    world = CoreWorld()
    world.worker.publish("abc")
    world.worker.match("ab", 1)
    world.worker.reserve(2, 4, start=2)
    assert world.worker.insert(2, "cdef", 2, base_pin_id=1).published_page_count == 3
    counts = [world.worker.insert(2, each, 2).published_page_count for each in ("c", "cd", "cde")]
    assert counts == [0, 1, 2]
    assert world.worker.insert(2, "de", 3).published_page_count == 2


def test_what_was_inserted_cannot_be_said_otherwise() -> None:
    """Other tokens at a place inserted before are refused, and nothing is published."""
    world = CoreWorld()
    world.worker.reserve(1, 4)
    world.worker.insert(1, "abc")
    for letters in ("abx", "xbc", "abxd"):
        with pytest.raises(IdReused):
            world.worker.insert(1, letters)
    assert world.shape() == {"abc": {}}
    assert world.states()["RESERVED"] == 1


def test_a_repeated_insert_names_removed_pages() -> None:
    """Published pages stay the answer after an operator removed them; nothing follows them."""
    world = CoreWorld()
    world.worker.reserve(1, 4)
    first = world.worker.insert(1, "abc")
    world.evict_prefix("b")
    world.evict_prefix("ab")
    assert world.worker.insert(1, "abc") == first
    with pytest.raises(ParentDetached) as error:
        world.worker.insert(1, "d", 3)
    assert error.value.metadata == {"page_position": "3"}
    assert world.states() == {"FREE": 4, "CACHED": 1, "DETACHED": 2, "RESERVED": 1}
    world.laws.check()


def test_no_pages_are_no_insert() -> None:
    """Without tokens nothing is published, and the answer is empty."""
    world = CoreWorld()
    world.worker.reserve(1, 2)
    assert world.worker.insert(1, "") == Inserted((), 0)
    world.worker.insert(1, "ab")
    assert world.worker.insert(1, "", 1) == Inserted((), 0)


def test_a_writers_pages_are_held_until_it_ends() -> None:
    """Inserted pages, and the path above them, cannot be evicted before the abort."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab")
    world.worker.acquire("abcd", 1, 2)
    world.worker.insert(2, "cd", 2, base_pin_id=1)
    world.worker.release(1)
    other = world.join("other")
    with pytest.raises(PoolExhausted):
        other.reserve(1, 1)
    world.worker.abort(2)
    other.reserve(1, 4)
    assert world.shape() == {}


def test_an_insert_uses_what_it_ends_in() -> None:
    """Published or duplicate, the end of an insert is the most recently used."""
    world = CoreWorld(slots=6)
    world.worker.publish("ab", "xy")
    world.worker.reserve(1, 2)
    world.worker.insert(1, "ab")
    world.worker.abort(1)
    index = world.namespace.index
    assert node_at(index, "ab").last_use > node_at(index, "xy").last_use
    world.worker.reserve(2, 4)
    assert world.shape() == {"ab": {}}


def test_chunks_grow_one_node() -> None:
    """Prefill page by page leaves one node, not a chain."""
    world = CoreWorld(slots=20)
    world.worker.reserve(1, 20)
    letters = "abcdefghijklmnopqrst"
    for page, letter in enumerate(letters):
        world.worker.insert(1, letter, page)
    assert len(world.namespace.index.nodes) == 1
    assert world.shape() == {letters: {}}


def test_an_insert_under_anothers_pin_splits_and_keeps_it() -> None:
    """A pin in the middle of an edge survives the split that an insert makes there."""
    world = CoreWorld()
    world.worker.publish("abcd")
    other = world.join("other")
    before = [other.match(letters, pin) for pin, letters in enumerate(("a", "ab", "abc", "abcd"))]
    world.worker.publish("abxy")
    again = [other.match(letters, pin) for pin, letters in enumerate(("a", "ab", "abc", "abcd"))]
    assert again == before
    assert world.shape() == {"ab": {"cd": {}, "xy": {}}}
    world.laws.check()


def test_an_answer_can_lie_in_several_extents() -> None:
    """Pages published across extents are answered as a run of each."""
    world = CoreWorld(slots=2)
    world.cache.add_extent(1, 2, 4)
    world.worker.map_memory()
    world.worker.reserve(1, 4)
    runs = world.worker.insert(1, "abcd").runs
    assert [(run.extent_id, list(run.indexes)) for run in runs] == [(1, [0, 1]), (2, [0, 1])]
    assert world.namespace.index.page_count == 4
