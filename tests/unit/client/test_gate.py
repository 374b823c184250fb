"""The gate's thread: when it probes, what it does with the outcome, and when it ends."""

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Condition, Event, Thread
from threading import enumerate as all_threads

import pytest

from kvstore_client import errors
from kvstore_client.calls import breaker as gate
from kvstore_client.calls.breaker import CircuitBreaker, StoreGate
from kvstore_client.calls.deadlines import Backoff
from kvstore_client.testing import wait_until

SLOW = errors.StoreTimedOut("slow")


class Gated:
    """A gate whose probes have the outcomes that the test gives."""

    def __init__(self, probe_wait: float = 0.001) -> None:
        self.outcomes: SimpleQueue[Exception | None] = SimpleQueue()
        self.probes: SimpleQueue[None] = SimpleQueue()
        self.reopened = Event()
        breaker = CircuitBreaker(
            first_open=0.001, longest_open=0.001, probe_waits=Backoff(probe_wait, probe_wait)
        )
        self.gate = StoreGate(breaker, Condition(), self._probe, self.reopened.set)

    def _probe(self) -> None:
        self.probes.put(None)
        outcome = self.outcomes.get(timeout=30)
        if outcome is not None:
            raise outcome

    def time_out(self) -> None:
        """Makes a request that is not answered in time."""
        ticket = self.gate.admit()
        self.gate.failed(ticket, "match", SLOW)
        self.gate.leave(ticket)


def probing() -> int:
    """Counts the threads that probe."""
    return sum(each.name == "kvstore-probe" for each in all_threads())


@pytest.fixture
def gated() -> Iterator[Gated]:
    """A gate that is closed afterwards, and whose thread ended then."""
    gated = Gated()
    yield gated
    gated.gate.close()
    gated.outcomes.put(None)
    assert wait_until(lambda: probing() == 0)


@pytest.mark.parametrize("answer", [None, errors.NamespaceNotFound("gone")])
def test_it_probes_until_there_is_an_answer(gated: Gated, answer: errors.StoreError | None) -> None:
    """While probes fail nothing passes; an answer, a refusal too, lets the next request try."""
    gated.time_out()
    for _ in range(3):
        gated.probes.get(timeout=30)
        assert not gated.gate.passes
        gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    assert not gated.reopened.is_set()
    gated.outcomes.put(answer)
    assert wait_until(lambda: gated.gate.passes)
    assert gated.reopened.is_set()
    assert wait_until(lambda: probing() == 0)
    assert gated.probes.empty()


def test_a_probe_that_fails_by_a_bug_is_not_the_last(gated: Gated) -> None:
    """Whatever it raises, the store is asked again: else no request would ever be sent."""
    gated.time_out()
    gated.outcomes.put(RuntimeError("a bug"))
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.gate.passes)


def test_it_probes_again_when_the_trial_fails(gated: Gated) -> None:
    """Each opening has its probes, by one thread at a time."""
    for _ in range(3):
        gated.time_out()
        gated.probes.get(timeout=30)
        # The one before it may be about to end.
        assert wait_until(lambda: probing() == 1)
        gated.outcomes.put(None)
        assert wait_until(lambda: gated.gate.passes)


def test_a_trial_s_answer_closes_it(gated: Gated) -> None:
    """After the trial's answer several requests pass at a time."""
    gated.time_out()
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.gate.passes)
    trial = gated.gate.admit()
    assert not gated.gate.passes
    gated.gate.answered(trial, "match")
    gated.gate.admit()
    gated.gate.admit()


def test_a_prompt_ends_the_wait_after_a_failed_probe() -> None:
    """A sign of life has the store probed at once, however long the wait would have been."""
    gated = Gated(probe_wait=3600.0)
    gated.time_out()
    gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    assert wait_until(lambda: gated.gate._breaker.probe_in > 0)
    gated.gate.prompt()
    gated.probes.get(timeout=30)
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.gate.passes)


def test_closing_ends_the_thread() -> None:
    """A gate that is closed while it waits probes no more, and its thread ends."""
    gated = Gated(probe_wait=3600.0)
    gated.time_out()
    gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    # That of another test may be about to end.
    assert wait_until(lambda: probing() == 1)
    gated.gate.close()
    assert wait_until(lambda: probing() == 0)
    assert gated.probes.empty()


def test_where_no_thread_can_be_had_the_next_prompt_begins_to_probe(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without threads left goes on with misses, and probes when a renewal is answered."""

    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(gate, "Thread", NoThread)
        gated.time_out()
        assert not gated.gate.passes
    gated.outcomes.put(None)
    gated.gate.prompt()
    assert wait_until(lambda: gated.gate.passes)
