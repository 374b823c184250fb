"""Lets requests through to a store, or not, and finds out when it answers again."""

import contextlib
import logging
from collections.abc import Callable
from threading import Condition, Thread

from kvstore_client.breaker import BreakerState, CircuitBreaker, Ticket
from kvstore_client.errors import StoreError, StoreRefused, StoreUnavailable

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
        """Note that a request is over."""
        with self._monitor:
            self._breaker.leave(ticket)
            if ticket.trial:
                self._monitor.notify_all()

    def check(self, kind: str) -> None:
        """Raise ``StoreUnavailable`` where calls of this kind are not to be sent yet."""
        self._breaker.check(kind)

    def answered(self, ticket: Ticket, kind: str) -> None:
        """Note that a call was answered in time."""
        with self._monitor:
            self._breaker.answered(ticket, kind)
            if ticket.trial:
                self._monitor.notify_all()

    def failed(self, ticket: Ticket, kind: str, error: StoreError) -> None:
        """Note that a call failed; where that opened it, begin to probe."""
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
        """Probe no more. Does not wait."""
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
        """Wait until a probe is due; returns False where none is wanted, and the thread ends."""
        with self._monitor:
            while not self._closed and self._breaker.state is BreakerState.OPEN:
                left = self._breaker.probe_in
                if left <= 0:
                    return True
                self._monitor.wait(left)
            self._probing = False
            return False
