"""The thread that lets time pass: leases and named pins expire, arenas grow."""

from collections.abc import Callable
from threading import Event, Thread

import structlog

from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reaper:
    """Ticks every ``interval`` seconds, and at once when an arena runs low.

    It outlives every exception: one is logged and counted, and the next tick
    comes. ``failure_count`` and ``last_tick`` may be read from any thread.
    """

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        self.failure_count = 0
        self.last_tick = clock()
        self._store = store
        self._clock = clock
        self._interval = interval
        self._closing = Event()
        self._thread = Thread(target=self._run, name="kvstore-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread and wait for its end; an allocation under way is finished first."""
        self._closing.set()
        self._store.growth.due.set()
        self._thread.join()

    def tick(self) -> None:
        """Expire what is due and let one arena grow; raises nothing."""
        self._attempt(self._store.expire)
        self._attempt(self._store.named_pins.expire)
        self._attempt(self._store.growth.step)
        self.last_tick = self._clock()

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self.failure_count += 1
            log.exception("reaper_failed", failure_count=self.failure_count)

    def _run(self) -> None:
        due = self._store.growth.due
        while not self._closing.is_set():
            due.wait(self._interval)
            due.clear()
            self.tick()
