"""The scheduler half's lookups, and the time that requests and steps wait for them."""

import pytest

from kvstore_client.pages.match import DISK_TIER, REMOTE_TIER
from naive.engine import LOOKUP_TIMEOUT, SCHEDULING_WAIT, NaiveEngine
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


def stored_prompt() -> NaivePages:
    """A store that has all whole pages of ``PROMPT``."""
    store = NaivePages(PAGE, 40)
    run(engine(store=store), "a", PROMPT)
    return store


def end(world: NaiveEngine) -> None:
    """Ends all loads and requests, and checks that nothing is left held."""
    for _ in range(3):
        world.answers.answer_all()
        world.step()
    for name in list(world.loading):
        world.end_load(name, ok=True)
    world.step()
    for request in list(world.requests.values()):
        world.finish(request)
    settle(world)


def test_an_answer_in_time_costs_no_step() -> None:
    """A lookup that is answered during the wait is a hit in the request's first step."""
    world = engine(store=stored_prompt())
    world.answers.come_in_time = True
    world.arrive("b", PROMPT)
    assert world.planner.matched_tokens("b", 0) == len(PROMPT) // PAGE * PAGE
    assert world.answers.waits == [SCHEDULING_WAIT]
    end(world)


def test_a_step_waits_no_longer_for_many_requests() -> None:
    """All waits of a step take ``scheduling_wait`` at most, and the next step may wait again."""
    world = engine(store=stored_prompt())
    world.answers.come_in_time = True

    def pass_time() -> None:
        world.now += SCHEDULING_WAIT * 2 / 3

    world.answers.while_waiting = pass_time
    for name in ("b", "c", "d"):
        world.arrive(name, PROMPT)
    assert [world.planner.matched_tokens(name, 0) for name in "bcd"] == [8, 8, None]
    assert world.answers.waits == pytest.approx([SCHEDULING_WAIT, SCHEDULING_WAIT / 3])
    world.step()
    assert world.planner.matched_tokens("d", 0) == 8
    assert world.answers.waits[2:] == [SCHEDULING_WAIT]
    end(world)


def test_a_store_that_hangs_is_waited_for_once() -> None:
    """Without an answer scheduling waits once, not once a request, until the store answers."""
    world = engine(store=stored_prompt())
    for name in ("b", "c", "d"):
        world.arrive(name, PROMPT)
    for _ in range(3):
        world.step()
    assert len(world.waiting) == 3
    assert world.answers.waits == [SCHEDULING_WAIT]
    world.now = LOOKUP_TIMEOUT
    world.step()
    assert world.answers.waits == [SCHEDULING_WAIT]
    assert world.planner.counts["lookups_timeout"] == 3
    world.arrive("e", PROMPT)
    world.step()
    assert world.answers.waits == [SCHEDULING_WAIT]
    world.answers.answer_all()
    world.arrive("f", PROMPT)
    world.step()
    assert world.answers.waits == [SCHEDULING_WAIT] * 2
    end(world)


def test_a_failed_call_is_no_answer() -> None:
    """After a wait in vain the next one needs an answer of the store, not a failed call."""
    world = engine(store=stored_prompt())
    world.store.down = True
    world.arrive("b", PROMPT)
    world.step()
    world.answers.answer_all()
    world.arrive("c", PROMPT)
    world.step()
    assert world.answers.waits == [SCHEDULING_WAIT]
    assert world.planner.counts["lookups_unavailable"] == 1
    end(world)


def test_a_request_is_waited_for_once() -> None:
    """A request whose blocks were taken away is looked up again without another wait."""
    world = engine(store=stored_prompt())
    world.answers.come_in_time = True
    world.arrive("b", PROMPT)
    world.step()
    world.end_load("b", ok=True)
    for _ in range(2):
        world.step()
    world.preempt(world.requests["b"])
    for _ in range(2):
        world.step()
    assert world.answers.waits == [SCHEDULING_WAIT]
    end(world)


def test_a_store_known_to_be_gone_is_not_waited_for() -> None:
    """A lookup under way to a store that became unusable is not waited for."""
    world = engine(store=stored_prompt())
    world.arrive("b", PROMPT)
    world.usable = False
    world.step()
    assert world.waiting
    assert world.answers.waits == []
    end(world)


def test_the_wait_can_be_turned_off() -> None:
    """A ``scheduling_wait`` of zero seconds never waits."""
    world = engine(store=stored_prompt(), scheduling_wait=0.0)
    world.arrive("b", PROMPT)
    world.step()
    assert world.waiting
    assert world.answers.waits == []
    end(world)


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "within"])
def test_loaded_tokens_are_those_of_their_tiers(*, beside: bool) -> None:
    """The pages that the disk alone had are told apart, for vLLM too once they are planned."""
    world = engine(store=stored_prompt(), load_async=beside)
    world.answers.come_in_time = True
    world.store.on_disk = 1
    world.arrive("b", PROMPT)
    assert world.planner.loaded_from("b", DISK_TIER) == 0
    world.step()
    assert world.planner.loaded_from("b", DISK_TIER) == PAGE
    assert world.planner.loaded_from("b", REMOTE_TIER) == 0
    end(world)
    counts = world.planner.counts
    assert (counts["loaded_tokens_1"], counts["loaded_tokens_3"]) == (PAGE, PAGE)
