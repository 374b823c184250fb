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
    finds one. A thread that put work in line, or ended some, MUST ask for more until
    there is none for it.
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
        """Return the first work of the lane that waits longest and may have a thread, if any.

        The caller's thread is taken by it until :meth:`end`.
        """
        with self._mutex:
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

    def end(self, lane: Hashable) -> None:
        """Note that work of a lane is done."""
        with self._mutex:
            self._idle += 1
            self._running[lane] -= 1
            if not self._running[lane]:
                del self._running[lane]
