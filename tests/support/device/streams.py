"""Streams and events of a device that is memory of a process: work is done only at a wait."""

import ctypes
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import RLock


class Streams:
    """Work that was begun on streams, in its order. Thread-safe.

    A wait for the stream, or for a later event of it, does the work, and nothing else does. Code
    that forgets to wait finds the old bytes.
    """

    def __init__(self) -> None:
        self.begun: dict[int, list[Callable[[], object]]] = {}
        self._numbers = count(1)
        self._streams: dict[int, int] = {}
        self._happened: set[int] = set()
        self._mutex = RLock()

    def make_stream(self) -> int:
        """Returns the number of a stream."""
        stream = next(self._numbers)
        self.begun[stream] = []
        return stream

    def begin_copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Begins a copy on a stream."""
        self.begun[stream].append(partial(ctypes.memmove, target, source, size_bytes))

    def begin_fill(self, address: int, value: int, size_bytes: int, stream: int) -> None:
        """Begins to fill memory on a stream."""
        self.begun[stream].append(partial(ctypes.memset, address, value, size_bytes))

    def wait(self, stream: int) -> None:
        """Does the work that was begun on a stream."""
        with self._mutex:
            while self.begun[stream]:
                self.begun[stream].pop(0)()

    def make_event(self) -> int:
        """Returns the number of an event."""
        return next(self._numbers)

    def record(self, event: int, stream: int) -> None:
        """Makes an event happen after what was begun on a stream so far."""
        self._streams[event] = stream
        self.begun[stream].append(partial(self._happened.add, event))

    def wait_for(self, event: int) -> None:
        """Does the work that was begun on an event's stream before it."""
        with self._mutex:
            while event not in self._happened:
                self.begun[self._streams[event]].pop(0)()

    def lose(self, event: int) -> None:
        """Forgets the work that was begun on an event's stream before it, as an error does."""
        stream = self._streams[event]
        with self._mutex:
            while event not in self._happened:
                self._lose_next(stream)

    def lose_all(self, stream: int) -> None:
        """Forgets the work that was begun on a stream; its events happen."""
        with self._mutex:
            while self.begun[stream]:
                self._lose_next(stream)

    def _lose_next(self, stream: int) -> None:
        work = self.begun[stream].pop(0)
        if getattr(work, "func", None) == self._happened.add:
            work()
