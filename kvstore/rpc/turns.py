"""Whose turn it is: lanes that stand in line for threads, one after another."""

from collections import OrderedDict, deque
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Work of many lanes for ``thread_count`` threads. Thread-safe; nothing here waits.

    A lane has a thread for another piece of work only while it has fewer than are idle:
    alone it has half of them, and however many lanes take what they can, the next one
    finds one. A thread that put work in line, or ended some, is given what it has to do
    next, until there is none for it: what it is given takes it until it says :meth:`end`.
    """

    def __init__(self, thread_count: int) -> None:
        self._mutex = Lock()
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()
        self._running: dict[Hashable, int] = {}
        self._idle = thread_count

    @property
    def has_line(self) -> bool:
        """Whether anybody stands in line, as it was a moment ago."""
        return bool(self._waiting)

    def put(self, lane: Hashable, work: T) -> None:
        """Put work at the end of its lane's line."""
        with self._mutex:
            self._waiting.setdefault(lane, deque()).append(work)

    def begin(self) -> tuple[Hashable, T] | None:
        """Return the first work of the lane that waits longest and may have a thread, if any."""
        with self._mutex:
            return self._next() if self._waiting else None

    def enter(self, lane: Hashable, work: T) -> tuple[Hashable, T] | None:
        """Put work in line, and begin what comes first."""
        with self._mutex:
            running = self._running.get(lane, 0)
            if not self._waiting and running < self._idle:
                # Nobody is before it.
                self._running[lane] = running + 1
                self._idle -= 1
                return lane, work
            self._waiting.setdefault(lane, deque()).append(work)
            return self._next()

    def end(self, lane: Hashable) -> tuple[Hashable, T] | None:
        """Note that work of a lane is done, and begin what comes next."""
        with self._mutex:
            self._idle += 1
            running = self._running[lane] - 1
            if running:
                self._running[lane] = running
            else:
                del self._running[lane]
            return self._next() if self._waiting else None

    def _next(self) -> tuple[Hashable, T] | None:
        may = (each for each in self._waiting if self._running.get(each, 0) < self._idle)
        lane = next(may, None)
        if lane is None:
            return None
        line = self._waiting[lane]
        work = line.popleft()
        if line:
            self._waiting.move_to_end(lane)
        else:
            del self._waiting[lane]
        self._running[lane] = self._running.get(lane, 0) + 1
        self._idle -= 1
        return lane, work
