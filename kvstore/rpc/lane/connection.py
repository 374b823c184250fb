"""A lane: a connection of an attached process that carries calls, one at a time."""

import select
import socket
import struct
from typing import NamedTuple, NoReturn

from kvstore.core import Identity
from kvstore.errors import LimitExceeded
from kvstore.service.tenancy.tenant_lookup import Tenants
from kvstore.v1 import prefix_cache_pb2 as pb

# Wire types.
VARINT, FIXED64, LENGTH_DELIMITED = 0, 1, 2
# The field of every request that has a sequence.
SEQUENCE_KEY = pb.AcquirePrefixRequest.SEQUENCE_FIELD_NUMBER << 3 | LENGTH_DELIMITED
TOKENS_KEY = pb.Sequence.TOKENS_FIELD_NUMBER << 3 | LENGTH_DELIMITED
# Bytes of a body in which the tokens have to begin.
FRONT_BYTES = 256
# Bits of a number in each byte of a varint.
BITS = 7


class Tail(NamedTuple):
    """The places in a body where the field with the tokens begins, and where the tokens do."""

    field: int
    tokens: int


def tail_of(front: bytes, length: int) -> Tail | None:
    """Returns where the tokens are that end a body, or None if none end it.

    Clients write ``sequence.tokens`` of a match or an acquire last, and protobuf joins that field
    with the sequence before it. To parse such a body would copy a long prompt's tokens twice. So
    only the part before the tokens is parsed.

    ``front`` is the beginning of a body of ``length`` bytes. Raises nothing, whatever it is. The
    caller has to know that the body is of a request with a sequence.
    """
    place = 0
    try:
        while place < length:
            field = place
            key, place = _varint(front, place)
            if key & 7 == LENGTH_DELIMITED:
                size, place = _varint(front, place)
                if place + size == length and key == SEQUENCE_KEY:
                    outer = size
                    inner, place = _varint(front, place)
                    size, place = _varint(front, place)
                    ends = inner == TOKENS_KEY and place + size == length
                    # protobuf reads or refuses numbers of more bytes than they need.
                    shortest = place - field == 2 + _varint_bytes(outer) + _varint_bytes(size)
                    return Tail(field, place) if ends and shortest else None
                place += size
            elif key & 7 == VARINT:
                _, place = _varint(front, place)
            elif key & 7 == FIXED64:
                place += 8
            else:
                return None
    except IndexError:
        # The part before the tokens is longer than ``front``.
        return None
    return None


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the bit that says that more follow
            return value, place
        shift += BITS


def _varint_bytes(value: int) -> int:
    """Returns the least number of bytes of a number."""
    return max(-(-value.bit_length() // BITS), 1)


# Bytes of a call's head: three small fields.
MAX_HEAD_BYTES = 1 << 10
# Two lengths: of the head and of the body.
LENGTHS = struct.Struct("<II")
# Up to this many bytes head and body are received together: a copy of them is cheaper than a
# second system call.
SMALL_BYTES = 1 << 14
# Seconds for the rest of a call that has begun, and for an answer to be read. A peer that is
# slower than that over a unix socket is stopped, and would keep a thread.
PATIENCE = 1.0
# struct timeval, for SO_RCVTIMEO and SO_SNDTIMEO.
TIMEVAL = struct.Struct("@ll")
# The answer to a long prompt does not wait for its reader; the kernel bounds this.
BUFFER_BYTES = 1 << 20
# The field of a sequence that is there and empty.
EMPTY_SEQUENCE = bytes((SEQUENCE_KEY, 0))


class Party(NamedTuple):
    """The owner of a lane: the peer's uid, and the lease and process for which it was opened."""

    uid: int
    lease_id: bytes
    lease_secret: bytes
    process_id: int


class Frame(NamedTuple):
    """A call as it was received. Its body is ``body``, ``key`` and ``tokens`` in this order.

    ``tokens`` are those of its sequence if it ends with them and they are many, and ``key`` has the
    keys and lengths before them. Otherwise both are empty.
    """

    head: bytes
    body: bytes
    key: bytes = b""
    tokens: bytes = b""

    @property
    def whole_body(self) -> bytes:
        """All of the body, a copy of it if it is in parts."""
        return b"".join((self.body, self.key, self.tokens)) if self.tokens else self.body


class HotLane:
    """A lane's socket, which it owns. One thread at a time uses it.

    The server sets ``came_at``, the time when the call that is read next arrived, by the store's
    clock, and ``identity``, the caller's. ``known_by`` are the tenants by which it is known.
    ``descriptor`` is the socket's.
    """

    __slots__ = (
        *("_held", "_max_body_bytes", "_poll", "_socket", "came_at", "descriptor", "identity"),
        *("known_by", "party"),
    )

    def __init__(self, connection: socket.socket, party: Party, *, max_body_bytes: int) -> None:
        self.party = party
        self.came_at = 0.0
        self.identity = Identity("")
        self.known_by: Tenants | None = None
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
        """Returns the call that has begun to arrive.

        Raises :class:`LimitExceeded` for lengths over the bounds, before anything is allocated for
        them. Raises EOFError or OSError if the rest does not arrive in time. The lane is useless
        then.
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
        return Frame(both[:head_bytes], both[head_bytes:])

    def has_next(self) -> bool:
        """Returns whether another call has begun to arrive, and its client is there."""
        events = self._poll.poll(0)
        return bool(events) and events[0][1] == select.POLLIN

    def hold(self, head: bytes, body: bytes) -> None:
        """Keeps an answer to send it with the next one."""
        self._held += LENGTHS.pack(len(head), len(body)) + head + body

    def write(self, head: bytes, body: bytes) -> None:
        """Sends an answer. Raises OSError if the peer is gone or does not read it in time."""
        held, self._held = self._held, b""
        self._socket.sendall(held + LENGTHS.pack(len(head), len(body)) + head + body)

    def shut(self) -> None:
        """Ends the connection, so that its reader finds the end. Any thread, before ``close``."""
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
        """Receives a long body, its tokens into bytes of their own."""
        tail = tail_of(self._socket.recv(FRONT_BYTES, socket.MSG_PEEK), body_bytes)
        if tail is None:
            return Frame(head, self._receive(body_bytes))
        front = self._receive(tail.tokens)
        tokens = self._receive(body_bytes - tail.tokens)
        return Frame(head, front[: tail.field], front[tail.field :], tokens)

    def _receive(self, count: int) -> bytes:
        """Returns ``count`` bytes. Memory is touched as they arrive, not as they are announced."""
        data = self._socket.recv(count, socket.MSG_WAITALL) if count else b""
        if len(data) < count:
            raise EOFError
        return data
