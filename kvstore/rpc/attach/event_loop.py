"""An event loop: one thread waits for descriptors, timers and wake-ups, and calls actions."""

import heapq
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Lock

import structlog

from kvstore.service.clock import Clock

# The longest wait, in seconds. After each wait ``last_tick`` shows that the thread runs.
HEARTBEAT = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# The heap is made anew only for more cancelled timers than this.
SWEEP_FROM = 64


class Timer:
    """An action that is called once, unless it is cancelled before. For the loop's thread."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action


class EventLoop:
    """Calls actions, one at a time, in the thread that calls ``run``.

    It outlives an exception of an action, which it logs and counts in ``failure_count``.
    ``last_tick`` is the time of the last round, by the clock. Only ``wake`` and ``stop`` may be
    called from other threads.
    """

    def __init__(self, clock: Clock, woken: Callable[[], None]) -> None:
        """Calls ``woken`` in the loop's thread, once for any number of ``wake``."""
        self.failure_count = 0
        self.last_tick = clock()
        self._clock = clock
        self._woken = woken
        self._stopping = False
        self._mutex = Lock()
        self._selector = selectors.DefaultSelector()
        self._event: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._timer_numbers = count()
        self.watch(self._event, self._drain)

    def watch(
        self, descriptor: int, action: Callable[[], None], events: int = selectors.EVENT_READ
    ) -> None:
        """Calls ``action`` whenever ``descriptor`` is ready or hung up; replaces its old action.

        The action of a descriptor that was just forgotten may still be called, once.
        """
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, action)
        else:
            self._selector.register(descriptor, events, action)

    def forget(self, descriptor: int) -> None:
        """Stops to watch a descriptor, if it was watched. Must be called before it is closed."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def at(self, moment: float, action: Callable[[], None]) -> Timer:
        """Calls ``action`` once, when the clock shows ``moment`` or later."""
        timer = Timer(action)
        heapq.heappush(self._timers, (moment, next(self._timer_numbers), timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancels a timer whose action has not been called yet.

        The heap keeps at most as many cancelled timers as active ones, or a few. So a fast
        succession of timers leaves no memory behind.
        """
        if timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > max(len(self._timers) // 2, SWEEP_FROM):
            self._timers = [each for each in self._timers if each[2].action is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def wake(self) -> None:
        """Makes the loop call ``woken`` soon. Any thread; does nothing after ``close``."""
        with self._mutex:
            if self._event is not None:
                os.eventfd_write(self._event, 1)

    def stop(self) -> None:
        """Makes ``run`` return. Any thread."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        """Waits and calls actions until ``stop``."""
        while not self._stopping:
            self.last_tick = self._clock()
            moment = self._timers[0][0] if self._timers else self.last_tick + HEARTBEAT
            timeout = min(max(moment - self.last_tick, 0), HEARTBEAT)
            for key, _ in self._selector.select(timeout):
                self._attempt(key.data)
            while self._timers and self._timers[0][0] <= self._clock():
                self._ring(heapq.heappop(self._timers)[2])

    def close(self) -> None:
        """Closes the loop's descriptors, after ``run`` returned; once."""
        with self._mutex:
            assert self._event is not None  # closed once
            os.close(self._event)
            self._event = None
        self._selector.close()

    def _ring(self, timer: Timer) -> None:
        action, timer.action = timer.action, None
        if action is None:
            self._cancelled -= 1
        else:
            self._attempt(action)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self.failure_count += 1
            log.exception("attach_failed", failure_count=self.failure_count)

    def _drain(self) -> None:
        assert self._event is not None  # the loop runs, so it is not closed
        os.eventfd_read(self._event)
        self._woken()
