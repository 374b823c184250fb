"""Next tokens: a whole sequence found, and nothing of it left to run."""

import pytest

from core.core_builders import NAMESPACE_ID
from core.letter_world import LetterWorld, letters
from kvstore.core.values.requests import Match, MatchOptions, Sequence
from kvstore.errors import ParentNotCovered


def answer(match: Match) -> tuple[int, int, int | None]:
    """Returns tokens in place, tokens to copy, and the next token."""
    copied = 0 if match.source is None else match.source.valid_token_count
    return match.matched_token_count, copied, match.next_token


@pytest.mark.parametrize("text", ["abc", "abcd", "abcdef", "abcdefgh"])
def test_a_whole_sequence_is_found_with_what_follows_it(text: str) -> None:
    """All its tokens, those of the last page to copy, and the token stored at its end."""
    world = LetterWorld()
    world.write(text, 1, next_token=0)
    whole = len(text) // 4 * 4
    assert answer(world.match(text, 1, 2, accept=True)) == (whole, len(text) - whole, 0)
    assert answer(world.match(text, 1, 2, accept=True)) == (whole, len(text) - whole, 0)
    assert world.cache.counters.next_token_count == 1
    assert world.cache.counters.full_hit_count == 1
    world.check()


def test_only_who_can_use_it_gets_it() -> None:
    """Without leave, at another end, or without the source it needs, a token is left to run."""
    world = LetterWorld()
    world.write("abcdef", 1, next_token=9)
    assert answer(world.match("abcdef", 1, 2)) == (4, 1, None)
    assert answer(world.match("abcdef", 3, accept=True)) == (4, 0, None)
    assert answer(world.match("abcde", 4, 5, accept=True)) == (0 + 4, 0, None)
    assert answer(world.match("abcdefg", 6, 7, accept=True)) == (4, 2, None)
    assert answer(world.match("abcd", 8, 9, accept=True)) == (0, 3, None)
    assert answer(world.match("abce", 10, 11, accept=True)) == (0, 3, None)


def test_an_end_within_what_was_inserted_is_stored_by_a_repeat() -> None:
    """The prompt's end, when the answer is inserted already behind it."""
    world = LetterWorld()
    world.worker.reserve(1, 3)
    inserted = world.insert(1, "abcdefghij", next_token=5)
    assert world.insert(1, "ef", 4, next_token=7).published_page_count == 1
    assert world.insert(1, "abcd", next_token=8).published_page_count == 1
    assert world.insert(1, "", 8, next_token=6).runs == ()
    assert world.insert(1, "abcdefghij") == inserted
    for text, expected in (
        ("abcdef", (4, 2, 7)),
        ("abcd", (4, 0, 8)),
        ("abcdefgh", (8, 0, 6)),
        ("abcdefghij", (8, 2, 5)),
    ):
        assert answer(world.match(text, ord(text[-1]), len(text), accept=True)) == expected
    world.check()


def test_the_first_stays() -> None:
    """A second worker's argmax of the same end does not replace the first one's."""
    world = LetterWorld()
    world.write("abcdef", 1, next_token=7)
    world.write("abcdef", 2, next_token=8)
    assert answer(world.match("abcdef", 1, 2, accept=True)) == (4, 2, 7)


def test_an_end_stays_when_its_page_is_superseded() -> None:
    """The fuller page has the same tokens."""
    world = LetterWorld()
    world.write("abcdef", 1, next_token=7)
    world.write("abcdefghij", 2)
    assert answer(world.match("abcdef", 1, 2, accept=True)) == (4, 2, 7)
    world.check()


def test_an_end_goes_with_the_last_page_that_has_it() -> None:
    """While a sibling begins with the same tokens it stays."""
    world = LetterWorld()
    world.write("abcdefx", 1, next_token=5)
    world.write("abcdef", 2, next_token=7)
    world.write("abcdefyy", 3)
    world.evict_prefix("abcdefx")
    assert answer(world.match("abcdef", 1, 2, accept=True)) == (4, 2, 7)
    world.worker.release(1, 2)
    world.evict_prefix("abcdefyy")
    world.check()
    world.write("abcdefyy", 4)
    assert answer(world.match("abcdef", 3, 4, accept=True)) == (4, 1, None)


def test_ends_go_with_evicted_pages_and_move_with_a_split() -> None:
    """An evicted page comes back without its next token; a split page keeps it."""
    world = LetterWorld(slots=4)
    world.write("abcdefghijkl", 1, next_token=3)
    world.worker.reserve(2, 1)
    world.insert(2, "abcd", next_token=1)
    world.worker.abort(2)
    world.write("abcdzz", 3)
    assert answer(world.match("abcd", 1, 2, accept=True)) == (4, 0, 1)
    world.check()
    world.worker.release(1)
    world.evict_prefix("abcdefghijkl")
    world.write("abcdefghijkl", 4)
    assert answer(world.match("abcdefghijkl", 3, 4, accept=True)) == (8, 3, None)
    world.check()


def test_nothing_is_stored_on_what_was_removed() -> None:
    """A reservation whose path was removed stores no end; nor one whose last page is gone."""
    world = LetterWorld()
    world.write("abcdef", 1, hold=True)
    world.evict_prefix("abcdef")
    world.insert(1, "abcdef", next_token=7)
    world.evict_prefix("abcd")
    world.insert(1, "abcd", next_token=7)
    world.worker.abort(1)
    world.write("abcdef", 2)
    assert answer(world.match("abcdef", 1, 2, accept=True)) == (4, 1, None)
    assert answer(world.match("abcd", 3, 4, accept=True)) == (0, 3, None)


@pytest.mark.parametrize("text", ["abcdef", "abcdefgh"])
def test_nothing_is_stored_that_came_of_a_removed_page(text: str) -> None:
    """Another worker's page with the same tokens does not vouch for what was computed on it."""
    world = LetterWorld()
    world.write(text, 1, hold=True)
    world.evict_prefix(text)
    world.write(text, 2)
    world.insert(1, "abcdef", next_token=7)
    assert answer(world.match("abcdef", 1, 2, accept=True)) == (4, 1, None)
    world.check()


def test_an_end_may_be_stored_where_all_was_matched() -> None:
    """With nothing of its own to insert, a reservation names the pin that covers the end."""
    world = LetterWorld()
    world.write("abcdefgh", 1)
    world.match("abcdefghi", 1)
    world.worker.reserve(2, 1, start=2)
    world.insert(2, "", 8, next_token=4, base_pin_id=1)
    with pytest.raises(ParentNotCovered):
        world.insert(2, "", 8, next_token=4)
    assert answer(world.match("abcdefgh", 3, 4, accept=True)) == (8, 0, 4)
    world.worker.reserve(5, 1)
    assert world.insert(5, "", next_token=4).runs == ()
    assert answer(world.match("", 6, 7, accept=True)) == (0, 0, None)


def test_the_source_of_a_whole_sequence_has_to_be_mapped() -> None:
    """Else a token is left to run, on the pages that can be read."""
    world = LetterWorld(slots=1)
    world.cache.add_extent(1, 2, 4)
    other = world.core.join("other")
    world.worker.map_memory()
    world.write("abcdef", 1, next_token=7)
    world.cache.bind(other.caller, process_id=77, pid=1, uid=1)
    world.cache.acknowledge(77, [1])
    assert answer(world.match("abcdef", 1, 2, accept=True, worker=other)) == (4, 0, None)


def test_a_base_before_the_end_is_enough() -> None:
    """The tokens of the last page have to be sent; those before may be a base's."""
    world = LetterWorld()
    world.write("abcdefgh", 1, next_token=7)
    world.match("abcdefghi", 1)

    def match(text: str, position: int, pin_id: int) -> Match:
        sequence = Sequence(letters(text), position, base_pin_id=1)
        options = MatchOptions(pin_id, pin_id + 100, accept_next_token=True)
        return world.cache.match(
            world.worker.caller, NAMESPACE_ID, sequence, options, world.core.now
        )

    assert answer(match("efgh", 4, 2)) == (8, 0, 7)
    assert answer(match("", 8, 3)) == (8, 0, 7)
    assert answer(match("efg", 4, 4)) == (4, 2, None)
