"""A thread's wait for descriptors, moments and a wake-up, each with what to do then."""

import heapq
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Lock

import structlog

from kvstore.service.clock import Clock

# The longest wait, in seconds: ``last_tick`` shows that the thread gets round.
HEARTBEAT = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Of fewer cancelled timers than that no heap is made anew.
SWEEP_FROM = 64


class Timer:
    """An action that comes once, unless it is cancelled before. The loop's thread alone."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action


class EventLoop:
    """Calls actions, one at a time, in the thread that calls ``run``.

    It outlives what an action raises: that is logged and counted in
    ``failure_count``; ``last_tick`` is when it last got round, by the clock. Only
    ``wake`` and ``stop`` may be called from other threads.
    """

    def __init__(self, clock: Clock, woken: Callable[[], None]) -> None:
        """``woken`` is called, once for any number of ``wake``, in the loop's thread."""
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
        """Calls ``action`` whenever ``descriptor`` is ready, or hung up; replaces what was there.

        An action of a descriptor that was forgotten meanwhile may still come, once.
        """
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, action)
        else:
            self._selector.register(descriptor, events, action)

    def forget(self, descriptor: int) -> None:
        """Watches a descriptor no more, if it was; before it is closed."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def at(self, moment: float, action: Callable[[], None]) -> Timer:
        """Calls ``action`` once, when the clock shows ``moment`` or later."""
        timer = Timer(action)
        heapq.heappush(self._timers, (moment, next(self._timer_numbers), timer))
        return timer

    def cancel(self, timer: Timer) -> None:
        """Let a timer's action not come, if it has not yet.

        Those cancelled are never more than those to come, or a few: whoever makes
        timers fast leaves no memory behind.
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
        """Have ``woken`` called soon. Any thread; nothing after ``close``."""
        with self._mutex:
            if self._event is not None:
                os.eventfd_write(self._event, 1)

    def stop(self) -> None:
        """Have ``run`` return. Any thread."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        """Waits and call actions until ``stop``."""
        while not self._stopping:
            self.last_tick = self._clock()
            moment = self._timers[0][0] if self._timers else self.last_tick + HEARTBEAT
            timeout = min(max(moment - self.last_tick, 0), HEARTBEAT)
            for key, _ in self._selector.select(timeout):
                self._attempt(key.data)
            while self._timers and self._timers[0][0] <= self._clock():
                self._ring(heapq.heappop(self._timers)[2])

    def close(self) -> None:
        """Releases what the loop holds, after ``run`` returned; once."""
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
