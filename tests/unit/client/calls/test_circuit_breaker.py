"""The circuit breaker between a client and its store, by a clock that the test moves."""

from collections.abc import Iterator
from queue import SimpleQueue
from random import Random
from threading import Condition, Event, Thread
from threading import enumerate as all_threads

import grpc
import pytest

from kvstore.v1 import prefix_cache_pb2
from kvstore_client import errors
from kvstore_client.calls import circuit_breaker as breaker_module
from kvstore_client.calls.circuit_breaker import (
    FAILURES_TO_OPEN,
    AdmittedRequest,
    BreakerState,
    CircuitBreaker,
    ProbeSample,
    ProbingBreaker,
)
from kvstore_client.calls.deadlines import Backoff, StoreBudget
from kvstore_client.testing import wait_until
from wire.scripted_session import RELEASED, RENEWED, ScriptedSession, match, matched
from wire.scripted_store import refusal

SLOW = errors.StoreTimedOut("slow")
BROKEN = errors.StoreUnavailable("broken")
LATER = errors.QuotaExceeded("too much", reason="QUOTA_EXCEEDED", retry_after_s=3.0)
FIRST_OPEN, LONGEST_OPEN, LONGEST_PROBE_WAIT = 1.0, 8.0, 2.0
# What a client's own clock says too, once a deadline passed.
TOO_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
MATCH = prefix_cache_pb2.MatchPrefixResponse(match=matched(0))


class Broken:
    """A breaker whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        waits = Backoff(0.5, LONGEST_PROBE_WAIT, Random(1))
        self.breaker = CircuitBreaker(
            first_open=FIRST_OPEN,
            longest_open=LONGEST_OPEN,
            probe_waits=waits,
            clock=lambda: self.now,
        )

    def request(self, outcome: errors.StoreError | None = None, kind: str = "match") -> None:
        """Makes a request of one call. Raises the breaker's error if it is open."""
        admitted = self.breaker.admit()
        if outcome is None:
            self.breaker.answered(admitted, kind)
        else:
            self.breaker.failed(admitted, kind, outcome)
        self.breaker.leave(admitted)

    def probe(self, outcome: errors.StoreError | None = None) -> float:
        """Waits until a probe is due and sends it. Returns the waiting time in seconds."""
        wait = max(0.0, self.breaker.probe_in)
        self.now += wait
        self.breaker.probed(outcome)
        return wait

    @property
    def state(self) -> BreakerState:
        """Returns the breaker's state."""
        return self.breaker.state


@pytest.fixture
def broken() -> Broken:
    """Provides a closed breaker."""
    return Broken()


def test_one_timeout_opens_it(broken: Broken) -> None:
    """One timeout opens the breaker, and later requests raise its reason."""
    broken.request(SLOW)
    assert broken.state is BreakerState.OPEN
    with pytest.raises(errors.StoreUnavailable, match="slow"):
        broken.breaker.admit()


def test_failures_in_a_row_open_it(broken: Broken) -> None:
    """A few failures in a row open the breaker. An answer between them resets the count."""
    for _ in range(FAILURES_TO_OPEN - 1):
        broken.request(BROKEN)
    broken.request()
    for _ in range(FAILURES_TO_OPEN - 1):
        broken.request(BROKEN)
    assert broken.state is BreakerState.CLOSED
    broken.request(BROKEN)
    assert broken.state is BreakerState.OPEN


def test_a_refusal_is_an_answer(broken: Broken) -> None:
    """A refusal does not open the breaker, and closes it if it answers a trial."""
    for _ in range(2 * FAILURES_TO_OPEN):
        broken.request(errors.PinNotFound("no"))
    assert broken.state is BreakerState.CLOSED
    broken.request(SLOW)
    broken.probe()
    broken.request(errors.PoolExhausted("full"))
    assert broken.state is BreakerState.CLOSED


def test_it_recovers_by_a_probe_and_one_answer(broken: Broken) -> None:
    """The first probe is due at once, then one request at a time is tried until one closes."""
    broken.request(SLOW)
    assert broken.probe() == 0
    admitted = broken.breaker.admit()
    with pytest.raises(errors.StoreUnavailable, match="one request tries"):
        broken.breaker.admit()
    broken.breaker.answered(admitted, "match")
    broken.breaker.admit()
    assert broken.state is BreakerState.CLOSED


def test_a_trial_that_came_to_nothing_leaves_the_place_to_the_next(broken: Broken) -> None:
    """A trial that ends without a call leaves its place to the next request."""
    broken.request(SLOW)
    broken.probe()
    broken.breaker.leave(broken.breaker.admit())
    broken.request()
    assert broken.state is BreakerState.CLOSED


def test_a_trial_that_fails_opens_it_again(broken: Broken) -> None:
    """One failure of a trial opens the breaker again."""
    broken.request(SLOW)
    broken.probe()
    broken.request(BROKEN)
    assert broken.state is BreakerState.OPEN


def test_an_earlier_trial_that_ends_late_makes_no_room_for_another(broken: Broken) -> None:
    """A trial that ends late does not let a second request in beside the current trial."""
    broken.request(SLOW)
    broken.probe()
    late = broken.breaker.admit()
    broken.breaker.failed(late, "match", SLOW)
    broken.probe()
    broken.breaker.admit()
    broken.breaker.leave(late)
    assert not broken.breaker.passes


def test_of_a_store_that_is_slow_for_requests_alone_few_requests_pay(broken: Broken) -> None:
    """The time between trials doubles while probes are answered and requests are not."""
    waits = []
    for _ in range(7):
        broken.request(SLOW)
        waits.append(broken.probe())
    assert waits == [0, 1, 2, 4, 8, 8, 8]
    # The first answer closes it, and another timeout costs half of the doubling.
    broken.request()
    assert broken.state is BreakerState.CLOSED
    for _ in range(6):
        broken.request()
    broken.request(SLOW)
    assert broken.probe() == 0


def test_answers_to_other_calls_do_not_excuse_the_slow_ones(broken: Broken) -> None:
    """A store that is slow for inserts only is tried ever more rarely, too."""
    waits = []
    for _ in range(4):
        broken.request(kind="acquire")
        broken.request(SLOW, kind="insert")
        waits.append(broken.probe())
    assert waits == [0, 1, 2, 4]


def test_requests_that_hung_together_count_once(broken: Broken) -> None:
    """Timeouts of requests that ran at the same time count as one."""
    tickets = [broken.breaker.admit() for _ in range(4)]
    assert [broken.breaker.failed(each, "match", SLOW) for each in tickets] == [
        *(True, False, False, False)
    ]
    broken.probe()
    for each in tickets:
        broken.breaker.failed(each, "match", SLOW)
        broken.breaker.leave(each)
    assert broken.state is BreakerState.HALF_OPEN
    broken.request()
    broken.request(SLOW)
    assert broken.probe() == 0


def test_a_late_answer_closes_nothing(broken: Broken) -> None:
    """The answer to a request from before the opening does not close the breaker."""
    early, slow = broken.breaker.admit(), broken.breaker.admit()
    broken.breaker.failed(slow, "match", SLOW)
    broken.breaker.answered(early, "match")
    assert broken.state is BreakerState.OPEN
    broken.probe()
    broken.breaker.answered(early, "match")
    assert broken.state is BreakerState.HALF_OPEN


def test_probes_that_fail_wait_a_little_longer_each_time(broken: Broken) -> None:
    """A dead store is probed at growing intervals up to a limit."""
    broken.request(SLOW)
    waits = [broken.probe(SLOW) for _ in range(6)]
    assert waits[0] == 0
    assert all(0 < wait <= LONGEST_PROBE_WAIT for wait in waits[1:])
    assert waits[-1] >= LONGEST_PROBE_WAIT / 2
    broken.probe()
    assert broken.state is BreakerState.HALF_OPEN


def test_a_sign_of_life_has_a_failed_probe_repeated(broken: Broken) -> None:
    """Any answer of the store causes a new probe at once if the last one failed."""
    broken.request(SLOW)
    broken.probe(SLOW)
    assert broken.breaker.probe_in > 0
    broken.breaker.prompt()
    assert broken.breaker.probe_in == 0
    broken.probe()
    broken.request(SLOW)
    assert broken.breaker.probe_in == FIRST_OPEN
    broken.breaker.prompt()
    assert broken.breaker.probe_in == FIRST_OPEN


def test_what_is_refused_for_a_time_is_not_asked_before(broken: Broken) -> None:
    """A call that was refused for a time waits that long. Other kinds of calls do not."""
    broken.request(LATER, kind="match")
    broken.breaker.check("insert")
    for passed in (0.0, 2.9):
        broken.now = 100.0 + passed
        with pytest.raises(errors.StoreUnavailable, match="too much"):
            broken.breaker.check("match")
    broken.now = 103.0
    broken.breaker.check("match")
    assert broken.state is BreakerState.CLOSED


def test_another_server_begins_with_a_clean_record(broken: Broken) -> None:
    """For another server an open breaker is closed, and the last one's timeouts do not count."""
    for _ in range(3):
        broken.request(SLOW)
        broken.probe()
    late = broken.breaker.admit()
    broken.breaker.begin_anew()
    assert broken.breaker.state is BreakerState.CLOSED
    broken.breaker.failed(late, "match", SLOW)
    broken.breaker.leave(late)
    broken.request()
    broken.request(SLOW)
    assert broken.breaker.state is BreakerState.OPEN
    assert broken.probe() == 0


def test_no_number_of_timeouts_is_too_many(broken: Broken) -> None:
    """The breaker never stays open longer than its limit, even after thousands of timeouts."""
    for _ in range(3000):
        broken.request(SLOW)
        broken.probe()
    broken.request(SLOW)
    assert broken.probe() == LONGEST_OPEN


def test_a_probe_without_need_changes_nothing(broken: Broken) -> None:
    """A closed breaker stays closed, and admitted requests are values that compare equal."""
    broken.breaker.probed(SLOW)
    assert broken.breaker.admit() == AdmittedRequest(0, trial=False)


class Gated:
    """A breaker whose probes have the outcomes that the test gives."""

    def __init__(self, probe_wait: float = 0.001) -> None:
        self.outcomes: SimpleQueue[Exception | None] = SimpleQueue()
        self.probes: SimpleQueue[None] = SimpleQueue()
        self.reopened = Event()
        breaker = CircuitBreaker(
            first_open=0.001, longest_open=0.001, probe_waits=Backoff(probe_wait, probe_wait)
        )
        self.breaker = ProbingBreaker(breaker, Condition(), self._probe, self.reopened.set)

    def _probe(self) -> None:
        self.probes.put(None)
        outcome = self.outcomes.get(timeout=30)
        if outcome is not None:
            raise outcome

    def time_out(self) -> None:
        """Makes a request that times out."""
        admitted = self.breaker.admit()
        self.breaker.failed(admitted, "match", SLOW)
        self.breaker.leave(admitted)


def probing() -> int:
    """Returns the number of threads that probe."""
    return sum(each.name == "kvstore-probe" for each in all_threads())


@pytest.fixture
def gated() -> Iterator[Gated]:
    """A breaker that is closed afterwards, and whose thread ended then."""
    gated = Gated()
    yield gated
    gated.breaker.close()
    gated.outcomes.put(None)
    assert wait_until(lambda: probing() == 0)


@pytest.mark.parametrize("answer", [None, errors.NamespaceNotFound("gone")])
def test_it_probes_until_there_is_an_answer(gated: Gated, answer: errors.StoreError | None) -> None:
    """The gate probes until the store answers or refuses, and then lets one request try."""
    gated.time_out()
    for _ in range(3):
        gated.probes.get(timeout=30)
        assert not gated.breaker.passes
        gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    assert not gated.reopened.is_set()
    gated.outcomes.put(answer)
    assert wait_until(lambda: gated.breaker.passes)
    assert gated.reopened.is_set()
    assert wait_until(lambda: probing() == 0)
    assert gated.probes.empty()


def test_a_probe_that_fails_by_a_bug_is_not_the_last(gated: Gated) -> None:
    """A probe that raises an unexpected error is followed by another probe."""
    gated.time_out()
    gated.outcomes.put(RuntimeError("a bug"))
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.breaker.passes)


def test_it_probes_again_when_the_trial_fails(gated: Gated) -> None:
    """Each opening starts probes by one thread."""
    for _ in range(3):
        gated.time_out()
        gated.probes.get(timeout=30)
        # The one before it may be about to end.
        assert wait_until(lambda: probing() == 1)
        gated.outcomes.put(None)
        assert wait_until(lambda: gated.breaker.passes)


def test_a_trial_s_answer_closes_it(gated: Gated) -> None:
    """After a trial's answer several requests may run at once."""
    gated.time_out()
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.breaker.passes)
    trial = gated.breaker.admit()
    assert not gated.breaker.passes
    gated.breaker.answered(trial, "match")
    gated.breaker.admit()
    gated.breaker.admit()


def test_a_prompt_ends_the_wait_after_a_failed_probe() -> None:
    """A sign of life ends the wait before the next probe."""
    gated = Gated(probe_wait=3600.0)
    gated.time_out()
    gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    assert wait_until(lambda: gated.breaker._breaker.probe_in > 0)
    gated.breaker.prompt()
    gated.probes.get(timeout=30)
    gated.outcomes.put(None)
    assert wait_until(lambda: gated.breaker.passes)


def test_closing_ends_the_thread() -> None:
    """A breaker that is closed while it waits probes no more, and its thread ends."""
    gated = Gated(probe_wait=3600.0)
    gated.time_out()
    gated.outcomes.put(SLOW)
    gated.probes.get(timeout=30)
    # That of another test may be about to end.
    assert wait_until(lambda: probing() == 1)
    gated.breaker.close()
    assert wait_until(lambda: probing() == 0)
    assert gated.probes.empty()


def test_where_no_thread_can_be_had_the_next_prompt_begins_to_probe(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no thread can start, requests miss, and the next renewal's answer starts the probes."""

    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(breaker_module, "Thread", NoThread)
        gated.time_out()
        assert not gated.breaker.passes
    gated.outcomes.put(None)
    gated.breaker.prompt()
    assert wait_until(lambda: gated.breaker.passes)


def test_after_a_timeout_the_store_is_not_asked_until_it_answers(
    attached: ScriptedSession,
) -> None:
    """One request pays its deadline. Later ones fail at once until a probe is answered."""
    silent, session = Event(), attached.session
    attached.calls.answer("MatchPrefix", TOO_LATE, MATCH)
    attached.calls.answer("RenewLease", silent, RENEWED)
    attached.calls.answer("ReleasePins", RELEASED)
    with pytest.raises(errors.StoreTimedOut):
        match(session, 1)
    assert not session.usable
    with pytest.raises(errors.StoreUnavailable, match="not asked: the store did not answer"):
        match(session, 2)
    assert len(attached.calls.requests["MatchPrefix"]) == 1
    silent.set()
    assert wait_until(lambda: session.usable)
    match(session, 3)
    assert len(attached.calls.requests["MatchPrefix"]) == 2


def test_a_probe_asks_for_what_was_asked(attached: ScriptedSession) -> None:
    """The probe peeks at the prompt that timed out. Then one request is tried."""
    session = attached.session
    attached.calls.answer("MatchPrefix", TOO_LATE, MATCH)
    attached.calls.answer("ReleasePins", RELEASED)
    attached.calls.answer("PeekPrefix", prefix_cache_pb2.PeekPrefixResponse())
    sample = ProbeSample(b"space", b"1234")
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(pin_ids=(1,), sample=sample) as asking,
    ):
        asking.ask(session.lease.match, *sample, (1, 2), asking.remaining())
    assert wait_until(lambda: session.usable)
    (probe,) = attached.calls.requests["PeekPrefix"]
    asked = prefix_cache_pb2.PeekPrefixRequest.FromString(probe)
    assert (asked.namespace_id, asked.tokens) == sample
    with session.request():
        assert not session.usable
        with pytest.raises(errors.StoreUnavailable, match="one request tries"):
            match(session, 3)
    match(session, 4)


def test_a_refusal_for_a_time_is_not_asked_again_before(attached: ScriptedSession) -> None:
    """A kind of call that was refused for a time is not sent. Other kinds are."""
    attached.calls.answer("MatchPrefix", refusal("QUOTA_EXCEEDED", retry_after_s=1000), MATCH)
    attached.calls.answer("RenewLease", RENEWED)
    with pytest.raises(errors.QuotaExceeded):
        match(attached.session, 1)
    with pytest.raises(errors.StoreUnavailable, match="QUOTA_EXCEEDED"):
        match(attached.session, 2)
    with attached.session.request() as asking:
        asking.ask(attached.session.lease.renew, asking.remaining())
    assert len(attached.calls.requests["MatchPrefix"]) == 1
    assert attached.session.usable


def test_calls_of_one_request_share_a_budget(attached: ScriptedSession) -> None:
    """All calls of one request together wait no longer than its budget."""
    budget = StoreBudget(20.0)
    slow, session = Event(), attached.session
    attached.calls.answer("RenewLease", RENEWED, slow, RENEWED)
    with session.request(budget) as asking:
        asking.ask(session.lease.renew, asking.remaining())
    assert 0 < budget.spent_seconds < 20
    left = budget.left
    with session.request(budget) as asking:
        assert 0 < asking.remaining() <= left
    # As if it had waited for most of it.
    budget.spent_seconds = 19.9
    with pytest.raises(errors.StoreTimedOut), session.request(budget) as asking:
        asking.ask(session.lease.renew, asking.remaining())
    slow.set()
    with (
        pytest.raises(errors.StoreUnavailable, match="this request waited"),
        session.request(budget),
    ):
        pass


def test_a_budget_that_runs_out_says_little_of_the_store(attached: ScriptedSession) -> None:
    """A timeout at the end of a small budget does not open the breaker."""
    slow, session = Event(), attached.session
    attached.calls.answer("MatchPrefix", slow, *[MATCH] * 9)
    attached.calls.answer("ReleasePins", *[RELEASED] * 9)
    spent = StoreBudget(0.05)
    with (
        pytest.raises(errors.StoreTimedOut),
        session.request(spent, pin_ids=(1,)) as asking,
    ):
        asking.ask(session.lease.match, b"space", b"", (1, 2), asking.remaining())
    assert session.usable
    slow.set()
    match(session, 3)
