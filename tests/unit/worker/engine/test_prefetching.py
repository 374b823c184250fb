"""Requests that wait in the queue have their pages loaded ahead, each once."""

from engines.simulated_batch import STEP_SECONDS, CountedEngine, CountedStore, Prompt
from inference_worker.engine.scheduler import PREFETCHED_AHEAD, PREFETCHES_A_STEP, Scheduler


def engine(*, max_running: int = 1) -> CountedEngine:
    """Returns an engine on a store with enough slots for all requests."""
    return CountedEngine(CountedStore(1000), Scheduler(max_step_tokens=8, max_running=max_running))


def test_a_request_that_waits_is_prefetched_once() -> None:
    """The one that runs is not, and none is asked for twice."""
    world = engine()
    for number in (1, 2, 3):
        world.add(number, Prompt(16, 4))
    for step in range(3):
        world.step(step * STEP_SECONDS)
    assert world.admissions == [1]
    assert world.prefetches == [2, 3]


def test_a_request_that_runs_at_once_is_not_prefetched() -> None:
    """Its match loads what it needs."""
    world = engine(max_running=2)
    for number in (1, 2):
        world.add(number, Prompt(3, 4))
    world.step(0.0)
    assert world.admissions == [1, 2]
    assert world.prefetches == []


def test_prefetches_are_bounded_in_each_step_and_ahead() -> None:
    """The oldest come first. Another is prefetched when one of those before it runs."""
    world = engine()
    for number in range(1, PREFETCHED_AHEAD + 10):
        world.add(number, Prompt(4, 20))
    world.step(0.0)
    assert world.prefetches == list(range(2, 2 + PREFETCHES_A_STEP))
    for step in range(1, 10):
        world.step(step * STEP_SECONDS)
    assert world.prefetches == list(range(2, 2 + PREFETCHED_AHEAD))
    world.end(1)
    world.step(1.0)
    assert world.prefetches[-1] == 2 + PREFETCHED_AHEAD


def test_a_request_that_waits_for_another_worker_is_not_prefetched() -> None:
    """Its pages are not computed yet."""
    world = engine(max_running=2)
    world.add(1, Prompt(8, 30))
    world.step(0.0)
    world.add(2, Prompt(4, 1, looks=9))
    for step in range(1, 12):
        world.step(step * STEP_SECONDS)
    assert world.looks
    assert world.prefetches == []


def test_a_request_that_gave_way_is_not_prefetched() -> None:
    """It runs next, and its pages were in memory a moment ago."""
    world = engine(max_running=2)
    world.store.slots = world.store.unused = 4
    for number in (1, 2):
        world.add(number, Prompt(2, 38))
    for step in range(60):
        world.step(step * STEP_SECONDS)
    assert world.scheduler.preemptions
    assert world.prefetches == []
