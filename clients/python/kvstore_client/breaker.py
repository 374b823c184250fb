"""When a store that does not answer is asked again."""

import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from kvstore_client.backoff import Backoff
from kvstore_client.errors import (
    QuotaExceeded,
    StoreError,
    StoreRefused,
    StoreTimedOut,
    StoreUnavailable,
)

# Calls in a row that failed at once, such as on a connection that breaks: one costs nothing.
FAILURES_TO_OPEN = 3


class BreakerState(Enum):
    """Who may ask: everybody, nobody but a probe, or one request at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Ticket(NamedTuple):
    """A request that was let through: after how many openings, and whether on trial."""

    opening: int
    trial: bool


class CircuitBreaker:
    """Keeps requests from a store that does not answer, by what became of those before.

    *Closed* it lets all through. A call that was not answered in time opens it, or
    a few in a row that failed at once. *Open* it lets none through until a probe,
    which no request waits for, was answered. Then it is *half-open*: one request
    at a time is let through, and its first answer closes it.

    Where probes are answered and requests are not, it stays open for longer each
    time, from ``first_open`` seconds doubling to ``longest_open``: so of a store
    that is slow for what requests ask, few of them pay. That is counted by kinds
    of calls, and an answer in time takes one doubling back. ``probe_waits`` are
    between probes that fail.

    A call that is refused until a later time, for a quota, is not sent before.

    Nothing here waits or has a thread. Not thread-safe: its user guards it.
    """

    def __init__(
        self,
        *,
        first_open: float,
        longest_open: float,
        probe_waits: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = BreakerState.CLOSED
        self._first_open = first_open
        self._longest_open = longest_open
        self._probe_waits = probe_waits
        self._clock = clock
        self._openings = 0
        self._timeouts: Counter[str] = Counter()
        self._failures = 0
        self._tried = False
        self._why = ""
        self._probe_at = 0.0
        self._probe_failed = False
        self._rests: dict[str, tuple[float, StoreRefused]] = {}

    @property
    def passes(self) -> bool:
        """Whether a request would be let through now."""
        return self.state is BreakerState.CLOSED or (
            self.state is BreakerState.HALF_OPEN and not self._tried
        )

    def admit(self) -> Ticket:
        """Let a request through, which MUST :meth:`leave`; raises ``StoreUnavailable``, why not."""
        if not self.passes:
            raise StoreUnavailable(f"not asked: {self._why}")
        self._tried = trial = self.state is BreakerState.HALF_OPEN
        return Ticket(self._openings, trial)

    def leave(self, ticket: Ticket) -> None:
        """Note that a request is over, whatever came of it."""
        if ticket.trial and ticket.opening == self._openings:
            self._tried = False

    def check(self, kind: str) -> None:
        """Raise ``StoreUnavailable`` where calls of this kind are not to be sent yet."""
        until, refusal = self._rests.get(kind, (0.0, None))
        left = until - self._clock()
        if left > 0:
            raise StoreUnavailable(f"not asked for another {left:.2g} s: {refusal}")

    def answered(self, ticket: Ticket, kind: str) -> None:
        """Note that a call was answered in time."""
        if ticket.opening != self._openings or self.state is BreakerState.OPEN:
            return
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._timeouts[kind] = max(0, self._timeouts[kind] - 1)

    def failed(self, ticket: Ticket, kind: str, error: StoreError) -> bool:
        """Note that a call failed; returns whether that opened it.

        A call that began before the last opening tells nothing new.
        """
        if isinstance(error, StoreRefused):
            self.answered(ticket, kind)
            if isinstance(error, QuotaExceeded) and error.retry_after_s:
                self._rests[kind] = (self._clock() + error.retry_after_s, error)
            return False
        if ticket.opening != self._openings or self.state is BreakerState.OPEN:
            return False
        if isinstance(error, StoreTimedOut):
            self._timeouts[kind] += 1
        else:
            self._failures += 1
            if self.state is BreakerState.CLOSED and self._failures < FAILURES_TO_OPEN:
                return False
        self._open(self._timeouts[kind], error)
        return True

    @property
    def probe_in(self) -> float:
        """Seconds until a probe is to be sent, zero or less from then on; only while open."""
        return self._probe_at - self._clock()

    def probed(self, error: StoreError | None) -> None:
        """Note what came of a probe: None for an answer, which a refusal is as well."""
        if self.state is not BreakerState.OPEN:
            return
        self._probe_failed = error is not None
        if error is None:
            self._probe_waits.reset()
            self.state = BreakerState.HALF_OPEN
            self._why = "one request tries whether the store answers"
        else:
            self._probe_at = self._clock() + self._probe_waits.delay()

    def prompt(self) -> None:
        """Have it probed now if the last probe failed: the store answers something."""
        if self._probe_failed:
            self._probe_at = self._clock()

    def _open(self, timeouts: int, error: StoreError) -> None:
        self.state = BreakerState.OPEN
        self._openings += 1
        self._tried = False
        self._failures = 0
        self._probe_failed = False
        self._why = f"the store did not answer ({error})"
        wait = 0.0
        if timeouts > 1:
            # Bounded before it is doubled: no power of two is too large then.
            doublings = min(timeouts - 2, 63)
            wait = min(self._longest_open, self._first_open * 2.0**doublings)
        self._probe_at = self._clock() + wait
