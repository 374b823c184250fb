"""Attaches in the background, for as long as the client lives."""

import contextlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable
from copy import copy
from functools import partial
from threading import Condition, Thread

from kvstore_client.calls.deadlines import Backoff, Deadline, StoreBudget
from kvstore_client.config import ClientConfig
from kvstore_client.errors import (
    SESSION_OVER,
    ClientClosed,
    ForkedClient,
    PoolExhausted,
    QuotaExceeded,
    StoreError,
    StoreRefused,
    StoreTimedOut,
    StoreUnavailable,
)
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.joined_lease import SharedLease
from kvstore_client.lifecycle.reattachment import Reattachment
from kvstore_client.lifecycle.session import Session
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceKey

# A namespace that is refused for this is tried again.
PASSING = PoolExhausted
# The longest wait in seconds between attempts to resume a session. The store is expected back
# at once, and its socket refuses without a wait until then.
LONGEST_RESUME_WAIT = 0.05

_logger = logging.getLogger(__name__)


class Connector:
    """A thread that keeps one session at a time, resumes it, and begins the next after each end.

    An ended session drains first: its extent ids and slots name other pages in the next.
    So the next session begins only after all holds of the last one are released. With
    ``joined`` all sessions are under that lease, and none begins after the lease ended.

    Any thread may use it. ``monitor`` guards all state of the client's sessions and is
    notified of every change. It is never held over I/O or a callback.
    """

    def __init__(
        self, runtime_dir: RuntimeDir, config: ClientConfig, joined: SharedLease | None = None
    ) -> None:
        self.monitor = Condition()
        self._runtime_dir = runtime_dir
        self._config = config
        self._joined = joined
        self._pid = os.getpid()
        self._wanted: list[NamespaceKey] = []
        self._numbers = itertools.count(1)
        self._session: Session | None = None
        self._attempt: Attempt | Reattachment | None = None
        self._leaving: list[Session] = []
        self._resumed_at = -math.inf
        self._started = False
        self._tried = False
        self._closing = False
        self._why_none: StoreError = StoreUnavailable("not attached yet")
        # The last session whose end is in ``_why_none``.
        self._left: Session | None = None
        self._thread = Thread(target=self._run, name="kvstore-connector", daemon=True)

    # For callers.

    @property
    def session(self) -> Session | None:
        """The newest session, which may have ended, or None before the first."""
        return self._session

    @property
    def tried(self) -> bool:
        """True once an attempt to attach has ended, with or without success."""
        return self._tried

    def require_session(self) -> Session:
        """Returns the newest session; raises the ``StoreError`` that explains why none exists."""
        self.check_process()
        session = self._session
        if self._closing:
            raise ClientClosed("this client was closed")
        if session is None or session.drained:
            # A session ends before its thread has noted why.
            ended = None if session is None or session is self._left else session.ended
            raise copy(ended or self._why_none)
        return session

    def new_budget(self) -> StoreBudget:
        """Returns the configured time of one request for all its calls."""
        return StoreBudget(self._config.request_budget or self._config.call_timeout)

    def check_process(self) -> None:
        """Raises :class:`ForkedClient` in a process that is not the client's own."""
        if os.getpid() != self._pid:
            raise ForkedClient("this client belongs to the parent process")

    def want(self, key: NamespaceKey) -> None:
        """Opens a namespace in this session and in every later one, in the background."""
        with self.monitor:
            if key not in self._wanted:
                self._wanted.append(key)
                self.monitor.notify_all()

    def forget(self, key: NamespaceKey) -> None:
        """Stops opening a namespace, and stops using it in this session."""
        with self.monitor:
            if key in self._wanted:
                self._wanted.remove(key)
            if self._session is not None:
                self._session.note_namespace(key, None)

    def start(self) -> None:
        """Begins to attach, once. Does not wait, and does not fail without a store."""
        with self.monitor:
            started, self._started = self._started, True
        if not started:
            self._thread.start()

    def close(self) -> None:
        """Ends the session, sends pending releases, and stops the thread.

        Waits up to ``close_timeout`` for open holds, and then as long for the store. Can be
        repeated.
        """
        with self.monitor:
            self._closing = True
            self.monitor.notify_all()
            attempt, session = self._attempt, self._session
        if attempt is not None:
            attempt.abort()
        if session is not None:
            session.end(ClientClosed("this client was closed"))
        if self._thread.is_alive():
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        config = self._config
        # Nothing announces a store that is back, so this looks at least twice in a lease's time.
        longest = max(config.first_backoff, min(config.longest_backoff, config.ttl / 2))
        backoff = Backoff(config.first_backoff, longest)
        while not self._closing:
            session = self._attach()
            if session is None:
                wait = max(backoff.delay(), _retry_after(self._why_none))
            else:
                backoff.reset()
                try:
                    self._serve(session)
                except Exception:
                    # A worker runs without a store, but not with a half attached one.
                    _logger.exception("connector_failed")
                self._leave(session)
                wait = backoff.delay()
            if self._joined is not None and isinstance(self._why_none, SESSION_OVER):
                break
            self._pause(wait)
        deadline = Deadline(self._config.close_timeout)
        for session in self._leaving:
            revoked = False
            with contextlib.suppress(StoreTimedOut):
                revoked = session.join(deadline.remaining())
            if not revoked:
                session.abandon()

    def _attach(self) -> Session | None:
        try:
            attempt = Attempt(self._runtime_dir, self._config, self._joined)
            with self.monitor:
                self._attempt = attempt
            if self._closing:
                attempt.abort()
            session = attempt.run(self.monitor, self._numbers)
        except StoreError as error:
            self._note_failure(error)
            return None
        except Exception as error:  # such as no descriptors or threads left: that passes
            _logger.exception("connector_failed")
            self._note_failure(StoreUnavailable(f"this process cannot attach: {error!r}"))
            return None
        with self.monitor:
            self._attempt = None
            self._tried = True
            self._session = session
            self.monitor.notify_all()
        _logger.info("session_started", extra={"store_epoch": session.store_epoch})
        return session

    def _note_failure(self, error: StoreError) -> None:
        with self.monitor:
            self._attempt = None
            self._tried = True
            news = str(error) != str(self._why_none)
            self._why_none = error.with_traceback(None)
            self.monitor.notify_all()
        if news and isinstance(error, StoreRefused):
            _logger.warning("attach_refused", extra={"reason": str(error)})
        else:
            _logger.debug("attach_failed", extra={"reason": str(error)})

    def _serve(self, session: Session) -> None:
        """Opens the wanted namespaces, and resumes the session, until the session ends."""
        interrupted = partial(self._interrupted, session)
        backoff = Backoff(self._config.first_backoff, self._config.longest_backoff)
        while True:
            with self.monitor:
                self.monitor.wait_for(lambda: self._interrupted(session) or self._unopened(session))
                if self._over(session):
                    break
                suspended = session.suspended is not None
                key = None if suspended else self._unopened(session)[0]
            if key is None:
                self._resume(session)
                continue
            try:
                session.open_namespace(key)
            except SESSION_OVER:
                continue  # the session has ended itself
            except StoreRefused as error:
                if isinstance(error, PASSING):
                    session.not_yet[key] = error.with_traceback(None)
                    self._put_last(key)
                    self._pause(max(backoff.delay(), _retry_after(error)), interrupted)
                else:
                    _logger.warning("namespace_refused", extra={"reason": str(error)})
                    session.note_namespace(key, error)
            except StoreError as error:
                session.not_yet[key] = error.with_traceback(None)
                self._put_last(key)
                self._pause(backoff.delay(), interrupted)
            else:
                backoff.reset()

    def _resume(self, session: Session) -> None:
        """Tries to resume a suspended session until it is resumed or ends."""
        config = self._config
        longest = max(config.first_backoff, min(config.longest_backoff, LONGEST_RESUME_WAIT))
        backoff = Backoff(config.first_backoff, longest)
        if time.monotonic() - self._resumed_at < LONGEST_RESUME_WAIT:
            # The last connection was lost at once, and the next one may be too.
            self._pause(backoff.delay(), lambda: self._over(session))
        while session.suspended is not None and not self._over(session):
            try:
                attempt = Reattachment(self._runtime_dir, config, session)
                with self.monitor:
                    self._attempt = attempt
                if self._over(session):
                    attempt.abort()
                attempt.run()
                self._resumed_at = time.monotonic()
            except StoreError as error:
                if isinstance(error, StoreRefused) and not isinstance(error, QuotaExceeded):
                    session.end(error)
                _logger.debug("resume_failed", extra={"reason": str(error)})
                self._pause(backoff.delay(), lambda: self._over(session))
            except Exception:  # such as no descriptors or threads left: that passes
                _logger.exception("connector_failed")
                self._pause(backoff.delay(), lambda: self._over(session))
            finally:
                with self.monitor:
                    self._attempt = None

    def _put_last(self, key: NamespaceKey) -> None:
        """Moves a namespace behind the others that wait."""
        with self.monitor:
            if key in self._wanted:  # unless it was forgotten meanwhile
                self._wanted.remove(key)
                self._wanted.append(key)

    def _over(self, session: Session) -> bool:
        return self._closing or session.ended is not None

    def _interrupted(self, session: Session) -> bool:
        return self._over(session) or session.suspended is not None

    def _unopened(self, session: Session) -> list[NamespaceKey]:
        return [key for key in self._wanted if key not in session.namespaces]

    def _pause(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Waits for some seconds, or until the client ends or ``until`` returns True."""
        with self.monitor:
            self.monitor.wait_for(lambda: self._closing or until(), seconds)

    def _leave(self, session: Session) -> None:
        """Ends the session, waits until it has no holds, and finishes it."""
        session.end(StoreUnavailable("left by this client"))  # unless it ended by itself
        with self.monitor:
            self._why_none = session.ended or self._why_none
            self._left = session
            self.monitor.wait_for(lambda: session.drained or self._closing)
            drained = self.monitor.wait_for(lambda: session.drained, self._config.close_timeout)
        if drained:
            session.finish()
            self._leaving = [each for each in self._leaving if not each.join(0)] + [session]
        else:
            # Other code may still use the pages: the store takes them back when this process ends.
            _logger.warning("client_closed_while_holding")
            session.flush(self._config.close_timeout)
            session.abandon()


def _retry_after(error: StoreError) -> float:
    """Returns the seconds for which the store asked for no retry, or zero."""
    return (error.retry_after_s or 0.0) if isinstance(error, StoreRefused) else 0.0
