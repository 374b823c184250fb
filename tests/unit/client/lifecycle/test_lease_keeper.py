"""The renewal of a lease, by a clock that the test moves."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from kvstore_client import errors
from kvstore_client.lifecycle.lease_keeper import LeaseKeeper, LeaseTerm
from kvstore_client.testing import wait_until

# So long that the keeper, which waits by the real clock, looks at the test's when it is prompted.
TTL = 900.0
Outcome = float | errors.StoreError


class User:
    """A user that notes the keeper's reports."""

    def __init__(self) -> None:
        self.renewals: SimpleQueue[None] = SimpleQueue()
        self.ends: SimpleQueue[errors.StoreError] = SimpleQueue()

    def renewed(self) -> None:
        """Notes a renewal."""
        self.renewals.put(None)

    def end(self, reason: errors.StoreError) -> None:
        """Notes the end of the lease."""
        self.ends.put(reason)


class Kept:
    """A keeper whose clock and renewals the test controls."""

    def __init__(self, longest_call: float = TTL) -> None:
        self.now = 100.0
        self.timeouts: SimpleQueue[float] = SimpleQueue()
        self.outcomes: SimpleQueue[Outcome | Callable[[], Outcome]] = SimpleQueue()
        self.user = User()
        self.keeper = LeaseKeeper(
            self._renew,
            self.user,
            LeaseTerm(self.now, TTL),
            lambda: self.now,
            longest_call=longest_call,
        )

    def _renew(self, timeout: float) -> float:
        self.timeouts.put(timeout)
        outcome = self.outcomes.get(timeout=30)
        if callable(outcome):
            outcome = outcome()
        if isinstance(outcome, errors.StoreError):
            raise outcome
        return outcome

    def at(self, now: float) -> None:
        """Moves the clock and wakes the keeper."""
        self.now = now
        self.keeper.prompt()


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Provides a keeper that is not started, and stops it afterwards."""
    kept = Kept()
    yield kept
    kept.keeper.stop()


def test_a_term_is_counted_from_sending() -> None:
    """A term counts from the request's sending. It is renewed after a third of the TTL."""
    term = LeaseTerm(sent_at=10.0, ttl=9.0)
    assert (term.renew_at, term.ends_at, term.retry_s) == (13.0, 19.0, 0.9)


def test_a_renewal_extends_the_term_from_its_sending(kept: Kept) -> None:
    """The new term begins when the request was sent, however long the answer took."""

    def slow() -> float:
        kept.now += 200.0
        return TTL

    kept.keeper.start()
    kept.outcomes.put(slow)
    kept.at(400.0)
    kept.user.renewals.get(timeout=30)
    kept.now = 1299.9
    assert kept.keeper.holds
    kept.now = 1300.0
    assert not kept.keeper.holds


def test_a_renewal_never_waits_beyond_the_end(kept: Kept) -> None:
    """A renewal's timeout is a third of the term, or its rest if that is shorter."""
    kept.keeper.start()
    kept.outcomes.put(errors.StoreTimedOut("slow"))
    kept.at(400.0)
    assert kept.timeouts.get(timeout=30) == 300.0
    kept.outcomes.put(errors.StoreTimedOut("slow"))
    kept.at(900.0)
    assert kept.timeouts.get(timeout=30) == 100.0
    assert kept.user.ends.empty()


def test_failures_are_tried_again_until_the_end(kept: Kept) -> None:
    """Failed renewals are repeated until the lease ends by the client's clock."""
    kept.keeper.start()
    for now in (400.0, 600.0):
        kept.outcomes.put(errors.StoreUnavailable("away"))
        kept.at(now)
        kept.timeouts.get(timeout=30)
    assert kept.user.ends.empty()
    kept.at(1000.0)
    assert isinstance(kept.user.ends.get(timeout=30), errors.LeaseExpired)
    assert kept.timeouts.empty()


def test_a_refusal_ends_it_at_once(kept: Kept) -> None:
    """A refusal of a renewal ends the lease at once, whatever the clock says."""
    kept.keeper.start()
    refused = errors.LeaseNotFound("gone")
    kept.outcomes.put(refused)
    kept.at(400.0)
    assert kept.user.ends.get(timeout=30) is refused


def test_a_refusal_for_now_is_no_end(kept: Kept) -> None:
    """A renewal that the store refuses for now is repeated after the given delay."""
    kept.keeper.start()
    kept.outcomes.put(errors.QuotaExceeded("too many", retry_after_s=200.0))
    kept.at(400.0)
    kept.timeouts.get(timeout=30)
    assert wait_until(lambda: kept.keeper._next_attempt == 600.0)
    kept.outcomes.put(TTL)
    kept.at(600.0)
    kept.user.renewals.get(timeout=30)
    assert kept.user.ends.empty()


def test_a_store_that_stops_ends_it(kept: Kept) -> None:
    """Such a store renews nothing any more, although another one may soon."""
    kept.keeper.start()
    refused = errors.StoreDraining("stopping", retry_after_s=1.0)
    kept.outcomes.put(refused)
    kept.keeper.prompt()
    assert kept.user.ends.get(timeout=30) is refused


def test_a_process_that_slept_gives_up_before_it_asks(kept: Kept) -> None:
    """A process that slept past its term ends the lease by its clock, without a request."""
    kept.keeper.start()
    kept.at(5000.0)
    assert isinstance(kept.user.ends.get(timeout=30), errors.LeaseExpired)
    assert kept.timeouts.empty()


def test_a_stopped_keeper_says_nothing(kept: Kept) -> None:
    """A stopped keeper reports neither a renewal nor an end."""
    kept.keeper.start()
    kept.keeper.stop()
    kept.at(5000.0)
    assert wait_until(lambda: not kept.keeper.running)
    assert kept.user.ends.empty()
    assert kept.user.renewals.empty()


def test_it_renews_by_itself() -> None:
    """A keeper renews a short term by itself on the real clock."""
    user = User()
    keeper = LeaseKeeper(lambda _: 60.0, user, LeaseTerm(0.0, 0.3), lambda: 0.15)
    keeper.start()
    user.renewals.get(timeout=30)
    keeper.stop()


def test_a_keeper_that_fails_by_a_bug_gives_the_lease_up(kept: Kept) -> None:
    """A keeper that fails unexpectedly reports the end of the lease, so the client reattaches."""

    def fail() -> float:
        raise RuntimeError("a bug")

    kept.keeper.start()
    kept.outcomes.put(fail)
    kept.at(400.0)
    assert "a bug" in str(kept.user.ends.get(timeout=30))


def test_no_renewal_takes_longer_than_a_call_may() -> None:
    """A renewal of a long lease has a timeout that the store allows."""
    kept = Kept(longest_call=60.0)
    kept.outcomes.put(TTL)
    kept.keeper.start()
    kept.at(100.0 + TTL / 3)
    assert kept.timeouts.get(timeout=30) == 60.0
    kept.keeper.stop()
