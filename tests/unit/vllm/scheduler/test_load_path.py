"""Lookups of the scheduler half: what a request waits for, and for how long."""

import pytest

from naive.engine import LOOKUP_TIMEOUT
from naive.pages import NaivePages
from naive.runs import PAGE, PROMPT, engine, run, settle


@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_lookup_without_an_answer_is_a_miss_in_time(*, late: bool) -> None:
    """Nothing is waited for beyond the time allowed, and a late answer is given back."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.arrive("b", PROMPT)
    world.step()
    assert world.waiting
    world.now = LOOKUP_TIMEOUT
    world.step()
    assert not world.waiting
    assert world.planner.counts["lookups_timeout"] == 1
    if late:
        world.answers.answer()
        world.step()
    world.finish(world.requests["b"])
    settle(world)


def test_without_a_store_nothing_is_asked() -> None:
    """All is a miss at once."""
    world = engine()
    world.usable = False
    run(world, "a", PROMPT)
    assert world.planner.counts["lookups_unavailable"] == 1
    assert not world.store.index


@pytest.mark.parametrize("come", ["joined", "late", "lost"])
def test_a_request_waits_for_ranks_that_are_about_to_reach_the_store(come: str) -> None:
    """The first one after a start is looked up then, and computed where they do not come.

    That it waited for them is not held against the store: it has all its time to answer.
    """
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    world = engine(store=store)
    world.usable, world.joining = False, True
    world.arrive("b", PROMPT)
    for _ in range(3):
        world.answers.answer_all()
        world.step()
    assert world.waiting
    assert not world.answers.under_way
    if come == "late":
        world.now = 2 * LOOKUP_TIMEOUT
        world.step()
        assert world.waiting
    world.usable, world.joining = come != "lost", False
    world.step()
    assert world.answers.under_way == (come != "lost")
    world.answers.answer_all()
    world.step()
    assert not world.waiting
    outcome = "unavailable" if come == "lost" else "full"
    assert world.planner.counts[f"lookups_{outcome}"] == 1
    if come != "lost":
        world.end_load("b", ok=True)
        world.step()
    world.finish(world.requests["b"])
    settle(world)
