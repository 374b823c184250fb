"""The time that an engine waits for the store and for its ranks to join."""

import pytest

from kvstore_vllm.scheduler.rank_joining import LONGEST_JOIN, Joining

LEASE, NEW = b"lease", b"new"


class Clock:
    """A clock in seconds, set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Returns the time that was set."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that does not advance by itself."""
    return Clock()


def test_ranks_of_the_same_process_are_there_at_once(clock: Clock) -> None:
    """Ranks of the engine's own process use its client, so nothing is sent or waited for."""
    joining = Joining(0, clock)
    assert not joining.tells_ranks
    assert joining.complete(None)
    assert not joining.waits(answers=True, tried=True, lease=None)


def test_a_store_is_waited_for_once_after_the_start(clock: Clock) -> None:
    """An engine waits for the store for a bounded time, until the first attempt has ended."""
    joining = Joining(0, clock)
    assert joining.waits(answers=False, tried=False, lease=None)
    assert not joining.waits(answers=False, tried=True, lease=None)
    clock.now += LONGEST_JOIN
    assert not joining.waits(answers=False, tried=False, lease=None)


def test_all_ranks_are_waited_for(clock: Clock) -> None:
    """The join is complete once each rank has joined the lease."""
    joining = Joining(2, clock)
    joining.shared(LEASE)
    joining.came({LEASE: 1})
    assert joining.waits(answers=True, tried=True, lease=LEASE)
    assert not joining.complete(LEASE)
    joining.came({LEASE: 1})
    assert joining.complete(LEASE)
    assert not joining.waits(answers=True, tried=True, lease=LEASE)


def test_ranks_have_so_long_from_when_they_are_told(clock: Clock) -> None:
    """The time to join begins when the ranks are told, and requests wait no longer than that."""
    joining = Joining(1, clock)
    clock.now += 2 * LONGEST_JOIN
    assert joining.waits(answers=True, tried=True, lease=LEASE)
    joining.shared(LEASE)
    clock.now += LONGEST_JOIN / 2
    joining.shared(LEASE)
    assert joining.waits(answers=True, tried=True, lease=LEASE)
    clock.now += LONGEST_JOIN / 2
    assert not joining.waits(answers=True, tried=True, lease=LEASE)
    assert not joining.complete(LEASE)
    joining.came({LEASE: 1})
    assert joining.complete(LEASE)


def test_a_new_session_is_joined_anew(clock: Clock) -> None:
    """Ranks have to join each new session. An absent session is not waited for."""
    joining = Joining(1, clock)
    joining.shared(LEASE)
    joining.came({LEASE: 1})
    assert not joining.complete(None)
    assert not joining.waits(answers=True, tried=True, lease=None)
    assert not joining.complete(NEW)
    assert joining.waits(answers=True, tried=True, lease=NEW)
    joining.shared(NEW)
    clock.now += LONGEST_JOIN
    assert not joining.waits(answers=True, tried=True, lease=NEW)
