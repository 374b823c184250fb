"""What shows that calls get through: the owner's mutex can be had, a thread takes a call."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from kvstore.service.clock import Clock
from kvstore.service.timing import Durations


class Ticking(Protocol):
    """Something that shows that it gets round: ``last_tick`` is by the store's clock."""

    @property
    def last_tick(self) -> float:
        """When it last got round, in seconds."""
        ...

    def is_alive(self) -> bool:
        """Returns whether it can get round at all."""
        ...


class OwnerProbe:
    """Ticks whenever it had the mutex that every verb of the store takes.

    ``responds`` takes and gives back that mutex within a time in seconds, and
    returns whether it could. One thread uses the probe. ``waits`` are how long it took: what
    a call that comes at any moment waits for, since looks come at moments of their own.
    """

    def __init__(self, responds: Callable[[float], bool], clock: Clock, patience: float) -> None:
        """``patience`` is how long one look waits for the mutex, in seconds."""
        self.last_tick = clock()
        self.waits = Durations()
        self._responds = responds
        self._clock = clock
        self._patience = patience

    def is_alive(self) -> bool:
        """Returns True: a mutex has no end."""
        return True

    def look(self) -> None:
        """Tries to have the mutex; waits for ``patience`` at most."""
        began = self._clock()
        if self._responds(self._patience):
            self.last_tick = self._clock()
        self.waits.note(self._clock() - began)


class PoolProbe:
    """Ticks whenever a thread of ``pool`` took up what it was given at the last look.

    One errand at a time is under way, behind the calls that wait for a thread:
    with all threads busy its tick is as late as those calls are.
    """

    def __init__(self, pool: ThreadPoolExecutor, clock: Clock) -> None:
        self.last_tick = clock()
        self._pool = pool
        self._clock = clock
        self._errand: Future[None] | None = None

    def is_alive(self) -> bool:
        """Returns True: a pool that was shut down is that of a server that stops."""
        return True

    def look(self) -> None:
        """Sends an errand, unless one is under way. Does not wait."""
        if self._errand is None or self._errand.done():
            with suppress(RuntimeError):  # shut down: the server stops
                self._errand = self._pool.submit(self._tick)

    def _tick(self) -> None:
        self.last_tick = self._clock()
