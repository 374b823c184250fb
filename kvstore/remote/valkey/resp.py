"""A connection that speaks RESP2, the protocol of Valkey and Redis, for large values.

A general client copies each value and believes the length that the server states. This one sends
from the caller's memory, receives into it, and compares the length before a byte of the body.
Every wait ends at the connection's deadline, however slowly bytes drip.

Reference: https://valkey.io/topics/protocol/.
"""

import re
import ssl
from select import POLLIN, poll
from socket import SHUT_RDWR, socket
from time import monotonic
from typing import Final

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineCut,
    EngineReadOnly,
    Reaction,
    RemoteError,
    ReplyMalformed,
)
from kvstore.remote.valkey.error_words import error_of

SCRATCH_BYTES: Final = 1 << 14
MOST_LINE_BYTES: Final = 512
# CLUSTER SLOTS has the deepest reply: a list of slots, of nodes, and of what else a node says.
MOST_DEPTH: Final = 4
_NUMBER: Final = re.compile(rb"-?[0-9]{1,18}")
_END: Final = b"\r\n"
Reply = bytes | int | None | list["Reply"]


def encoded(*arguments: bytes) -> bytes:
    """Returns a command as the protocol has it."""
    return b"*%d\r\n" % len(arguments) + b"".join(
        b"$%d\r\n%b\r\n" % (len(each), each) for each in arguments
    )


class RespConnection:
    """A connection, for one thread at a time. Each method raises a ``RemoteError``.

    ``deadline``, in seconds of ``time.monotonic``, ends every wait. ``due`` counts the replies
    that have not come yet. A connection is reusable if that is 0, no reply was malformed, and the
    server is no replica by now, which ``is_stale`` says.
    """

    def __init__(self, connected: socket) -> None:
        self.deadline = 0.0
        self.due = 0
        self.is_broken = False
        self.is_stale = False
        # The server's clock minus this host's monotonic one, in ms, and when it was asked for.
        self.clock_offset_ms = 0
        self.clock_read = 0.0
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._start = self._end = 0

    @property
    def is_reusable(self) -> bool:
        """Another call can use the connection."""
        return not (self.due or self.is_broken or self.is_stale)

    def fileno(self) -> int:
        """Returns the descriptor, for ``poll``."""
        return self._socket.fileno()

    def has_ready(self) -> bool:
        """Returns whether bytes of a reply are here already, which ``poll`` does not see."""
        return self._start < self._end or (
            isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        )

    def is_quiet(self) -> bool:
        """Returns whether an idle connection is open, and silent as it should be."""
        polled = poll()
        polled.register(self._socket, POLLIN)
        return self._start == self._end and not polled.poll(0)

    def interrupt(self) -> None:
        """Ends the waits of the thread that uses the connection. Any thread may call this."""
        try:
            # The one of ssl would first turn the connection into one without TLS.
            socket.shutdown(self._socket, SHUT_RDWR)
        except OSError:
            return  # it ended already

    def close(self) -> None:
        """Closes the connection. Only the thread that uses it may do so."""
        self._socket.close()

    def send(self, *parts: bytes | memoryview, replies: int = 1) -> None:
        """Sends commands that get so many replies."""
        self.due += replies
        views = [memoryview(part).cast("B") for part in parts]
        try:
            while views:
                self._limit_wait()
                sent = self._socket.send(views[0]) if self._is_tls else self._socket.sendmsg(views)
                while views and sent >= views[0].nbytes:
                    sent -= views.pop(0).nbytes
                if sent:
                    views[0] = views[0][sent:]
        except OSError as error:
            raise self._ended(error) from error

    def value(self, into: memoryview) -> ReadResult:
        """Receives a value of exactly the buffer's length, or learns that there is none."""
        size = self._number(self._head(), b"$")
        if size == -1:
            self.due -= 1
            return ReadResult.MISSING
        if not 0 <= size <= into.nbytes:
            raise self.malformed(f"a value of {size} bytes instead of {into.nbytes}")
        # A shorter value costs no more than the whole one would, and leaves the connection usable.
        self._receive(into[:size])
        self._expect_end()
        self.due -= 1
        return ReadResult.READ if size == into.nbytes else ReadResult.WRONG_SIZE

    def integer(self) -> int:
        """Receives an integer."""
        found = self._number(self._head(), b":")
        self.due -= 1
        return found

    def simple(self) -> bytes:
        """Receives a status, such as OK."""
        line = self._head()
        if line[:1] != b"+":
            raise self.malformed(f"{line[:40]!r} instead of a status")
        self.due -= 1
        return line[1:]

    def short_value(self, most_bytes: int) -> bytes | None:
        """Receives a value of at most so many bytes, or None if there is none."""
        size = self._number(self._head(), b"$")
        found = None
        if size != -1:
            if not 0 <= size <= most_bytes:
                raise self.malformed(f"a value of {size} bytes instead of {most_bytes} at most")
            found = self._body(size)
        self.due -= 1
        return found

    def stored(self) -> bool:
        """Receives the status of a write with a condition; returns whether it held."""
        head = self._head()
        if head not in (b"+OK", b"$-1"):
            raise self.malformed(f"{head[:40]!r} instead of OK or nothing")
        self.due -= 1
        return head == b"+OK"

    def outcome(self) -> RemoteError | None:
        """Receives the status of a write; returns the error that concerns this value alone."""
        try:
            status = self.simple()
        except RemoteError as error:
            if self.is_broken or error.reaction is not Reaction.VALUE:
                raise
            return error
        if status != b"OK":
            raise self.malformed(f"{status[:40]!r} instead of OK")
        return None

    def pair(self, most_bytes: int = 20) -> tuple[int, int]:
        """Receives an array of two short numbers, as TIME answers."""
        if self._head() != b"*2":
            raise self.malformed("no array of two")
        found = []
        for _ in range(2):
            size = self._number(self._line(), b"$")
            if not 0 < size <= most_bytes:
                raise self.malformed(f"a number of {size} bytes")
            found.append(self._number(self._body(size), b""))
        self.due -= 1
        return found[0], found[1]

    def reply(self, most_parts: int, most_bytes: int = MOST_LINE_BYTES) -> Reply:
        """Receives a reply of any form, of at most so many parts of at most so many bytes each."""
        found, _ = self._parts(self._head(), most_parts, most_bytes, MOST_DEPTH)
        self.due -= 1
        return found

    def malformed(self, found: str) -> ReplyMalformed:
        """Returns the error of a reply that is not what was asked for. It ends the connection."""
        self.is_broken = True
        return ReplyMalformed(f"the engine answered {found}")

    def _head(self) -> bytes:
        """Receives the first line of a reply. Raises the error that it names."""
        line = self._line()
        if line[:1] == b"-":
            self.due -= 1
            error = error_of(line[1:])
            self.is_stale |= isinstance(error, EngineReadOnly)
            raise error
        return line

    def _parts(self, line: bytes, left: int, most_bytes: int, depth: int) -> tuple[Reply, int]:
        """Returns a part, and how many more may follow."""
        if left <= 0:
            raise self.malformed("more parts than expected")
        match line[:1]:
            case b"+":
                return line[1:], left - 1
            case b":":
                return self._number(line, b":"), left - 1
            case b"$":
                size = self._number(line, b"$")
                if not -1 <= size <= most_bytes:
                    raise self.malformed(f"a part of {size} bytes instead of {most_bytes} at most")
                return (None if size == -1 else self._body(size)), left - 1
            case b"*" if depth > 0:
                count = self._number(line, b"*")
                if count == -1:
                    return None, left - 1
                found: list[Reply] = []
                left -= 1
                for _ in range(count):
                    part, left = self._parts(self._line(), left, most_bytes, depth - 1)
                    found.append(part)
                return found, left
        raise self.malformed(f"{line[:40]!r} in a reply")

    def _line(self) -> bytes:
        """Receives a line without its end."""
        line = bytearray()
        while not line.endswith(_END):
            if self._start == self._end:
                self._fill()
            ready = bytes(self._scratch[self._start : self._end])
            cut = ready.find(b"\n") + 1 or len(ready)
            self._start += cut
            line += ready[:cut]
            if len(line) > MOST_LINE_BYTES:
                raise self.malformed("an endless line")
        return bytes(line[:-2])

    def _number(self, line: bytes, kind: bytes) -> int:
        if line[: len(kind)] != kind or not _NUMBER.fullmatch(line[len(kind) :]):
            raise self.malformed(f"{line[:40]!r} instead of a number")
        return int(line[len(kind) :])

    def _body(self, size: int) -> bytes:
        body = memoryview(bytearray(size))
        self._receive(body)
        self._expect_end()
        return bytes(body)

    def _expect_end(self) -> None:
        end = memoryview(bytearray(len(_END)))
        self._receive(end)
        if bytes(end) != _END:
            raise self.malformed(f"{bytes(end)!r} after a value")

    def _receive(self, into: memoryview) -> None:
        """Fills a buffer. Bytes that come behind it stay in the scratch memory."""
        ready = min(into.nbytes, self._end - self._start)
        into[:ready] = self._scratch[self._start : self._start + ready]
        self._start += ready
        rest = into[ready:]
        while rest.nbytes:
            count = self._read(rest)
            if count > rest.nbytes:
                self._start, self._end = 0, count - rest.nbytes
            rest = rest[min(count, rest.nbytes) :]

    def _fill(self) -> None:
        self._start, self._end = 0, self._read(self._scratch[:0])

    def _read(self, first: memoryview) -> int:
        """Reads into a buffer, and behind it into the scratch memory; returns how many bytes."""
        try:
            self._limit_wait()
            if not self._is_tls:
                count = self._socket.recvmsg_into([first, self._scratch])[0]
            else:
                count = self._socket.recv_into(first if first.nbytes else self._scratch)
        except OSError as error:
            raise self._ended(error) from error
        if count == 0:
            raise EngineCut("the engine ended the connection")
        return count

    def _limit_wait(self) -> None:
        left = self.deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    @staticmethod
    def _ended(error: OSError) -> RemoteError:
        if isinstance(error, TimeoutError):
            return DeadlinePassed("the engine did not answer in time")
        return EngineCut(f"the connection ended: {error}")
