"""When requests are sent to a store, by a clock that the test moves."""

from random import Random

import pytest

from kvstore_client import errors
from kvstore_client.calls.breaker import FAILURES_TO_OPEN, BreakerState, CircuitBreaker, Ticket
from kvstore_client.calls.deadlines import Backoff

SLOW = errors.StoreTimedOut("slow")
BROKEN = errors.StoreUnavailable("broken")
LATER = errors.QuotaExceeded("too much", reason="QUOTA_EXCEEDED", retry_after_s=3.0)
FIRST_OPEN, LONGEST_OPEN, LONGEST_PROBE_WAIT = 1.0, 8.0, 2.0


class Broken:
    """A breaker at the test's time."""

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
        """Makes a request of one call; raises where it is not let through."""
        ticket = self.breaker.admit()
        if outcome is None:
            self.breaker.answered(ticket, kind)
        else:
            self.breaker.failed(ticket, kind, outcome)
        self.breaker.leave(ticket)

    def probe(self, outcome: errors.StoreError | None = None) -> float:
        """Waits until a probe is due and sends it; returns how long that was."""
        wait = max(0.0, self.breaker.probe_in)
        self.now += wait
        self.breaker.probed(outcome)
        return wait

    @property
    def state(self) -> BreakerState:
        """Where it stands."""
        return self.breaker.state


@pytest.fixture
def broken() -> Broken:
    """A breaker that is closed yet."""
    return Broken()


def test_one_timeout_opens_it(broken: Broken) -> None:
    """After a call that was not answered in time nothing passes, and the reason is said."""
    broken.request(SLOW)
    assert broken.state is BreakerState.OPEN
    with pytest.raises(errors.StoreUnavailable, match="slow"):
        broken.breaker.admit()


def test_failures_in_a_row_open_it(broken: Broken) -> None:
    """Calls that fail at once open it when there are a few, and an answer between begins anew."""
    for _ in range(FAILURES_TO_OPEN - 1):
        broken.request(BROKEN)
    broken.request()
    for _ in range(FAILURES_TO_OPEN - 1):
        broken.request(BROKEN)
    assert broken.state is BreakerState.CLOSED
    broken.request(BROKEN)
    assert broken.state is BreakerState.OPEN


def test_a_refusal_is_an_answer(broken: Broken) -> None:
    """What the store says no to does not open it, and closes it when it was tried."""
    for _ in range(2 * FAILURES_TO_OPEN):
        broken.request(errors.PinNotFound("no"))
    assert broken.state is BreakerState.CLOSED
    broken.request(SLOW)
    broken.probe()
    broken.request(errors.PoolExhausted("full"))
    assert broken.state is BreakerState.CLOSED


def test_it_recovers_by_a_probe_and_one_answer(broken: Broken) -> None:
    """The first probe is due at once; then one request at a time passes, and its answer closes."""
    broken.request(SLOW)
    assert broken.probe() == 0
    ticket = broken.breaker.admit()
    with pytest.raises(errors.StoreUnavailable, match="one request tries"):
        broken.breaker.admit()
    broken.breaker.answered(ticket, "match")
    broken.breaker.admit()
    assert broken.state is BreakerState.CLOSED


def test_a_trial_that_came_to_nothing_leaves_the_place_to_the_next(broken: Broken) -> None:
    """A request that was let through and asked nothing does not keep others out."""
    broken.request(SLOW)
    broken.probe()
    broken.breaker.leave(broken.breaker.admit())
    broken.request()
    assert broken.state is BreakerState.CLOSED


def test_a_trial_that_fails_opens_it_again(broken: Broken) -> None:
    """On trial one failure of any kind is enough."""
    broken.request(SLOW)
    broken.probe()
    broken.request(BROKEN)
    assert broken.state is BreakerState.OPEN


def test_an_earlier_trial_that_ends_late_makes_no_room_for_another(broken: Broken) -> None:
    """Its call failed long ago; meanwhile somebody else is on trial, and stays the only one."""
    broken.request(SLOW)
    broken.probe()
    late = broken.breaker.admit()
    broken.breaker.failed(late, "match", SLOW)
    broken.probe()
    broken.breaker.admit()
    broken.breaker.leave(late)
    assert not broken.breaker.passes


def test_of_a_store_that_is_slow_for_requests_alone_few_requests_pay(broken: Broken) -> None:
    """Where probes are answered and requests are not, the time between requests doubles."""
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
    """A store that is slow for inserts alone is left alone for longer each time, too."""
    waits = []
    for _ in range(4):
        broken.request(kind="acquire")
        broken.request(SLOW, kind="insert")
        waits.append(broken.probe())
    assert waits == [0, 1, 2, 4]


def test_requests_that_hung_together_count_once(broken: Broken) -> None:
    """Of requests that were under way when the store hung each may time out: that is one hang."""
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
    """An answer to what was asked before it opened says nothing of now."""
    early, slow = broken.breaker.admit(), broken.breaker.admit()
    broken.breaker.failed(slow, "match", SLOW)
    broken.breaker.answered(early, "match")
    assert broken.state is BreakerState.OPEN
    broken.probe()
    broken.breaker.answered(early, "match")
    assert broken.state is BreakerState.HALF_OPEN


def test_probes_that_fail_wait_a_little_longer_each_time(broken: Broken) -> None:
    """A store that is dead is looked for again and again, at bounded intervals."""
    broken.request(SLOW)
    waits = [broken.probe(SLOW) for _ in range(6)]
    assert waits[0] == 0
    assert all(0 < wait <= LONGEST_PROBE_WAIT for wait in waits[1:])
    assert waits[-1] >= LONGEST_PROBE_WAIT / 2
    broken.probe()
    assert broken.state is BreakerState.HALF_OPEN


def test_a_sign_of_life_has_a_failed_probe_repeated(broken: Broken) -> None:
    """Whatever else the store answers is a reason to probe now, where a probe failed."""
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
    """Calls of the refused kind wait for as long as the store said; other calls do not."""
    broken.request(LATER, kind="match")
    broken.breaker.check("insert")
    for passed in (0.0, 2.9):
        broken.now = 100.0 + passed
        with pytest.raises(errors.StoreUnavailable, match="too much"):
            broken.breaker.check("match")
    broken.now = 103.0
    broken.breaker.check("match")
    assert broken.state is BreakerState.CLOSED


def test_no_number_of_timeouts_is_too_many(broken: Broken) -> None:
    """However often it opens, it opens for no longer than the longest."""
    for _ in range(3000):
        broken.request(SLOW)
        broken.probe()
    broken.request(SLOW)
    assert broken.probe() == LONGEST_OPEN


def test_a_probe_without_need_changes_nothing(broken: Broken) -> None:
    """An answer that nobody waited for leaves a closed breaker closed, and a ticket is a value."""
    broken.breaker.probed(SLOW)
    assert broken.breaker.admit() == Ticket(0, trial=False)
