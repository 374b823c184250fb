"""The parts of a step, and the order in which waiting requests are admitted."""

import pytest

from engines.simulated_batch import CountedEngine, CountedStore, Prompt
from inference_worker.engine.scheduler import (
    LOOKS_A_STEP,
    PATIENCE,
    PEEK_SECONDS,
    PEEKS_A_STEP,
    REOPEN_SECONDS,
    Elsewhere,
    Part,
    Scheduler,
    WaitingQueue,
)


def engine(slots: int = 1000, *, tokens: int = 16, running: int = 8) -> CountedEngine:
    """Returns an engine without others on its store."""
    scheduler = Scheduler(max_step_tokens=tokens, max_running=running)
    return CountedEngine(CountedStore(slots), scheduler)


def run(made: CountedEngine, *, begin: float = 0.0) -> None:
    """Steps until nothing is left."""
    now = begin
    while made.has_work:
        made.step(now)
        now += 0.01


@pytest.mark.parametrize("bound", [{"max_step_tokens": 0}, {"max_running": 0}])
def test_bounds_without_sense_are_refused(bound: dict[str, int]) -> None:
    """A step without tokens or requests is refused, because it makes no progress."""
    with pytest.raises(ValueError, match="bounds of a step"):
        Scheduler(**bound)


def test_decodes_come_first_and_a_prompt_has_the_rest() -> None:
    """A long prompt takes the rest of each step, and no decode misses a token for it."""
    made = engine(tokens=16)
    made.add(1, Prompt(4, 6))
    assert made.step(0.0) == [Part(1, 4)]
    made.add(2, Prompt(35, 2))
    assert made.step(0.0) == [Part(1, 1), Part(2, 15)]
    assert made.step(0.0) == [Part(1, 1), Part(2, 15)]
    assert made.step(0.0) == [Part(1, 1), Part(2, 5)]
    assert made.step(0.0) == [Part(1, 1), Part(2, 1)]


def test_a_prompt_goes_on_however_many_decode() -> None:
    """The oldest prompt gets one token even if decodes fill the step."""
    made = engine(tokens=4)
    for number in (1, 2, 3):
        made.add(number, Prompt(1, 9))
    made.add(4, Prompt(20, 1))
    # The prompt gets its token beside all decodes, as the step has four tokens.
    assert made.step(0.0) == [Part(1, 1), Part(2, 1), Part(3, 1), Part(4, 1)]
    made.add(5, Prompt(1, 9))
    assert made.step(0.0) == [Part(1, 1), Part(2, 1), Part(3, 1), Part(4, 1)]


def test_a_short_rest_does_not_wait_for_a_long_prompt() -> None:
    """Half of a step is for prompts that fit into it, such as those that are cached."""
    made = engine(tokens=16)
    made.add(1, Prompt(40, 1))
    assert made.step(0.0) == [Part(1, 16)]
    made.add(2, Prompt(38, 1))
    made.add(3, Prompt(38, 1, match=32))
    assert made.step(0.0) == [Part(3, 6), Part(1, 10)]
    assert made.admissions == [1, 3]
    assert made.step(0.0) == [Part(1, 14), Part(2, 2)]
    run(made)
    assert made.finished == [3, 1, 2]


def test_most_cached_goes_first_and_one_in_so_many_is_the_oldest() -> None:
    """The longest match goes first, and passes a prompt without one a bounded number of times."""
    made = engine(tokens=64, running=1)
    made.add(1, Prompt(8, 1))
    for number in range(2, 30):
        made.add(number, Prompt(30, 1, match=number))
    run(made)
    place = made.finished.index(1)
    assert place == PATIENCE
    # Only some requests are peeked in each step.
    assert made.finished[0] == PEEKS_A_STEP
    assert made.finished[PATIENCE - 1] > PATIENCE


def test_a_peek_is_made_once_and_again_when_it_may_have_changed() -> None:
    """A peek is repeated after a publish or an end here, or after some seconds."""
    made = engine(tokens=4)
    made.add(1, Prompt(40, 1))
    made.step(0.0)
    made.add(2, Prompt(38, 1))
    made.add(3, Prompt(38, 1))
    for _ in range(3):
        made.step(0.1)
    assert made.peeks == [2, 3]
    made.scheduler.published(prompt=False)
    for _ in range(2):
        made.step(0.2)
    assert made.peeks == [2, 3, 2, 3]
    made.step(0.2 + PEEK_SECONDS)
    assert made.peeks == [2, 3, 2, 3, 2, 3]
    made.end(1)
    made.step(0.3 + PEEK_SECONDS)
    assert made.peeks == [2, 3] * 4


def test_nothing_is_peeked_where_the_order_makes_no_difference() -> None:
    """Nothing is peeked if all requests have room, or none has."""
    made = engine(tokens=64, running=3)
    for number in (1, 2, 3):
        made.add(number, Prompt(8, 9))
    made.step(0.0)
    made.add(4, Prompt(8, 9))
    made.add(5, Prompt(8, 9))
    made.step(0.0)
    made.end(1)
    made.end(2)
    made.step(0.0)
    assert made.peeks == []
    assert made.scheduler.running_count == 3


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    """A preempted request loses no token, and resumes before those that never ran."""
    made = engine(slots=13, tokens=64)
    made.private_pages = 0
    made.add(1, Prompt(20, 12))
    made.add(2, Prompt(20, 12))
    made.add(3, Prompt(4, 1))
    run(made)
    assert made.scheduler.preemptions == 1
    assert made.finished == [3, 1, 2]
    assert made.admissions == [1, 2, 3, 2]
    assert made.store.unused + sum(made.store.cached.values()) == 13


def test_without_room_nobody_is_asked_again_and_again() -> None:
    """After a refusal the next attempt waits for the end of a request, or a moment."""
    made = engine(slots=10, tokens=64)
    made.private_pages = 0
    made.add(1, Prompt(36, 3))
    made.step(0.0)
    made.add(2, Prompt(36, 1))
    tries: list[int] = []
    admit = made.admit

    def count(number: int, *, may_yield: bool) -> object:
        tries.append(number)
        return admit(number, may_yield=may_yield)

    made.admit = count  # type: ignore[method-assign,assignment]
    made.step(0.0)
    made.step(REOPEN_SECONDS / 2)
    assert (tries, made.finished) == ([2], [1])
    made.step(REOPEN_SECONDS / 2)
    assert (tries, made.finished) == ([2, 2], [1, 2])


def test_one_of_those_that_lack_the_same_looks_whether_it_is_there() -> None:
    """Each request looks once for its pages. Then the oldest looks at intervals for all."""
    made = engine(tokens=64)
    made.worth = 1.0
    for number in (1, 2, 3):
        made.add(number, Prompt(30, 1, looks=3 if number == 1 else 1))
    assert made.step(0.0) == []
    assert made.looks == [1, 2, 3]
    look = made.scheduler.next_look
    assert look == pytest.approx(0.05)
    assert made.step(0.01) == []
    assert made.looks == [1, 2, 3]
    made.scheduler.published(prompt=True)
    made.step(0.02)
    assert made.looks == [1, 2, 3, 1]
    assert made.step(0.08) == []
    assert made.looks == [1, 2, 3, 1, 1]
    # Its work is done, so the others follow at once.
    assert len(made.step(0.2)) == 3
    assert made.scheduler.next_look is None


def test_waiting_has_an_end() -> None:
    """A request that has waited its longest time is admitted without yielding, at that moment."""
    made = engine()
    made.worth = 1.0
    made.add(1, Prompt(30, 1, looks=10_000))
    now = 0.0
    while not made.step(now):
        look_at = made.scheduler.next_look
        assert look_at is not None
        assert now < look_at <= 3.0
        now = look_at
    assert now == 3.0
    assert len(made.looks) == pytest.approx(61, abs=1)


def test_of_those_that_wait_for_the_same_one_gives_up_and_the_others_wait_for_it() -> None:
    """Requests for the same prefix give up one at a time, each after its longest time again."""
    made = engine(tokens=64)
    made.worth = 1.0
    for number in (1, 2, 3):
        made.add(number, Prompt(30, 2, looks=10_000))
    made.add(4, Prompt(30, 1, looks=10_000, prefix="another"))
    made.step(0.0)
    made.step(3.0)
    # Nobody gave up for the prefix of request 4, so it gives up itself.
    assert made.admissions == [1, 4]
    while made.scheduler.running_count:
        made.step(3.1)
    for number in (2, 3):
        made.prompts[number].looks = 10_000
    made.step(5.9)
    assert made.admissions == [1, 4]
    made.step(6.0)
    assert made.admissions == [1, 4, 2]


def test_who_gives_up_for_itself_alone_has_no_successor() -> None:
    """Requests that wait for a namespace to open all give up together."""
    made = engine(tokens=64)
    made.worth, made.one_is_enough = 1.0, False
    for number in (1, 2):
        made.add(number, Prompt(30, 1, looks=10_000))
    made.step(0.0)
    made.step(3.0)
    assert made.admissions == [1, 2]


def test_a_short_wait_does_not_shorten_a_long_one() -> None:
    """A short wait for a namespace leaves a prompt's wait its full time."""
    queue = WaitingQueue()
    queue.add(1, 100)
    job = queue.next(0.0, None)
    assert job is not None
    job.put_off(Elsewhere("opening", 0.01, 0.5), 0.0)
    job.put_off(Elsewhere("prompt", 0.05, 3.0), 0.4)
    job.put_off(Elsewhere("prompt", 0.05, 3.0), 1.0)
    assert (job.may_yield, job.look_at) == (True, 1.05)
    job.put_off(Elsewhere("prompt", 0.05, 3.0), 2.99)
    assert (job.may_yield, job.look_at) == (True, 3.0)
    job.put_off(Elsewhere("prompt", 0.05, 3.0), 3.0)
    assert not job.may_yield


def test_a_step_puts_a_few_off_at_most() -> None:
    """A step looks for a bounded number of waiting requests, so a burst delays no running one."""
    made = engine(tokens=64)
    for number in range(1, 2 * LOOKS_A_STEP + 1):
        made.add(number, Prompt(8, 1, looks=1, prefix=f"p{number}"))
    made.step(0.0)
    assert len(made.looks) == LOOKS_A_STEP


def test_what_is_removed_is_not_planned() -> None:
    """A request may be removed while it waits or runs, more than once."""
    made = engine()
    made.add(1, Prompt(8, 5))
    made.step(0.0)
    made.add(2, Prompt(8, 5))
    for number in (1, 2, 2):
        made.scheduler.remove(number)
    assert (made.scheduler.waiting_count, made.scheduler.running_count) == (0, 0)
    assert made.scheduler.plan(made, 1.0) == []
    assert made.scheduler.next_look is None
