"""The circuit breaker: it stops requests to a store that does not answer."""

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

# Calls in a row that failed at once, such as on a broken connection. A single one costs no time.
FAILURES_TO_OPEN = 3


class BreakerState(Enum):
    """The calls that are sent: all requests, only probes, or one request at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class AdmittedRequest(NamedTuple):
    """An admitted request: the count of openings before it, and whether it is the trial."""

    opening: int
    trial: bool


class CircuitBreaker:
    """Keeps requests from a store that does not answer, by the results of earlier calls.

    A *closed* breaker admits all requests. One timeout opens it, or a few failures in a
    row that came at once. An *open* breaker admits none until the store answers a probe.
    No request waits for a probe. Then the breaker is *half-open*: it admits one request
    at a time, and the first answer closes it.

    If the store answers probes but not requests, the breaker stays open for longer each
    time, from ``first_open`` seconds doubling to ``longest_open``. Few requests then wait
    for a slow store. The breaker counts timeouts by kind of call, and an answer in time
    takes one doubling back. ``probe_waits`` are the waits between failed probes.

    A call refused for a quota is not sent again before its retry time.

    The breaker never waits and has no thread. Not thread-safe: its user guards it.
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
        """True while the breaker admits a request."""
        return self.state is BreakerState.CLOSED or (
            self.state is BreakerState.HALF_OPEN and not self._tried
        )

    def admit(self) -> AdmittedRequest:
        """Admits a request, which MUST :meth:`leave`; raises ``StoreUnavailable`` with a reason."""
        if not self.passes:
            raise StoreUnavailable(f"not asked: {self._why}")
        self._tried = trial = self.state is BreakerState.HALF_OPEN
        return AdmittedRequest(self._openings, trial)

    def leave(self, admitted: AdmittedRequest) -> None:
        """Notes that a request is over, with any result."""
        if admitted.trial and admitted.opening == self._openings:
            self._tried = False

    def check(self, kind: str) -> None:
        """Raises ``StoreUnavailable`` if calls of this kind must not be sent yet."""
        until, refusal = self._rests.get(kind, (0.0, None))
        left = until - self._clock()
        if left > 0:
            raise StoreUnavailable(f"not asked for another {left:.2g} s: {refusal}")

    def answered(self, admitted: AdmittedRequest, kind: str) -> None:
        """Notes that a call was answered in time."""
        if admitted.opening != self._openings or self.state is BreakerState.OPEN:
            return
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._timeouts[kind] = max(0, self._timeouts[kind] - 1)

    def failed(self, admitted: AdmittedRequest, kind: str, error: StoreError) -> bool:
        """Notes that a call failed; returns whether the failure opened the breaker.

        Ignores the failure of a call that began before the last opening.
        """
        if isinstance(error, StoreRefused):
            self.answered(admitted, kind)
            if isinstance(error, QuotaExceeded) and error.retry_after_s:
                self._rests[kind] = (self._clock() + error.retry_after_s, error)
            return False
        if admitted.opening != self._openings or self.state is BreakerState.OPEN:
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
        """Seconds until the next probe, zero or less once it is due. Valid only while open."""
        return self._probe_at - self._clock()

    def probed(self, error: StoreError | None) -> None:
        """Notes the result of a probe: None for an answer. A refusal is an answer too."""
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
        """Makes the next probe due now if the last one failed: the store answers other calls."""
        if self._probe_failed:
            self._probe_at = self._clock()

    def begin_anew(self) -> None:
        """Closes for another server. Ignores the results of calls that began before."""
        self.state = BreakerState.CLOSED
        self._openings += 1
        self._timeouts.clear()
        self._failures = 0
        self._tried = False
        self._probe_failed = False
        self._probe_waits.reset()

    def _open(self, timeouts: int, error: StoreError) -> None:
        self.state = BreakerState.OPEN
        self._openings += 1
        self._tried = False
        self._failures = 0
        self._probe_failed = False
        self._why = f"the store did not answer ({error})"
        wait = 0.0
        if timeouts > 1:
            # Bounded first, so the power of two stays a finite float.
            doublings = min(timeouts - 2, 63)
            wait = min(self._longest_open, self._first_open * 2.0**doublings)
        self._probe_at = self._clock() + wait


_logger = logging.getLogger(__name__)


class ProbingBreaker:
    """A circuit breaker with a thread that probes while the breaker is open.

    ``probe`` calls the store and raises ``StoreError``. Only that thread calls it, and it
    calls ``reopened`` once the store answered. Any thread may use the breaker. The breaker's
    state changes under ``monitor``. The breaker notifies it of changes, and never holds it
    over a call.
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
        """True while the breaker admits a request."""
        return self._breaker.passes

    def admit(self) -> AdmittedRequest:
        """Admits a request, which MUST :meth:`leave`; raises ``StoreUnavailable``."""
        with self._monitor:
            return self._breaker.admit()

    def leave(self, admitted: AdmittedRequest) -> None:
        """Notes that a request is over."""
        with self._monitor:
            self._breaker.leave(admitted)
            if admitted.trial:
                self._monitor.notify_all()

    def check(self, kind: str) -> None:
        """Raises ``StoreUnavailable`` if calls of this kind must not be sent yet."""
        self._breaker.check(kind)

    def answered(self, admitted: AdmittedRequest, kind: str) -> None:
        """Notes that a call was answered in time."""
        with self._monitor:
            self._breaker.answered(admitted, kind)
            if admitted.trial:
                self._monitor.notify_all()

    def failed(self, admitted: AdmittedRequest, kind: str, error: StoreError) -> None:
        """Notes that a call failed, and begins to probe if that opened the breaker."""
        with self._monitor:
            opened = self._breaker.failed(admitted, kind, error)
            if opened:
                self._begin_probing()
        if opened:
            _logger.info("store_not_asked", extra={"call": kind, "reason": str(error)})

    def prompt(self) -> None:
        """Sends the next probe now if the last one failed."""
        with self._monitor:
            self._breaker.prompt()
            if self._breaker.state is BreakerState.OPEN:
                self._begin_probing()
            self._monitor.notify_all()

    def begin_anew(self) -> None:
        """Admits all requests again, because another server of the store answers."""
        with self._monitor:
            self._breaker.begin_anew()
            self._monitor.notify_all()

    def close(self) -> None:
        """Stops probing. Does not wait."""
        with self._monitor:
            self._closed = True
            self._monitor.notify_all()

    def _begin_probing(self) -> None:
        """Starts the thread unless it runs. The next prompt retries if no thread can start."""
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
        """Waits until a probe is due; returns False if the thread has to end."""
        with self._monitor:
            while not self._closed and self._breaker.state is BreakerState.OPEN:
                left = self._breaker.probe_in
                if left <= 0:
                    return True
                self._monitor.wait(left)
            self._probing = False
            return False


# A share of ``call_timeout``. A call with less time, at the end of its request's budget, may time
# out although the store is healthy. It counts as a failure, and only several in a row open.
FAIR_SHARE = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class ProbeSample(NamedTuple):
    """Tokens of a namespace that a probe peeks at, to see whether the store answers in time."""

    namespace_id: bytes
    tokens: bytes


class StoreRequest:
    """The calls of one request: its remaining time, and its reports to the breaker.

    ``asked`` is whether any call was sent. ``over`` gets an error that says that the lease is
    over, and returns the error to raise. One thread uses it.
    """

    def __init__(
        self,
        breaker: ProbingBreaker,
        admitted: AdmittedRequest,
        deadline: Deadline,
        over: Callable[[StoreError], StoreError],
        *,
        call_timeout: float,
    ) -> None:
        """Takes ``call_timeout``, a call's seconds while the budget has as many."""
        self.asked = False
        self._breaker = breaker
        self._admitted = admitted
        self._deadline = deadline
        self._over = over
        self._fair = call_timeout * FAIR_SHARE
        self._given = call_timeout

    def remaining(self) -> float:
        """Returns the seconds left, more than zero; raises ``StoreTimedOut`` after them.

        The next call is assumed to have this many seconds.
        """
        self._given = self._deadline.remaining()
        return self._given

    def left(self) -> float:
        """Returns the seconds left, or zero after them."""
        return self._deadline.left()

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call of ``LeaseCalls``, reports its result to the breaker, and raises its errors.

        An error that says that the lease is over may end the session. After a timeout no
        request asks the store until it answers a probe. Raises ``StoreUnavailable`` if a
        refusal's retry time for this kind of call has not passed.
        """
        kind = call.__name__
        self._breaker.check(kind)
        self.asked = True
        try:
            answer = call(*args, **kwargs)
        except SESSION_OVER as error:
            raise self._over(error) from None
        except StoreError as error:
            self.failed(kind, error)
            raise
        self._breaker.answered(self._admitted, kind)
        return answer

    def check(self, kind: str) -> None:
        """Raises ``StoreUnavailable`` if calls of this kind must not be sent yet."""
        self._breaker.check(kind)

    def refused(self, kind: str, error: StoreError) -> StoreError:
        """Notes that an operation of an answered call failed; returns the error of its outcome."""
        if isinstance(error, SESSION_OVER):
            return self._over(error)
        self.failed(kind, error)
        return error

    def failed(self, kind: str, error: StoreError) -> None:
        """Notes that a call or another wait of the request failed."""
        if isinstance(error, StoreTimedOut) and self._given < self._fair:
            error = StoreUnavailable(f"{error}, of which {self._given:.2g} s were left")
        self._breaker.failed(self._admitted, kind, error)
