"""The pages that are copied to tier 1 before a match is answered."""

import pytest

from core.core_builders import FILLER, NAMESPACE_ID, CoreWorld, paged
from core.tiered_world import make, move, sunk, tiers
from kvstore.core.values.requests import MatchOptions, Sequence


def promote(world: CoreWorld, sequence: Sequence, *wished: MatchOptions) -> int:
    """Copies what a match would find in tier 2 alone; returns how many pages that were."""
    [options] = wished or [MatchOptions(1)]
    moves = world.cache.plan_promotion(world.worker.caller, NAMESPACE_ID, sequence, options, 100)
    return world.cache.finish_moves(moves)


def test_promotion_for_a_match() -> None:
    """Pages in tier 2 come up first, if pages with a copy below can make room."""
    world = make(slots=6, promote=True)
    for letters in ("abcd", "efgh"):
        world.worker.publish(letters)
        move(world)
    world.worker.publish("xy")
    for pin_id, letters in enumerate(("abcd", "efgh"), 11):
        world.worker.match(letters, pin_id)
        world.worker.release(pin_id)
    for letters, copied in (("abcd", 4), ("efgh", 2), ("abcd", 0)):
        sequence = Sequence(paged(letters) + b"last")
        assert promote(world, sequence) == copied
        world.laws.check()
    assert world.cache.counters.evicted_page_count == 0
    assert tiers(world.worker.match("xy", 1)) == [(1, 2)]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("letters", "copied"), [("abx", 3), ("abc", 3), ("xb", 1)])
def test_a_source_page_is_promoted_too(letters: str, copied: int, *, in_place: bool) -> None:
    """A page inside of which a sequence parts, or is capped, comes up too."""
    world = sunk("abcd", promote=True, in_place=in_place, divides_by_token=True)
    sequence, options = Sequence(paged(letters)), MatchOptions(1, 2)
    assert promote(world, sequence, options) == copied
    match = world.cache.match(world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    assert match.source is not None
    assert [run.tier for run in (*match.runs, match.source.page)] == [1] * (len(match.runs) + 1)
    world.laws.check()


def test_the_page_that_a_next_token_is_stored_in_is_promoted() -> None:
    """The page that comes up is the one with all tokens but the sequence's last."""
    world = make(promote=True, in_place=False, divides_by_token=True)
    caller = world.worker.caller
    partial = Sequence(paged("ab") + FILLER)
    world.worker.reserve(1, 3)
    world.cache.insert(caller, 1, partial, world.now, next_token=5)
    world.worker.abort(1)
    move(world)
    options = MatchOptions(1, 2, accept_next_token=True)
    assert promote(world, partial, options) == 3
    match = world.cache.match(caller, NAMESPACE_ID, partial, options, world.now)
    assert (match.next_token, match.source is not None) == (5, True)


def test_a_source_page_is_promoted_for_who_wants_one() -> None:
    """Not for a match that wishes none, nor for one that agrees with no page."""
    world = sunk("abcd", promote=True, divides_by_token=True)
    assert promote(world, Sequence(paged("abx"))) == 2
    other = Sequence((9).to_bytes(4, "little") * 3)
    assert promote(world, other, MatchOptions(1, 2)) == 0
    whole = sunk("abcd", promote=True)
    assert promote(whole, Sequence(paged("abx")), MatchOptions(1, 2)) == 2


def test_nobody_is_promoted_for_unless_it_is_wanted() -> None:
    """Without the setting a match copies nothing, and with one tier neither."""
    for world in (sunk("ab"), CoreWorld()):
        sequence = Sequence(paged("ab") + b"last")
        assert promote(world, sequence) == 0
        assert world.cache.plan_moves(4) == [] or world.cache.moves
