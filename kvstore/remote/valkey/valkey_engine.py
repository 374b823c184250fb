"""The remote engine on one server of Valkey or Redis."""

import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from kvstore.remote.engine import (
    MOST_CONTROL_BYTES,
    EngineCapabilities,
    ReadResult,
    require_lives,
)
from kvstore.remote.errors import RemoteError
from kvstore.remote.valkey.address import EngineAddress, Place, Resolver, connect, read_clock
from kvstore.remote.valkey.connection_pool import ConnectionPool
from kvstore.remote.valkey.resp import RespConnection, encoded

# The rights of the user that kvstore needs: `user kvstore on >PASSWORD` and these rules.
ACL_RULES: Final = (
    "~kv1/* ~kvr/* resetchannels -@all +exists +get +pexpireat +ping +set +time +unlink"
)
CAPABILITIES: Final = EngineCapabilities(
    exists_in_one_trip=True,
    expires=True,
    revisions=True,
    lists=False,
    most_bytes=512 << 20,
    best_bytes=256 << 10,
    registered_memory=False,
    keeps_deadlines=True,
)
# More connections than two, and more requests ahead, bring nothing where they were measured.
CONNECTION_COUNT: Final = 2
REQUESTS_AHEAD: Final = 2
NAMES_PER_TRIP: Final = 1000
CONNECT_SECONDS: Final = 0.25
# Clocks drift apart by less than a millisecond in so many seconds.
CLOCK_SECONDS: Final = 60.0


def resolve_stream(host: str, port: int) -> Sequence[Place]:
    """Returns the places of a host's port, as the C library finds them. Has no deadline."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class ValkeyEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine`. Thread-safe.

    Each call uses one connection, so ``connections`` calls run at a time. ``credential`` is a
    file that :func:`~kvstore.remote.valkey.address.read_credential` reads.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        address: EngineAddress,
        *,
        credential: Path | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTION_COUNT,
        connect_seconds: float = CONNECT_SECONDS,
        resolve: Resolver = resolve_stream,
    ) -> None:
        def make() -> RespConnection:
            return connect(
                address, credential=credential, tls=tls, seconds=connect_seconds, resolve=resolve
            )

        self._pool = ConnectionPool(make, size=connections, connect_seconds=connect_seconds)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Counts first: all and none are the usual answers, and cost one command."""
        found: list[bool] = []
        with self._connection(deadline) as connection:
            for part in _parts(names):
                connection.send(encoded(b"EXISTS", *part))
                count = _among(connection, len(part))
                if count in (0, len(part)):
                    found += [count > 0] * len(part)
                    continue
                questions = b"".join(encoded(b"EXISTS", name) for name in part)
                connection.send(questions, replies=len(part))
                found += [_among(connection, 1) == 1 for _ in part]
        return found

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Asks for the next value before it receives this one."""
        with self._connection(deadline) as connection:
            sent = 0
            for index, buffer in enumerate(into):
                while sent < min(index + REQUESTS_AHEAD, len(names)):
                    connection.send(encoded(b"GET", names[sent]))
                    sent += 1
                yield connection.value(buffer)

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Sends the next value before it receives this one's status."""
        require_lives(lives_ms)
        with self._connection(deadline) as connection:
            now = _engine_ms(connection)
            sent = 0
            for index in range(len(names)):
                while sent < min(index + REQUESTS_AHEAD, len(names)):
                    _send_set(connection, names[sent], values[sent], now + lives_ms[sent])
                    sent += 1
                yield connection.outcome()

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Sets expiries only where they are later than before: no clock can delete a value."""
        with self._connection(deadline) as connection:
            now = _engine_ms(connection)
            for start in range(0, len(names), NAMES_PER_TRIP):
                part = slice(start, start + NAMES_PER_TRIP)
                questions = [
                    encoded(b"PEXPIREAT", name, b"%d" % (now + life), b"GT")
                    for name, life in zip(names[part], lives_ms[part], strict=True)
                ]
                connection.send(b"".join(questions), replies=len(questions))
                for _ in questions:
                    _among(connection, 1)

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a short value."""
        with self._connection(deadline) as connection:
            connection.send(encoded(b"GET", name))
            return connection.short_value(MOST_CONTROL_BYTES)

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a short value, with a condition or without."""
        condition = [b"NX"] if only_if_absent else []
        with self._connection(deadline) as connection:
            connection.send(encoded(b"SET", name, value, b"PX", b"%d" % life_ms, *condition))
            return connection.stored()

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Unlinks values: the engine frees their memory later."""
        with self._connection(deadline) as connection:
            for part in _parts(names):
                connection.send(encoded(b"UNLINK", *part))
                _among(connection, len(part))

    def time_ms(self, deadline: float) -> int:
        """Reads the engine's clock."""
        with self._connection(deadline) as connection:
            return read_clock(connection)

    def ping(self, deadline: float) -> None:
        """Waits for an attempt to connect if there is no connection."""
        with self._connection(deadline, insist=True) as connection:
            connection.send(encoded(b"PING"))
            if (status := connection.simple()) != b"PONG":
                raise connection.malformed(f"{status[:40]!r} instead of PONG")

    def close(self) -> None:
        """Interrupts the calls under way."""
        self._pool.close()

    @contextmanager
    def _connection(self, deadline: float, *, insist: bool = False) -> Iterator[RespConnection]:
        connection = self._pool.take(deadline, insist=insist)
        try:
            yield connection
        finally:
            self._pool.give(connection)


def _parts(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(names), NAMES_PER_TRIP):
        yield names[start : start + NAMES_PER_TRIP]


def _among(connection: RespConnection, most: int) -> int:
    """Receives a count of names."""
    count = connection.integer()
    if not 0 <= count <= most:
        raise connection.malformed(f"a count of {count} for {most} names")
    return count


def _engine_ms(connection: RespConnection) -> int:
    """Returns the engine's clock, which each connection asks for once a minute."""
    if monotonic() - connection.clock_read > CLOCK_SECONDS:
        return read_clock(connection)
    return int(monotonic() * 1000) + connection.clock_offset_ms


def _send_set(connection: RespConnection, name: bytes, value: memoryview, expiry_ms: int) -> None:
    """Sends a SET from the value's own memory."""
    head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, value.nbytes)
    expiry = b"%d" % expiry_ms
    connection.send(head, value, b"\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n" % (len(expiry), expiry))
