"""A server of Valkey's protocol whose line loses large values, and passes all else."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import BinaryIO

from kvstore.remote.valkey.resp import RespConnection


class NarrowServer:
    """Answers PING, TIME, SET and GET on each connection that it makes.

    A SET of more than ``most_bytes`` gets no answer, as behind a network that drops large packets.
    One while ``is_read_only`` is refused.
    """

    def __init__(self) -> None:
        self.most_bytes = 1 << 30
        self.is_read_only = False
        self.commands: list[bytes] = []
        self._values: dict[bytes, bytes] = {}
        self._ends: list[socket.socket] = []
        self._threads: list[Thread] = []

    def connect(self) -> RespConnection:
        """Returns a connection to a thread that serves it."""
        ours, theirs = socket.socketpair()
        self._ends.append(theirs)
        thread = Thread(target=self._serve, args=(theirs,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return RespConnection(ours)

    def close(self) -> None:
        """Ends all connections and threads."""
        for each in self._ends:
            each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._ends:
            each.close()

    def _serve(self, connected: socket.socket) -> None:
        with connected.makefile("rb") as lines:
            while command := _command(lines):
                self.commands.append(command[0])
                try:
                    connected.sendall(self._answer(command))
                except OSError:
                    return  # the other side closed

    def _answer(self, command: list[bytes]) -> bytes:
        match command:
            case [b"PING"]:
                return b"+PONG\r\n"
            case [b"TIME"]:
                return b"*2\r\n$2\r\n99\r\n$1\r\n0\r\n"
            case [b"SET", name, value, *_]:
                if len(value) > self.most_bytes:
                    return b""
                if self.is_read_only:
                    return b"-READONLY You can't write against a read only replica.\r\n"
                self._values[name] = value
                return b"+OK\r\n"
            case [b"GET", name]:
                value = self._values[name]
                return b"$%d\r\n%b\r\n" % (len(value), value)
        raise AssertionError(command)


def _command(lines: BinaryIO) -> list[bytes]:
    """Returns the next command, or nothing at the end."""
    head = lines.readline()
    parts: list[bytes] = []
    for _ in range(int(head[1:]) if head else 0):
        size = int(lines.readline()[1:])
        parts.append(lines.read(size))
        lines.readline()
    return parts


@contextmanager
def narrow_server() -> Iterator[NarrowServer]:
    """Provides a server."""
    made = NarrowServer()
    try:
        yield made
    finally:
        made.close()
