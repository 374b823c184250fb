"""The breaker: whether the engine answers, by the failures of the last calls.

Threads that wait for one hung engine fail together, and that is one failure. So a failure counts
only if its call began after the failure before it was known. Failures count in a window and not in
a row: an engine that answers one call of three is as good as dead. An engine that never answered
is away at its first failure, since its address may be wrong. This rule is not for single nodes.
"""

from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Final

import structlog

from kvstore.remote.errors import EngineClosed, Reaction, RemoteError
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Failures among so many calls that open the breaker.
WINDOW_CALLS: Final = 20
MOST_FAILURES: Final = 5
# Pages are not written for so long after the engine forbade it: an operator has to change that.
REFUSED_SECONDS: Final = 5.0


class Breaker:
    """Open while an engine, or one ``node`` of it, is away; calls are refused then. Thread-safe.

    ``opened`` is called when the engine went away, and ``closed`` when it came back, each on the
    thread that noticed it and without a lock.
    """

    def __init__(self, clock: Clock, *, node: str = "") -> None:
        self.opened: Callable[[], None] = lambda: None
        self.closed: Callable[[], None] = lambda: None
        self.opened_count = 0
        self.failure_count = 0
        self.why = ""
        self.is_open = False
        self.needs_operator = False
        """The engine answers, and refuses until somebody changes a setting."""
        self._log = log.bind(node=node) if node else log
        self._is_of_node = bool(node)
        self._clock = clock
        self._changed = Condition()
        self._outcomes: deque[bool] = deque(maxlen=WINDOW_CALLS)
        self._last_failure = float("-inf")
        self._refused_until = float("-inf")
        self._has_answered = self._is_of_node
        self._has_ended = False

    def succeed(self) -> None:
        """Notes that a call was answered."""
        with self._changed:
            self._has_answered = True
            self._outcomes.append(True)

    def fail(self, error: RemoteError, began: float) -> None:
        """Notes that a call which began at a time failed.

        A refused value is an answer, and a node that is away is no failure of its engine.
        """
        if error.reaction in {Reaction.VALUE, Reaction.NODE} or isinstance(error, EngineClosed):
            return
        with self._changed:
            if self.is_open or began < self._last_failure:
                return
            self._last_failure = self._clock()
            self.failure_count += 1
            self._outcomes.append(False)
            by_operator = error.reaction is Reaction.OPERATOR
            are_few = self._outcomes.count(False) < MOST_FAILURES
            if are_few and self._has_answered and not by_operator:
                return
            self.is_open, self.needs_operator = True, by_operator
            self.opened_count += 1
            self.why = f"{type(error).__name__}: {error}"
            self._changed.notify_all()
        write = self._log.error if by_operator else self._log.warning
        write("remote_node_away" if self._is_of_node else "remote_engine_away", why=self.why)
        self.opened()

    def refuse(self, error: RemoteError, *, of_page: bool) -> None:
        """Notes that an operator forbids a write, which says nothing of reads.

        That is a write ``of_page``, or one of a control value, a life or a deletion.
        """
        why = f"{type(error).__name__}: {error}"
        with self._changed:
            is_news, self.why = self.why != why, why
            if of_page:
                self._refused_until = self._clock() + REFUSED_SECONDS
        if is_news:
            log.error("remote_write_forbidden", why=why)

    @property
    def refuses_pages(self) -> bool:
        """True for some seconds after an operator's setting refused a page."""
        return self._clock() < self._refused_until

    def close(self) -> None:
        """Notes that the engine works again. Earlier failures do not count any more."""
        with self._changed:
            self._outcomes.clear()
            self._has_answered = True
            self.is_open = self.needs_operator = False
        self._log.info("remote_node_back" if self._is_of_node else "remote_engine_back")
        self.closed()

    def note(self, error: RemoteError) -> None:
        """Notes the last error of a probe."""
        with self._changed:
            self.needs_operator = error.reaction is Reaction.OPERATOR
            self.why = f"{type(error).__name__}: {error}"

    def end(self) -> None:
        """Ends all waits."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def wait_until_open(self) -> bool:
        """Waits until the engine is away. Returns False once this side has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or self.is_open)
            return not self._has_ended

    def rest(self, seconds: float) -> bool:
        """Waits so long. Returns False once this side has ended."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._has_ended, seconds)
