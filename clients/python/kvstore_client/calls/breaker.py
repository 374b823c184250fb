"""When a store that does not answer is asked again."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from threading import Condition, Thread
from typing import NamedTuple, ParamSpec, TypeVar

from kvstore_client.calls.deadlines import Backoff, Deadline
from kvstore_client.errors import (
    SESSION_OVER,
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
        """Notes that a request is over, whatever came of it."""
        if ticket.trial and ticket.opening == self._openings:
            self._tried = False

    def check(self, kind: str) -> None:
        """Raises ``StoreUnavailable`` where calls of this kind are not to be sent yet."""
        until, refusal = self._rests.get(kind, (0.0, None))
        left = until - self._clock()
        if left > 0:
            raise StoreUnavailable(f"not asked for another {left:.2g} s: {refusal}")

    def answered(self, ticket: Ticket, kind: str) -> None:
        """Notes that a call was answered in time."""
        if ticket.opening != self._openings or self.state is BreakerState.OPEN:
            return
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._timeouts[kind] = max(0, self._timeouts[kind] - 1)

    def failed(self, ticket: Ticket, kind: str, error: StoreError) -> bool:
        """Notes that a call failed; returns whether that opened it.

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
        """Notes what came of a probe: None for an answer, which a refusal is as well."""
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


_logger = logging.getLogger(__name__)


class StoreGate:
    """A circuit breaker with a thread that probes, for as long as it is open.

    ``probe`` asks the store something and raises ``StoreError``; it is called on
    that thread alone. ``reopened`` is called there once the store answered. Any
    thread may use it. The breaker's state changes under ``monitor``, which is
    notified of it and never held over a call.
    """

    def __init__(
        self,
        breaker: CircuitBreaker,
        monitor: Condition,
        probe: Callable[[], None],
        reopened: Callable[[], None],
    ) -> None:
        self._breaker = breaker
        self._monitor = monitor
        self._probe = probe
        self._reopened = reopened
        self._probing = False
        self._closed = False

    @property
    def passes(self) -> bool:
        """Whether a request would be let through now."""
        return self._breaker.passes

    def admit(self) -> Ticket:
        """Let a request through, which has to :meth:`leave`; raises ``StoreUnavailable``."""
        with self._monitor:
            return self._breaker.admit()

    def leave(self, ticket: Ticket) -> None:
        """Notes that a request is over."""
        with self._monitor:
            self._breaker.leave(ticket)
            if ticket.trial:
                self._monitor.notify_all()

    def check(self, kind: str) -> None:
        """Raises ``StoreUnavailable`` where calls of this kind are not to be sent yet."""
        self._breaker.check(kind)

    def answered(self, ticket: Ticket, kind: str) -> None:
        """Notes that a call was answered in time."""
        with self._monitor:
            self._breaker.answered(ticket, kind)
            if ticket.trial:
                self._monitor.notify_all()

    def failed(self, ticket: Ticket, kind: str, error: StoreError) -> None:
        """Notes that a call failed; where that opened it, begin to probe."""
        with self._monitor:
            opened = self._breaker.failed(ticket, kind, error)
            if opened:
                self._begin_probing()
        if opened:
            _logger.info("store_not_asked", extra={"call": kind, "reason": str(error)})

    def prompt(self) -> None:
        """Have a probe that waits after one that failed sent now."""
        with self._monitor:
            self._breaker.prompt()
            if self._breaker.state is BreakerState.OPEN:
                self._begin_probing()
            self._monitor.notify_all()

    def close(self) -> None:
        """Probes no more. Does not wait."""
        with self._monitor:
            self._closed = True
            self._monitor.notify_all()

    def _begin_probing(self) -> None:
        """Start the thread, unless it runs. Where there is none to be had, the next prompt does."""
        if self._probing or self._closed:
            return
        with contextlib.suppress(RuntimeError):  # no threads left: that passes
            Thread(target=self._run, name="kvstore-probe", daemon=True).start()
            self._probing = True

    def _run(self) -> None:
        while self._wait():
            error: StoreError | None = None
            try:
                self._probe()
            except StoreRefused:
                pass  # an answer
            except StoreError as failure:
                error = failure
            except Exception as failure:  # without this thread no request would be sent again
                _logger.exception("probe_failed")
                error = StoreUnavailable(f"it could not be asked: {failure!r}")
            if error is None:
                self._reopened()
            with self._monitor:
                self._breaker.probed(error)
                self._monitor.notify_all()

    def _wait(self) -> bool:
        """Waits until a probe is due; returns False where none is wanted, and the thread ends."""
        with self._monitor:
            while not self._closed and self._breaker.state is BreakerState.OPEN:
                left = self._breaker.probe_in
                if left <= 0:
                    return True
                self._monitor.wait(left)
            self._probing = False
            return False


# Of ``call_timeout``: a call that had less, for its request's budget was nearly spent, may come too
# late with a store that is well. Several of them in a row tell something.
FAIR_SHARE = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class Sample(NamedTuple):
    """Tokens of a namespace, to ask for when it matters whether there is an answer in time."""

    namespace_id: bytes
    tokens: bytes


class StoreRequest:
    """What a request may still take, and what its calls tell of the store.

    ``asked`` is whether any call was sent. ``end`` is told where the lease is
    over. One thread uses it.
    """

    def __init__(
        self,
        gate: StoreGate,
        ticket: Ticket,
        deadline: Deadline,
        end: Callable[[StoreError], None],
        *,
        call_timeout: float,
    ) -> None:
        """``call_timeout`` is what a call has where the budget leaves it, in seconds."""
        self.asked = False
        self._gate = gate
        self._ticket = ticket
        self._deadline = deadline
        self._end = end
        self._fair = call_timeout * FAIR_SHARE
        self._given = call_timeout

    def remaining(self) -> float:
        """Returns the seconds left, more than zero; raises ``StoreTimedOut`` after them.

        What is waited for next is taken to have as many.
        """
        self._given = self._deadline.remaining()
        return self._given

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call of ``LeaseCalls``; its errors are raised after their meaning is drawn.

        One that says that the lease is over ends the session. After one that was
        not answered in time the store is not asked until it answers again. Raises
        ``StoreUnavailable`` where the store said not to be asked this yet.
        """
        kind = call.__name__
        self._gate.check(kind)
        self.asked = True
        try:
            answer = call(*args, **kwargs)
        except SESSION_OVER as error:
            self._end(error)
            raise
        except StoreError as error:
            self.failed(kind, error)
            raise
        self._gate.answered(self._ticket, kind)
        return answer

    def failed(self, kind: str, error: StoreError) -> None:
        """Notes that something that the request waited for failed."""
        if isinstance(error, StoreTimedOut) and self._given < self._fair:
            error = StoreUnavailable(f"{error}, of which {self._given:.2g} s were left")
        self._gate.failed(self._ticket, kind, error)
