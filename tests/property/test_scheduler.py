"""Every request ends, in a bounded number of steps, whatever comes and whatever others hold."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulated_batch import LONGEST, STEP_SECONDS, CountedEngine, CountedStore, Prompt
from inference_worker.engine import scheduler
from inference_worker.engine.scheduler import PATIENCE, Scheduler

PROMPTS = st.builds(
    Prompt,
    st.integers(1, LONGEST // 2),
    st.integers(1, LONGEST // 2),
    st.integers(0, LONGEST // 2),
    st.integers(0, 3),
    st.sampled_from("ab"),
)
# When it comes, in steps; to which engine; whether and when it is aborted.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 30), st.booleans(), PROMPTS, st.none() | st.integers(0, 60)),
    min_size=1,
    max_size=25,
)


@given(
    ARRIVALS,
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(1, 6),
)
def test_two_engines_on_one_store_end_all_requests(
    arrivals: list[tuple[int, bool, Prompt, int | None]], slots: int, tokens: int, running: int
) -> None:
    """However few slots they share neither waits for the other, and nothing is left held."""
    store = CountedStore(slots)
    engines = [
        CountedEngine(store, Scheduler(max_step_tokens=tokens, max_running=running))
        for _ in range(2)
    ]
    work = sum(each.token_count + each.max_tokens for _, _, each, _ in arrivals)
    comes = sorted(enumerate(arrivals, 1), key=lambda each: (each[1][0], each[0]))
    owners = {number: engines[second] for number, (_, second, _, _) in comes}
    aborted = set()
    numbers = iter(range(1, len(comes) + 1))
    pending = [(at, owners[old], prompt, stop) for old, (at, _, prompt, stop) in comes]
    stops: dict[int, tuple[CountedEngine, int]] = {}
    now, tick, idle = 0.0, 0, 0
    while pending or any(engine.has_work for engine in engines):
        while pending and pending[0][0] <= tick:
            _, engine, prompt, stop = pending.pop(0)
            number = next(numbers)
            engine.add(number, prompt)
            if stop is not None:
                stops[number] = engine, tick + stop
        for number, (engine, at) in list(stops.items()):
            if at <= tick:
                del stops[number]
                if number in engine.prompts:
                    aborted.add(number)
                    engine.end(number)
        for engine in engines:
            begun = engine.has_work
            parts = engine.step(now)
            if begun and not parts and engine.has_work:
                # Only what another computes is waited for, and holding nothing.
                assert not engine.held
                assert engine.scheduler.next_look is not None
                idle += 1
        now, tick = now + STEP_SECONDS, tick + 1
        assert tick < 30 + 4 * work + idle
    assert sorted([*engines[0].finished, *engines[1].finished, *aborted]) == sorted(owners)
    assert store.unused + sum(store.cached.values()) == slots
    assert all(engine.unused_private == engine.private_pages for engine in engines)
    assert idle < 2 * len(arrivals) * 20


def steps_of_the_first(matches: Callable[[int], int], *, most: int) -> int:
    """Counts the steps until a prompt without a match ends, where others come in each step."""
    engine = CountedEngine(CountedStore(1000), Scheduler(max_step_tokens=8, max_running=1))
    engine.add(1, Prompt(8, 1))
    for step in range(most):
        for number in (2 * step + 2, 2 * step + 3):
            engine.add(number, Prompt(20, 1, match=matches(number)))
        engine.step(step * STEP_SECONDS)
        if engine.finished and 1 in engine.finished:
            return step
    return most


# Each of those before it lacks at most so many steps of a prompt.
BOUND = (PATIENCE + 1) * 3


@given(st.lists(st.integers(0, 20), min_size=1))
def test_nobody_starves(matches: list[int]) -> None:
    """Whatever the others find, the oldest is passed over a bounded number of times."""
    assert steps_of_the_first(lambda number: matches[number % len(matches)], most=500) <= BOUND


def test_without_patience_one_would_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is one that can be missed."""
    assert steps_of_the_first(lambda _: 20, most=100) <= BOUND
    monkeypatch.setattr(scheduler, "PATIENCE", 10**9)
    assert steps_of_the_first(lambda _: 20, most=100) == 100
