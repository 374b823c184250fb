"""Answers of real threads, delivered to one thread within a bounded wait."""

from collections.abc import Iterator
from threading import Event

import pytest

from kvstore_vllm.scheduler.store_threads import ThreadedAnswers

# Seconds that no test waits for, because the answer ends the wait.
LONG = 60.0


@pytest.fixture
def answers() -> Iterator[ThreadedAnswers]:
    """Provides two threads, and ends them afterwards."""
    made = ThreadedAnswers(2)
    yield made
    made.close()


def test_a_wait_ends_with_its_answer(answers: ThreadedAnswers) -> None:
    """A wait delivers earlier answers, and ends with its own, before other work is done."""
    others, got = Event(), list[str]()
    answers.ask(lambda: "first", lambda found: got.append(f"{found}"))
    answers.ask(lambda: "mine", lambda found: got.append(f"{found}"))
    answers.deliver_until(lambda: "mine" in got, LONG)
    answers.ask(others.wait, lambda found: got.append(f"{found}"))
    answers.ask(lambda: "last", lambda found: got.append(f"{found}"))
    answers.deliver_until(lambda: "last" in got, LONG)
    assert sorted(got) == ["first", "last", "mine"]
    assert answers.under_way == 1
    others.set()


def test_a_wait_without_an_answer_ends(answers: ThreadedAnswers) -> None:
    """A wait ends after its time, and the answer is delivered by a later call."""
    blocked, got = Event(), list[bool | None]()
    answers.ask(blocked.wait, got.append)
    answers.deliver_until(lambda: bool(got), 0.001)
    assert (got, answers.under_way) == ([], 1)
    blocked.set()
    answers.deliver_until(lambda: bool(got), LONG)
    assert (got, answers.under_way) == ([True], 0)


def test_nothing_under_way_is_not_waited_for(answers: ThreadedAnswers) -> None:
    """A wait ends at once if no answer is under way."""
    answers.deliver_until(lambda: False, LONG)
    assert answers.under_way == 0
