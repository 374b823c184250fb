"""Lookups answer in bounded time, and a match is held until it is taken or dropped."""

import pytest

from kvstore_client import GroupWindow, Match
from kvstore_client.errors import StoreTimedOut
from naive.lookups import TIMEOUT, WAIT, NaiveLookups


@pytest.fixture
def world() -> NaiveLookups:
    """Provides a store that has four of the request's six pages."""
    return NaiveLookups()


def test_a_match_is_taken_or_dropped_once(world: NaiveLookups) -> None:
    """A taken match is left to its taker; a dropped one is released at once."""
    assert not world.found()
    world.answers.answer_all()
    assert world.found()
    assert world.counts["lookups_partial"] == 1
    taken = world.lookups.take(world.tracked)
    assert taken is not None
    assert taken.match is world.match
    world.lookups.drop(world.tracked)
    assert world.releases == 0
    assert world.tracked.stored_pages == 4
    world.found()
    world.answers.answer_all()
    world.lookups.drop(world.tracked)
    assert world.releases == 1


def test_an_answer_after_the_drop_is_released(world: NaiveLookups) -> None:
    """It counts as no lookup's result."""
    world.found()
    world.lookups.drop(world.tracked)
    world.answers.answer_all()
    assert world.releases == 1
    assert not world.counts["lookups_partial"]


def test_without_an_answer_it_is_a_miss_in_time(world: NaiveLookups) -> None:
    """After the timeout nothing is matched, and a late answer is released."""
    assert not world.found()
    world.now += TIMEOUT
    found = world.lookups.find(world.tracked)
    assert found is not None
    assert (found.page_count, found.match) == (0, None)
    assert world.counts["lookups_timeout"] == 1
    world.answers.answer_all()
    assert world.releases == 1


def test_all_waits_of_a_step_are_bounded_together(world: NaiveLookups) -> None:
    """A step waits no longer for several requests, and the next step may wait again."""
    world.answers.come_in_time = True

    def pass_time() -> None:
        world.now += WAIT * 2 / 3

    world.answers.while_waiting = pass_time
    found = [world.lookups.find(world.new_request()) is not None for _ in range(3)]
    assert found == [True, True, False]
    assert world.answers.waits == pytest.approx([WAIT, WAIT / 3])
    world.lookups.end_step()
    assert world.lookups.find(world.new_request()) is not None
    assert world.answers.waits[2:] == [WAIT]


def test_a_slow_store_is_waited_for_once(world: NaiveLookups) -> None:
    """After a wait without an answer no request is waited for, until the store answers."""
    for _ in range(2):
        assert not world.found()
        assert world.lookups.find(world.new_request()) is None
        world.lookups.end_step()
    assert world.answers.waits == [WAIT]
    world.answers.answer_all()
    world.lookups.find(world.new_request())
    assert world.answers.waits == [WAIT] * 2


def test_an_unusable_store_is_not_waited_for(world: NaiveLookups) -> None:
    """A lookup under way when the store became unusable delays no step."""
    world.lookups.begin(world.tracked)
    world.usable = False
    assert not world.found()
    assert world.answers.waits == []


@pytest.mark.parametrize("state", ["unusable", "failed"])
def test_a_store_that_fails_is_a_miss(world: NaiveLookups, state: str) -> None:
    """It is one if the client knows it before the call, and if the call fails."""
    world.usable = state != "unusable"
    world.match = Match(failure=StoreTimedOut("no answer"))
    world.found()
    world.answers.answer_all()
    found = world.lookups.find(world.tracked)
    assert found is not None
    assert found.page_count == 0
    assert world.counts["lookups_unavailable"] == 1


def test_a_lookup_waits_for_ranks_that_are_about_to_join(world: NaiveLookups) -> None:
    """It is sent once they have joined."""
    world.joining = True
    assert not world.found()
    assert not world.answers.asked
    world.joining = False
    assert not world.found()
    world.answers.answer_all()
    assert world.found()
    world.lookups.drop(world.tracked)


def test_an_answer_says_which_pages_the_store_has(world: NaiveLookups) -> None:
    """It has the first four of six pages, so it lacks the fifth."""
    world.found()
    world.answers.answer_all()
    assert world.news.had == world.news.lacked == [("a request", 4)]


def test_an_empty_answer_says_what_is_missing(world: NaiveLookups) -> None:
    """The store answered, and has no page."""
    world.match = Match()
    world.found()
    world.answers.answer_all()
    assert (world.news.had, world.news.lacked) == ([], [("a request", 0)])


def test_no_answer_says_nothing(world: NaiveLookups) -> None:
    """A failure is no missing page, and an answer that nobody waits for is old."""
    world.found()
    world.lookups.drop(world.tracked)
    world.answers.answer_all()
    world.match = Match(failure=StoreTimedOut("late"))
    world.found()
    world.answers.answer_all()
    assert world.news.had == world.news.lacked == []


def test_a_page_of_another_group_may_be_what_is_missing() -> None:
    """Then nothing is known of the path's next page."""
    world = NaiveLookups(groups=(GroupWindow(1, 2),))
    world.found()
    world.answers.answer_all()
    assert (world.news.had, world.news.lacked) == ([("a request", 4)], [])
