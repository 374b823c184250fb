"""Pages of a match are loadable while it is held, and held exactly as long as they are needed."""

import pytest

from kvstore_client import DatedRun
from kvstore_client.pages.match import LoadedPages
from kvstore_vllm.offload.matched_pages import LONGEST_UNUSED, GroupPage
from naive.lookups import Found, NaiveLookups


@pytest.fixture
def world() -> NaiveLookups:
    """Provides a store that has four of the request's six pages."""
    return NaiveLookups()


def has(world: NaiveLookups, page: int) -> bool | None:
    """Asks for a page of the path."""
    return world.matched.has(world.tracked, GroupPage(0, page))


def test_pages_are_unknown_until_the_store_answered(world: NaiveLookups) -> None:
    """Then the matched ones are loadable, and held until the load ended."""
    assert not world.found()
    assert has(world, 0) is None
    world.answers.answer_all()
    assert world.found()
    assert [has(world, page) for page in (0, 3, 4)] == [True, True, False]
    pages = [GroupPage(0, 1), GroupPage(0, 2), GroupPage(0, 3)]
    assert world.matched.take(world.tracked, pages) == (DatedRun(7, [1, 2, 3]),)
    world.lookups.drop(world.tracked)
    assert world.releases == 0
    world.matched.loaded(world.tracked)
    assert world.releases == 1
    assert world.tracked.stored_pages == 4


def test_a_page_that_is_not_held_is_not_given(world: NaiveLookups) -> None:
    """A page beyond the match, or after the match went, has no slot."""
    assert world.matched.take(world.tracked, [GroupPage(0, 0)]) is None
    world.found()
    world.answers.answer_all()
    assert world.matched.take(world.tracked, [GroupPage(0, 4)]) is None
    assert world.matched.take(world.tracked, [GroupPage(1, 0)]) is None
    world.lookups.drop(world.tracked)
    assert world.matched.take(world.tracked, [GroupPage(0, 0)]) is None


def test_without_an_answer_in_time_nothing_is_loadable(world: NaiveLookups) -> None:
    """The request computes its pages."""
    world.found()
    world.now += 1.0
    assert world.found()
    assert has(world, 0) is False


def test_a_match_that_nobody_uses_is_given_back_and_asked_again(world: NaiveLookups) -> None:
    """A request that vLLM has no memory for does not hold pages for long."""
    world.found()
    world.answers.answer_all()
    world.matched.expire(world.tracked)
    assert world.releases == 0
    world.now += 2 * LONGEST_UNUSED
    world.matched.expire(world.tracked)
    assert world.releases == 1
    assert not world.found()
    world.answers.answer_all()
    assert has(world, 3)
    world.lookups.drop(world.tracked)


def test_a_request_that_may_not_load_has_no_pages(world: NaiveLookups) -> None:
    """Every token of it is computed, whatever the store has."""
    world.found()
    world.answers.answer_all()
    assert has(world, 3)
    world.tracked.may_load = False
    assert has(world, 3) is False
    world.lookups.drop(world.tracked)


def test_a_page_that_is_loaded_has_a_tier(world: NaiveLookups) -> None:
    """It is the one that the store states for it, and memory for a page that nobody loads."""
    world.match = Found(4, LoadedPages(disk=1, remote=1))
    world.found()
    world.answers.answer_all()
    world.matched.take(world.tracked, [GroupPage(0, number) for number in range(4)])
    tiers = [world.matched.tier(world.tracked, GroupPage(0, number)) for number in range(5)]
    assert tiers == [1, 1, 3, 4, 1]
    world.matched.loaded(world.tracked)
