"""The share of the processor that work in the background gets while calls come.

One thread of a process runs Python at a time. A call over a lane waits for its turn after each of
its system calls: up to the switch interval, for each thread that works in the background. Several
such threads that never rest leave calls hardly any time.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock, local
from typing import TypeVar

T = TypeVar("T")

# Seconds of processor time after which a thread gives way.
TURN = 0.0005
# Seconds of rest for each second of work, of all threads together.
REST = 2.0
# Seconds after a call in which the next one is expected.
RECENT = 0.01
# The longest rest, in seconds. Work of many threads may take more than the share for it.
LONGEST = 0.02
# Seconds between two parts of long work, during which other calls get the store's mutex.
PAUSE = 0.0005
# Items of a loop between two looks at the time that they took.
LOOK_EVERY = 16


class BackgroundShare:
    """A third of a processor for all threads that work in the background. Thread-safe.

    Calls use :meth:`note_call`, and those threads :meth:`give_way`. Without calls the threads work
    without rests.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``worked`` returns the current thread's processor time, in seconds as of ``clock``."""
        self._clock = clock
        self._worked = worked
        self._sleep = sleep
        self._called_at = -RECENT
        self._thread = local()
        self._mutex = Lock()
        # The time until which the threads rest for the work so far.
        self._rests_until = 0.0

    def note_call(self) -> None:
        """Notes that a call of the request path came."""
        self._called_at = self._clock()

    def give_way(self) -> None:
        """Rests if calls come and this thread worked for a turn.

        The caller MUST NOT hold a lock that a call needs.
        """
        worked_until = self._worked()
        worked = worked_until - getattr(self._thread, "rested_at", worked_until)
        if 0 < worked < TURN:
            return
        self._thread.rested_at = worked_until
        now = self._clock()
        if not worked or now - self._called_at >= RECENT:
            return
        with self._mutex:
            until = min(max(self._rests_until, now) + worked * REST, now + LONGEST)
            self._rests_until = until
        self._sleep(until - now)


_share = BackgroundShare()
note_call, give_way = _share.note_call, _share.give_way


def gently(items: Iterable[T], look_every: int = LOOK_EVERY) -> Iterator[T]:
    """Yields the items, and gives way after some of them, as :func:`give_way` does."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % look_every == 0:
            give_way()
