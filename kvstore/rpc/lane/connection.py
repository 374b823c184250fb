"""One lane: a connection of an attached process that carries calls, one at a time."""

# A request that ends with its sequence's tokens, taken apart without a copy of them. Clients
# write ``sequence.tokens`` of a match or an acquire last (sequence { tokens }), and protobuf
# joins it with what the request says of its sequence before. A body like that needs not be
# parsed, which copies a long prompt's tokens twice: what is before them is.

import select
import socket
import struct
from typing import NamedTuple, NoReturn

from kvstore.core import Identity
from kvstore.errors import LimitExceeded
from kvstore.v1 import prefix_cache_pb2 as pb

# Wire types.
VARINT, FIXED64, LENGTH_DELIMITED = 0, 1, 2
# The field of every request that has a sequence.
SEQUENCE_KEY = pb.AcquirePrefixRequest.SEQUENCE_FIELD_NUMBER << 3 | LENGTH_DELIMITED
TOKENS_KEY = pb.Sequence.TOKENS_FIELD_NUMBER << 3 | LENGTH_DELIMITED
# Bytes of a body that are looked at: what is before the tokens is shorter.
FRONT_BYTES = 256


class Tail(NamedTuple):
    """Where the field with the tokens begins in a body, and where they do, which end it."""

    field: int
    tokens: int


def tail_of(front: bytes, length: int) -> Tail | None:
    """Returns where the tokens are that end a body, or None where none end it so.

    ``front`` is its beginning, of ``length`` bytes in all. Whatever comes, nothing is
    raised. That the body is of a request with a sequence is the caller's to check.
    """
    place = 0
    try:
        while place < length:
            field = place
            key, place = _varint(front, place)
            if key & 7 == LENGTH_DELIMITED:
                size, place = _varint(front, place)
                if place + size == length and key == SEQUENCE_KEY:
                    inner, place = _varint(front, place)
                    size, place = _varint(front, place)
                    ends = inner == TOKENS_KEY and place + size == length
                    # Numbers of more bytes than they need are protobuf's to read, or to refuse.
                    shortest = place - field == _keys_bytes(size)
                    return Tail(field, place) if ends and shortest else None
                place += size
            elif key & 7 == VARINT:
                _, place = _varint(front, place)
            elif key & 7 == FIXED64:
                place += 8
            else:
                return None
    except IndexError:
        # It goes on beyond what is looked at.
        return None
    return None


def _keys_bytes(size: int) -> int:
    """Returns the length of what clients write before so many bytes of tokens."""
    inner = 1 + _varint_bytes(size)
    return 1 + _varint_bytes(inner + size) + inner


def _varint_bytes(value: int) -> int:
    """Returns the length of a number as protobuf writes it: seven bits a byte."""
    return max(1, -(-value.bit_length() // 7))


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the bit that says that more follow
            return value, place
        shift += 7


# Bytes of a call's head: three small fields.
MAX_HEAD_BYTES = 1 << 10
# Two lengths: of the head and of the body.
LENGTHS = struct.Struct("<II")
# Up to this many bytes head and body are received together, and then parted: it is cheaper to
# copy them than to ask the kernel twice.
SMALL_BYTES = 1 << 14
# Seconds for the rest of what began to come, and for an answer to be taken: whoever is slower
# than that over a unix socket is stopped, and would keep a thread.
PATIENCE = 1.0
# struct timeval, as SO_RCVTIMEO and SO_SNDTIMEO want it.
TIMEVAL = struct.Struct("@ll")
# So that the answer to a long prompt does not wait for its reader; the kernel bounds it.
BUFFER_BYTES = 1 << 20
_new_tuple = tuple.__new__


class Party(NamedTuple):
    """Whose lane it is: the peer's uid, and the lease and process for which it was opened."""

    uid: int
    lease_id: bytes
    lease_secret: bytes
    process_id: int


class Frame(NamedTuple):
    """A call as it came. Its body is ``body``, ``key`` and ``tokens``, one after the other.

    ``tokens`` are those of its sequence, where it ends with them and they are many, and
    ``key`` are the keys and lengths that say so; else both are empty.
    """

    head: bytes
    body: bytes
    key: bytes = b""
    tokens: bytes = b""

    @property
    def whole_body(self) -> bytes:
        """All of the body, a copy of it where it is in parts."""
        return b"".join((self.body, self.key, self.tokens)) if self.tokens else self.body

    @property
    def body_bytes(self) -> int:
        """Length of all of the body."""
        return len(self.body) + len(self.key) + len(self.tokens)


class HotLane:
    """A lane's socket, which is its own. One thread at a time uses it.

    ``came_at`` is when the call came that is read next, by the store's clock, and
    ``identity`` whose it is; both are the server's to set. ``descriptor`` is the socket's.
    """

    __slots__ = (
        *("_held", "_max_body_bytes", "_poll", "_socket", "came_at", "descriptor", "identity"),
        "party",
    )

    def __init__(self, connection: socket.socket, party: Party, *, max_body_bytes: int) -> None:
        self.party = party
        self.came_at = 0.0
        self.identity = Identity("")
        self.descriptor = connection.fileno()
        self._socket = connection
        self._held = b""
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLRDHUP)
        self._max_body_bytes = max_body_bytes
        connection.settimeout(None)
        patience = TIMEVAL.pack(int(PATIENCE), round(PATIENCE % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def read(self) -> Frame:
        """Returns the call that began to come.

        Raises :class:`LimitExceeded` for lengths over the bounds, before anything is
        made of them, and EOFError or OSError where the rest does not come in time; the
        lane is of no use then.
        """
        lengths = self._socket.recv(LENGTHS.size, socket.MSG_WAITALL)
        if len(lengths) < LENGTHS.size:
            raise EOFError
        head_bytes, body_bytes = LENGTHS.unpack(lengths)
        if head_bytes > MAX_HEAD_BYTES or body_bytes > self._max_body_bytes:
            self._refuse(head_bytes, body_bytes)
        if body_bytes > SMALL_BYTES:
            return self._large(self._receive(head_bytes), body_bytes)
        both = self._socket.recv(head_bytes + body_bytes, socket.MSG_WAITALL)
        if len(both) < head_bytes + body_bytes:
            raise EOFError
        return _new_tuple(Frame, (both[:head_bytes], both[head_bytes:], b"", b""))

    def has_next(self) -> bool:
        """Returns whether another call began to come, and its client is there."""
        events = self._poll.poll(0)
        return bool(events) and events[0][1] == select.POLLIN

    def hold(self, head: bytes, body: bytes) -> None:
        """Keeps an answer, to be sent with the next one."""
        self._held += LENGTHS.pack(len(head), len(body)) + head + body

    def write(self, head: bytes, body: bytes) -> None:
        """Sends an answer; raises OSError where the peer is gone or does not take it in time."""
        held, self._held = self._held, b""
        self._socket.sendall(held + LENGTHS.pack(len(head), len(body)) + head + body)

    def shut(self) -> None:
        """Have whoever reads or waits find the end of it. Any thread, before ``close``."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket; once."""
        self._socket.close()

    def _refuse(self, head_bytes: int, body_bytes: int) -> NoReturn:
        limit, maximum, value = "frame_bytes", self._max_body_bytes, body_bytes
        if head_bytes > MAX_HEAD_BYTES:
            limit, maximum, value = "frame_head_bytes", MAX_HEAD_BYTES, head_bytes
        raise LimitExceeded(limit=limit, maximum=maximum, value=value)

    def _large(self, head: bytes, body_bytes: int) -> Frame:
        """Receives a long body, so that its tokens are in bytes of their own at once."""
        tail = tail_of(self._socket.recv(FRONT_BYTES, socket.MSG_PEEK), body_bytes)
        if tail is None:
            return Frame(head, self._receive(body_bytes))
        front = self._receive(tail.tokens)
        tokens = self._receive(body_bytes - tail.tokens)
        return Frame(head, front[: tail.field], front[tail.field :], tokens)

    def _receive(self, count: int) -> bytes:
        """Returns so many bytes. Memory is touched as they come, whatever was announced."""
        data = self._socket.recv(count, socket.MSG_WAITALL) if count else b""
        if len(data) < count:
            raise EOFError
        return data
