"""Threads that call the store, and a queue that returns their answers to one thread."""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Protocol, TypeVar

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Answers(Protocol):
    """Work that runs elsewhere, and whose results are delivered on request."""

    def ask(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Starts ``work``. :meth:`deliver` later calls ``done`` once, on its caller's thread.

        ``done`` gets the result of ``work``, or None if it raised.
        """

    def deliver(self) -> None:
        """Delivers the available answers. Does not wait."""

    @property
    def under_way(self) -> int:
        """The number of answers that were requested and not delivered yet."""

    def wait(self, timeout: float) -> None:
        """Waits until an answer is available, for ``timeout`` seconds at most."""

    def deliver_until(self, met: Callable[[], bool], timeout: float) -> None:
        """Delivers answers as they arrive, until ``met()``, for ``timeout`` seconds at most."""

    def close(self) -> None:
        """Waits for the work under way, delivers its answers, and takes no more work."""


class ThreadedAnswers:
    """Answers of a few threads. One thread requests the answers and delivers them."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kvstore-vllm")
        self._done: deque[Callable[[], None]] = deque()
        self._news = Condition()
        self._under_way = 0
        self._closed = False

    @property
    def under_way(self) -> int:
        """The number of answers that were requested and not delivered yet."""
        return self._under_way

    def ask(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Starts ``work`` on one of the threads. After :meth:`close` its answer is None."""
        self._under_way += 1
        if self._closed:
            self._done.append(lambda: self._hand_over(done, None))
            return
        self._pool.submit(self._run, work, done)

    def deliver(self) -> None:
        """Calls the callback of each available answer."""
        while self._done:
            self._done.popleft()()

    def wait(self, timeout: float) -> None:
        """Waits until an answer is available. Does not wait if none is under way."""
        with self._news:
            self._news.wait_for(lambda: self._done or not self._under_way, timeout)

    def deliver_until(self, met: Callable[[], bool], timeout: float) -> None:
        """Delivers answers as they arrive, until ``met()``, for ``timeout`` seconds at most."""
        until = time.monotonic() + timeout
        self.deliver()
        while self._under_way and not met() and (left := until - time.monotonic()) > 0:
            self.wait(left)
            self.deliver()

    def close(self) -> None:
        """Waits for the work under way, whose calls have deadlines, and delivers its answers."""
        self._closed = True
        self._pool.shutdown(wait=True)
        self.deliver()

    def _run(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        result: T | None = None
        try:
            result = work()
        except Exception:  # every error is a miss: none may reach the engine
            _logger.exception("store_work_failed")
        with self._news:
            self._done.append(lambda: self._hand_over(done, result))
            self._news.notify_all()

    def _hand_over(self, done: Callable[[T | None], None], result: T | None) -> None:
        self._under_way -= 1
        done(result)
