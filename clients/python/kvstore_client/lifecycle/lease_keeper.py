"""Renews a lease, and gives it up by the client's own clock."""

import logging
import time
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple, Protocol

from kvstore_client.config import MAX_CALL_TIMEOUT
from kvstore_client.errors import (
    LeaseExpired,
    StoreDraining,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)

_logger = logging.getLogger(__name__)

# A renewal every third of the TTL may fail twice. A retry every tenth costs nothing.
RENEWALS_PER_TTL = 3
ATTEMPTS_PER_TTL = 10


class LeaseTerm(NamedTuple):
    """A time to live in seconds, counted from the sending of its request.

    The store counts from the receipt, on the same clock (CLOCK_MONOTONIC), so the client
    gives up first.
    """

    sent_at: float
    ttl: float

    @property
    def renew_at(self) -> float:
        """The time of the next renewal."""
        return self.sent_at + self.ttl / RENEWALS_PER_TTL

    @property
    def ends_at(self) -> float:
        """The time at which the client stops using the lease."""
        return self.sent_at + self.ttl

    @property
    def retry_s(self) -> float:
        """Seconds between attempts after a failed one."""
        return self.ttl / ATTEMPTS_PER_TTL


class LeaseUser(Protocol):
    """The user of a lease. The keeper calls it on its own thread, without a mutex."""

    def renewed(self) -> None:
        """Notes that the store answered a renewal."""

    def end(self, reason: StoreError) -> None:
        """Notes that the lease is lost."""


class LeaseKeeper:
    """A thread that renews every third of the TTL, from :meth:`start` to :meth:`stop`.

    ``renew`` gets a timeout, and returns the TTL or raises ``StoreError``. The keeper ends by
    itself once the lease is lost. Any thread may use it.
    """

    def __init__(
        self,
        renew: Callable[[float], float],
        user: LeaseUser,
        term: LeaseTerm,
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_call: float = MAX_CALL_TIMEOUT,
    ) -> None:
        """``longest_call`` is the longest timeout in seconds that the store allows."""
        self._renew = renew
        self._longest_call = longest_call
        self._user = user
        self._term = term
        self._clock = clock
        self._state = Condition()
        self._stopped = False
        self._prompted = False
        self._next_attempt = term.renew_at
        self._thread = Thread(target=self._run, name="kvstore-lease", daemon=True)

    @property
    def holds(self) -> bool:
        """True while the lease is within its TTL, by this process's clock."""
        return self._clock() < self._term.ends_at

    @property
    def running(self) -> bool:
        """True while the keeper's thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begins renewing."""
        self._thread.start()

    def prompt(self) -> None:
        """Renews now: after another connection, or because the store asks for it."""
        with self._state:
            self._prompted = True
            self._state.notify_all()

    def stop(self) -> None:
        """Stops renewing. Does not wait."""
        with self._state:
            self._stopped = True
            self._state.notify_all()

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:  # without this thread the lease would end unnoticed
            _logger.exception("lease_keeper_failed")
            self._user.end(StoreUnavailable(f"the lease cannot be renewed: {error!r}"))

    def _keep(self) -> None:
        while self._wait():
            now = self._clock()
            if now >= self._term.ends_at:
                self._user.end(_lost(self._term.ttl))
                return
            try:
                # Not beyond the end, so that the loop sees the end in time.
                share, left = self._term.ttl / RENEWALS_PER_TTL, self._term.ends_at - now
                ttl = self._renew(min(share, left, self._longest_call))
            except StoreError as error:
                wait = self._term.retry_s
                if isinstance(error, StoreRefused):
                    # A draining store renews no lease. Its time to retry is for the next store.
                    if not error.retry_after_s or isinstance(error, StoreDraining):
                        self._user.end(error)
                        return
                    wait = max(wait, error.retry_after_s)
                self._next_attempt = self._clock() + wait
            else:
                self._term = LeaseTerm(now, ttl)
                self._next_attempt = self._term.renew_at
                self._user.renewed()

    def _wait(self) -> bool:
        """Waits until an attempt is due; returns False once stopped."""
        with self._state:
            until = min(self._next_attempt, self._term.ends_at)
            self._state.wait_for(
                lambda: self._stopped or self._prompted, max(0.0, until - self._clock())
            )
            self._prompted = False
            return not self._stopped


def _lost(ttl: float) -> LeaseExpired:
    return LeaseExpired(
        f"LEASE_EXPIRED: no renewal was answered for {ttl} s", reason="LEASE_EXPIRED"
    )
