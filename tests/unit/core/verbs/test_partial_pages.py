"""Sequences that end within a page: inserted, immutable, superseded."""

import pytest

from core.core_builders import places
from core.letter_world import LetterWorld
from kvstore.errors import IdReused, InvalidField, ParentNotCovered


def test_a_sequence_may_end_within_a_page() -> None:
    """Its last page is published like any other, and answered by its slot."""
    world = LetterWorld()
    world.worker.reserve(1, 3)
    inserted = world.insert(1, "abcdefghij")
    assert (places(inserted.runs), inserted.published_page_count) == ([0, 1, 2], 3)
    assert world.insert(1, "abcdefghij") == inserted
    assert world.core.states() == {"FREE": 13, "CACHED": 3}
    world.check()


def test_a_partial_page_takes_no_more() -> None:
    """The reservation that published it cannot go on inside it, nor behind it."""
    world = LetterWorld()
    world.worker.reserve(1, 3)
    world.insert(1, "abcdef")
    for text, position in (("abcdefg", 0), ("efg", 4), ("efghij", 4)):
        with pytest.raises(IdReused):
            world.insert(1, text, position)
    with pytest.raises(ParentNotCovered) as error:
        world.insert(1, "ijkl", 8)
    assert error.value.metadata == {"page_position": "2", "covered": "1"}
    assert world.core.states() == {"FREE": 13, "RESERVED": 1, "CACHED": 2}
    world.check()


def test_going_on_takes_a_page_of_its_own_which_supersedes() -> None:
    """A new reservation under the old one's path publishes the fuller page."""
    world = LetterWorld()
    world.write("abcdef", 1, hold=True)
    world.worker.reserve(2, 1, start=1)
    inserted = world.insert(2, "efgh", 4, base_reservation_id=1)
    assert places(inserted.runs) == [2]
    # The writer holds the partial page still: it is detached, and goes with its reservation.
    assert world.core.states() == {"FREE": 13, "CACHED": 2, "DETACHED": 1}
    world.check()
    world.worker.abort(1)
    assert world.core.states() == {"FREE": 14, "CACHED": 2}
    assert world.cache.counters.superseded_page_count == 1
    world.check()


def test_a_partial_page_is_superseded_by_a_fuller_partial_one() -> None:
    """A page that nobody holds goes at once, and the leaf before it grows in place."""
    world = LetterWorld()
    world.write("abcde", 1)
    world.write("abcdefg", 2)
    assert len(world.core.namespace.index.nodes) == 2
    world.write("abcdefghijkl", 3)
    assert len(world.core.namespace.index.nodes) == 1
    assert world.core.states() == {"FREE": 13, "CACHED": 3}
    assert world.cache.counters.superseded_page_count == 2


@pytest.mark.parametrize("fuller", ["abcdef", "abcdefgh", "abcdefghijkl"])
def test_a_page_that_begins_with_it_is_the_answer(fuller: str) -> None:
    """The partial page stays the caller's own if as much or more is cached."""
    world = LetterWorld()
    there = world.write(fuller, 1)
    world.worker.reserve(2, 2)
    inserted = world.insert(2, "abcdef")
    assert (places(inserted.runs), inserted.published_page_count) == (there[:2], 0)
    assert world.insert(2, "abcdef") == inserted
    with pytest.raises(IdReused):
        world.insert(2, "abcdefg")
    world.check()


def test_what_the_page_answered_goes_beyond_is_not_covered() -> None:
    """Holding a fuller page than was inserted covers no more than the whole pages before it."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.write("abcdef", 2, hold=True)
    world.worker.reserve(3, 1, start=2)
    with pytest.raises(ParentNotCovered):
        world.insert(3, "ijkl", 8, base_reservation_id=2)


def test_partial_pages_that_part_stand_side_by_side() -> None:
    """Neither begins with the other: both are cached, below a page cut where they part."""
    world = LetterWorld()
    world.write("abcdefghijkl", 1)
    world.write("abcdefx", 2)
    world.write("abcdefyz", 3)
    world.write("ax", 4)
    assert world.core.states() == {"FREE": 10, "CACHED": 6}
    assert [
        world.match(text, k).matched_token_count for k, text in enumerate(["abcdefyzz", "axxx"])
    ] == [8, 0]


def test_a_layout_that_does_not_divide_has_no_partial_pages() -> None:
    """An insert that ends within a page is refused, and publishes nothing."""
    world = LetterWorld(divides_by_token=False)
    world.worker.reserve(1, 2)
    with pytest.raises(InvalidField):
        world.insert(1, "abcdef")
    with pytest.raises(InvalidField):
        world.evict_prefix("ab")
    assert world.core.states() == {"FREE": 14, "RESERVED": 2}


def test_a_partial_page_can_be_evicted_for_room() -> None:
    """It is a leaf like any other; what it followed goes after it."""
    world = LetterWorld(slots=3)
    world.write("abcdef", 1)
    world.worker.reserve(2, 2)
    assert world.core.states() == {"RESERVED": 2, "CACHED": 1}
    world.check()


@pytest.mark.parametrize(
    ("prefix", "gone"), [("ab", 4), ("abcde", 2), ("abcdef", 1), ("abcdefgh", 1), ("abcdx", 0)]
)
def test_a_prefix_may_end_within_a_page_when_it_is_removed(prefix: str, gone: int) -> None:
    """Every page that holds its last token goes, with what continues it."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.write("abcdex", 2)
    world.write("aqqq", 3)
    world.write("abcq", 4)
    assert world.evict_prefix(prefix).evicted_page_count == gone
    assert world.core.states()["CACHED"] == 5 - gone
    world.check()
