"""The open connections, bounded in number: an idle one makes room for a new one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Thread

# Seconds to wait until an ended connection is closed.
ROOM_PATIENCE = 1.0


class Connections:
    """Open connections with their threads, the oldest first. Thread-safe.

    A connection whose response is being made is left alone. All others wait for their clients, to
    send or to receive. So a client that holds all connections cannot keep others out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = Condition()
        self._open: dict[socket.socket, Thread] = {}
        self._answered: set[socket.socket] = set()

    def take(self, connection: socket.socket, thread: Thread) -> bool:
        """Adds a connection. Returns False if there is no room and no connection can be ended."""
        with self._changed:
            if len(self._open) >= self._most:
                self._end_oldest()
            room = len(self._open) < self._most
            if room:
                self._open[connection] = thread
            return room

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Protects a connection while the block makes its response."""
        with self._changed:
            self._answered.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._answered.discard(connection)

    def forget(self, connection: socket.socket) -> None:
        """Closes a connection and removes it."""
        with self._changed:
            self._open.pop(connection, None)
            connection.close()
            self._changed.notify_all()

    def end_all(self) -> list[Thread]:
        """Ends all connections. Returns their threads, which are about to end."""
        with self._changed:
            for each in self._open:
                _end(each)
            return list(self._open.values())

    def _end_oldest(self) -> None:
        """Ends the oldest connection that waits for its client, and waits until it is closed."""
        waiting = (each for each in self._open if each not in self._answered)
        oldest = next(waiting, None)
        if oldest is not None:
            _end(oldest)
            self._changed.wait_for(lambda: len(self._open) < self._most, ROOM_PATIENCE)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
