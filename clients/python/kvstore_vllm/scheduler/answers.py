"""Threads that ask the store, and a queue by which their answers come back to one thread."""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Protocol, TypeVar

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Answers(Protocol):
    """Has work done elsewhere, and hands over what came of it, when asked."""

    def ask(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Have ``work`` done; ``done`` is called with what it returned, None if it raised.

        By :meth:`deliver`, on its caller's thread, once.
        """

    def deliver(self) -> None:
        """Hands over what is there. Does not wait."""

    @property
    def under_way(self) -> int:
        """How many were asked for and not handed over yet."""

    def wait(self, timeout: float) -> None:
        """Waits until something is there, for ``timeout`` seconds at most."""

    def close(self) -> None:
        """Waits for what is under way, hand it over, and take nothing more."""


class ThreadedAnswers:
    """Answers of a few threads. One thread asks and takes the answers."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kvstore-vllm")
        self._done: deque[Callable[[], None]] = deque()
        self._news = Condition()
        self._under_way = 0
        self._closed = False

    @property
    def under_way(self) -> int:
        """How many were asked for and not handed over yet."""
        return self._under_way

    def ask(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        """Have ``work`` done on one of the threads; once closed, have it come to nothing."""
        self._under_way += 1
        if self._closed:
            self._done.append(lambda: self._hand_over(done, None))
            return
        self._pool.submit(self._run, work, done)

    def deliver(self) -> None:
        """Calls what was to be done with each answer that is there."""
        while self._done:
            self._done.popleft()()

    def wait(self, timeout: float) -> None:
        """Waits until an answer is there; not at all where none is under way."""
        with self._news:
            self._news.wait_for(lambda: self._done or not self._under_way, timeout)

    def close(self) -> None:
        """Waits for what is under way; each call has a deadline of its own."""
        self._closed = True
        self._pool.shutdown(wait=True)
        self.deliver()

    def _run(self, work: Callable[[], T], done: Callable[[T | None], None]) -> None:
        result: T | None = None
        try:
            result = work()
        except Exception:  # whatever it is, it must not reach the engine: it is a miss
            _logger.exception("store_work_failed")
        with self._news:
            self._done.append(lambda: self._hand_over(done, result))
            self._news.notify_all()

    def _hand_over(self, done: Callable[[T | None], None], result: T | None) -> None:
        self._under_way -= 1
        done(result)
