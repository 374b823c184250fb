"""Who is connected: so many at most, and who only waits makes room for who comes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Thread

# Seconds for a connection that made room to be gone.
ROOM_PATIENCE = 1.0


class Connections:
    """Open connections with their threads, the oldest first. Thread-safe.

    One whose answer is being made is left alone. All others wait for a client: to ask, to
    take its answer, or to go. Whoever holds all there are open keeps nobody out by that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()
        self._open: dict[socket.socket, Thread] = {}
        self._answered: set[socket.socket] = set()

    def take(self, connection: socket.socket, thread: Thread) -> bool:
        """Keeps a connection; returns False where there is no room, and none is made."""
        with self._changed:
            if len(self._open) >= self._most:
                self._end_oldest()
            room = len(self._open) < self._most
            if room:
                self._open[connection] = thread
            return room

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Leaves a connection alone while the block makes its answer."""
        with self._changed:
            self._answered.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._answered.discard(connection)

    def forget(self, connection: socket.socket) -> None:
        """Closes a connection, and keep it no longer."""
        with self._changed:
            self._open.pop(connection, None)
            connection.close()
            self._changed.notify_all()

    def end_all(self) -> list[Thread]:
        """Ends all connections, and returns their threads, which are about to go."""
        with self._changed:
            for each in self._open:
                _end(each)
            return list(self._open.values())

    def _end_oldest(self) -> None:
        """Ends the oldest that waits for its client, and waits for it to be gone."""
        waiting = (each for each in self._open if each not in self._answered)
        oldest = next(waiting, None)
        if oldest is not None:
            _end(oldest)
            self._changed.wait_for(lambda: len(self._open) < self._most, ROOM_PATIENCE)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
