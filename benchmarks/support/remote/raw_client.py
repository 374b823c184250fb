"""The ceiling: a client of Valkey that does nothing but move bytes.

It waits without a deadline, checks no length, and knows one kind of answer.
"""

import socket
from collections.abc import Sequence
from typing import Final

# More requests ahead were slower where they were measured.
AHEAD: Final = 2
LINE_BYTES: Final = 1 << 12


class RawConnection:
    """One connection, for one thread."""

    def __init__(self, place: tuple[str, int] | str) -> None:
        """Connects to a host and port, or to a unix socket."""
        family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.connect(place)
        if family == socket.AF_INET:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def put(self, names: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Writes pages from their own memory."""
        ahead = min(AHEAD, len(names))
        for name, page in zip(names[:ahead], pages, strict=False):
            self._set(name, page)
        for number in range(len(names)):
            self._expect(b"+OK\r\n")
            if number + ahead < len(names):
                self._set(names[number + ahead], pages[number + ahead])

    def get(self, names: Sequence[bytes], pages: Sequence[memoryview]) -> None:
        """Reads pages into their own memory."""
        ahead = min(AHEAD, len(names))
        for name in names[:ahead]:
            self._get(name)
        for number, page in enumerate(pages):
            self._expect(b"$%d\r\n" % page.nbytes, page)
            if number + ahead < len(names):
                self._get(names[number + ahead])

    def count(self, names: Sequence[bytes]) -> int:
        """Returns how many of the names exist, by one command."""
        parts = b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in names)
        self._socket.sendall(b"*%d\r\n$6\r\nEXISTS\r\n" % (1 + len(names)) + parts)
        return int(self._line()[1:])

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _set(self, name: bytes, page: memoryview) -> None:
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, page.nbytes)
        views = [memoryview(each) for each in (head, page, b"\r\n")]
        while views:
            sent = self._socket.sendmsg(views)
            while views and sent >= views[0].nbytes:
                sent -= views.pop(0).nbytes
            if sent:
                views[0] = views[0][sent:]

    def _get(self, name: bytes) -> None:
        self._socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name))

    def _expect(self, head: bytes, page: memoryview | None = None) -> None:
        """Receives an answer whose length is known, with a page in it or without."""
        found, end = memoryview(bytearray(len(head))), memoryview(bytearray(2))
        views = [found] if page is None else [found, page, end]
        while views:
            count = self._socket.recvmsg_into(views)[0]
            assert count, "the server ended the connection"
            while views and count >= views[0].nbytes:
                count -= views.pop(0).nbytes
            if count:
                views[0] = views[0][count:]
        assert found == head, bytes(found)

    def _line(self) -> bytes:
        """Receives an answer of one line, behind which nothing is due."""
        found = b""
        while not found.endswith(b"\r\n"):
            found += self._socket.recv(LINE_BYTES)
        return found[:-2]
