"""A thread that does its work again and again, and shows that it gets round."""

from collections.abc import Callable, Sequence
from threading import Event, Thread

import structlog

from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Ticker:
    """Ticks every ``interval`` seconds, and at once when ``due`` is set.

    A tick calls each of ``works``. It outlives every exception: one is logged and
    counted, and the next tick comes. ``failure_count`` and ``last_tick`` may be read
    from any thread.
    """

    def __init__(
        self,
        name: str,
        works: Sequence[Callable[[], None]],
        *,
        clock: Clock,
        interval: float,
        due: Event | None = None,
        excused: Callable[[], bool] = lambda: False,
    ) -> None:
        """``excused`` tells, on any thread, whether the work under way may take its time."""
        self.failure_count = 0
        self._failed = f"{name}_failed"
        self._works = works
        self._ticked_at = clock()
        self._clock = clock
        self._interval = interval
        self._due = due or Event()
        self._excused = excused
        self._closing = Event()
        self._thread = Thread(target=self._run, name=f"kvstore-{name}", daemon=True)

    @property
    def last_tick(self) -> float:
        """When it last got round, by the clock; now, while its work is excused."""
        return self._clock() if self._excused() else self._ticked_at

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def pace(self, interval: float) -> None:
        """Tick every ``interval`` seconds from now on; the next tick comes at once."""
        self._interval = interval
        self._due.set()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread and wait for its end; work under way is finished first."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def tick(self) -> None:
        """Do all the work once; raises nothing."""
        for work in self._works:
            try:
                work()
            except Exception:
                self.failure_count += 1
                log.exception(self._failed, failure_count=self.failure_count)
        self._ticked_at = self._clock()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._due.wait(self._interval)
            self._due.clear()
            self.tick()
