"""The scheduler half's lookups, and the time that a request waits for them."""

import pytest

from naive.engine import LOOKUP_TIMEOUT
from naive.pages import NaivePages
from naive.runs import PAGE, PROMPT, engine, run, settle


@pytest.mark.parametrize("late", [False, True], ids=["never", "late"])
def test_a_lookup_without_an_answer_is_a_miss_in_time(*, late: bool) -> None:
    """A lookup is a miss after its timeout, and the holds of a late answer are released."""
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
    """Every lookup is a miss at once without a store."""
    world = engine()
    world.usable = False
    run(world, "a", PROMPT)
    assert world.planner.counts["lookups_unavailable"] == 1
    assert not world.store.index


@pytest.mark.parametrize("come", ["joined", "late", "lost"])
def test_a_request_waits_for_ranks_that_are_about_to_reach_the_store(come: str) -> None:
    """A first request waits for joining ranks beside the store's time, or is computed without."""
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
