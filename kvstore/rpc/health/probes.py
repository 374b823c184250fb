"""Probes for the two things each call needs: the store's lock and a free thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from kvstore.service.call_durations import Durations
from kvstore.service.clock import Clock


class Ticking(Protocol):
    """A thread, or another part, that shows regular progress."""

    @property
    def last_tick(self) -> float:
        """The time of the last progress, in seconds of the store's clock."""
        ...

    def is_alive(self) -> bool:
        """Returns False if it has ended."""
        ...


class OwnerProbe:
    """Ticks whenever it gets the lock of the store, which every call takes. For one thread.

    ``responds`` takes and releases the lock, or returns False after a timeout in seconds.
    ``waits`` has the time of each attempt. It is a sample of what calls wait for the lock.
    """

    def __init__(self, responds: Callable[[float], bool], clock: Clock, patience: float) -> None:
        """``patience`` is the timeout of one attempt, in seconds."""
        self.last_tick = clock()
        self.waits = Durations()
        self._responds = responds
        self._clock = clock
        self._patience = patience

    def is_alive(self) -> bool:
        """Returns True: a lock does not end."""
        return True

    def look(self) -> None:
        """Tries to take the lock. Waits at most ``patience`` seconds."""
        began = self._clock()
        if self._responds(self._patience):
            self.last_tick = self._clock()
        self.waits.note(self._clock() - began)


class PoolProbe:
    """Ticks whenever a thread of ``pool`` runs the task that the probe submitted.

    At most one task is submitted at a time, and it queues behind the waiting calls. With all
    threads busy the tick is as late as those calls.
    """

    def __init__(self, pool: ThreadPoolExecutor, clock: Clock) -> None:
        self.last_tick = clock()
        self._pool = pool
        self._clock = clock
        self._task: Future[None] | None = None

    def is_alive(self) -> bool:
        """Returns True: a pool only shuts down when its server stops."""
        return True

    def look(self) -> None:
        """Submits a task, unless one is still queued. Does not wait."""
        if self._task is None or self._task.done():
            with suppress(RuntimeError):  # the pool is shut down: the server stops
                self._task = self._pool.submit(self._tick)

    def _tick(self) -> None:
        self.last_tick = self._clock()
