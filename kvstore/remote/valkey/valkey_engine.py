"""The remote engine on one server of Valkey or Redis, or on the primary that Sentinels name."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.engine import EngineCapabilities, EngineNodes, ReadResult, require_lives
from kvstore.remote.errors import RemoteError
from kvstore.remote.finding import EngineFinding
from kvstore.remote.valkey.address import EngineAddress, SentinelAddress
from kvstore.remote.valkey.commands import (
    NAMES_PER_TRIP,
    REQUESTS_AHEAD,
    count_among,
    engine_ms,
    parts,
    ping,
    read_control,
    refresh_command,
    send_set,
    write_control,
)
from kvstore.remote.valkey.connector import Resolver, ValkeyConnector, read_clock, resolve_stream
from kvstore.remote.valkey.resp import RespConnection, encoded
from kvstore.remote.valkey.sentinel import connect_to_primary
from kvstore.remote.valkey.valkey_findings import findings_of

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
# More connections than two bring nothing where they were measured.
CONNECTION_COUNT: Final = 2
CONNECT_SECONDS: Final = 0.25
# As the default of the setting `remote_timeout`.
USUAL_SECONDS: Final = 0.3


class ValkeyEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine`. Thread-safe.

    Each call uses one connection, so ``connections`` calls run at a time. ``credential`` is a
    file that :func:`~kvstore.remote.valkey.address.read_credential` reads. A control value counts
    as written once so many ``replicas`` have it.
    """

    capabilities = CAPABILITIES

    def __init__(
        self,
        address: EngineAddress | SentinelAddress,
        *,
        credential: Path | None = None,
        tls: ssl.SSLContext | None = None,
        connections: int = CONNECTION_COUNT,
        connect_seconds: float = CONNECT_SECONDS,
        resolve: Resolver = resolve_stream,
        replicas: int = 0,
    ) -> None:
        connector = ValkeyConnector(
            credential=credential, tls=tls, seconds=connect_seconds, resolve=resolve
        )

        def make() -> RespConnection:
            if isinstance(address, SentinelAddress):
                return connect_to_primary(connector, address)
            return connector.connect(address)

        self._replicas = replicas
        self._pool = ConnectionPool[RespConnection](
            make, size=connections, connect_seconds=connect_seconds
        )

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Counts first: all and none are the usual answers, and cost one command."""
        found: list[bool] = []
        with self._connection(deadline) as connection:
            for part in parts(names):
                connection.send(encoded(b"EXISTS", *part))
                count = count_among(connection, len(part))
                if count in (0, len(part)):
                    found += [count > 0] * len(part)
                    continue
                questions = b"".join(encoded(b"EXISTS", name) for name in part)
                connection.send(questions, replies=len(part))
                found += [count_among(connection, 1) == 1 for _ in part]
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
            now = engine_ms(connection)
            sent = 0
            for index in range(len(names)):
                while sent < min(index + REQUESTS_AHEAD, len(names)):
                    send_set(connection, names[sent], values[sent], now + lives_ms[sent])
                    sent += 1
                yield connection.outcome()

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Sets expiries only where they are later than before: no clock can delete a value."""
        with self._connection(deadline) as connection:
            now = engine_ms(connection)
            for start in range(0, len(names), NAMES_PER_TRIP):
                part = slice(start, start + NAMES_PER_TRIP)
                questions = [
                    refresh_command(name, now + life)
                    for name, life in zip(names[part], lives_ms[part], strict=True)
                ]
                connection.send(b"".join(questions), replies=len(questions))
                for _ in questions:
                    count_among(connection, 1)

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a short value."""
        with self._connection(deadline) as connection:
            return read_control(connection, name)

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a short value, and waits for the replicas that the engine was given."""
        with self._connection(deadline) as connection:
            return write_control(
                connection,
                name,
                value,
                life_ms,
                only_if_absent=only_if_absent,
                replicas=self._replicas,
            )

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Unlinks values: the engine frees their memory later."""
        with self._connection(deadline) as connection:
            for part in parts(names):
                connection.send(encoded(b"UNLINK", *part))
                count_among(connection, len(part))

    def time_ms(self, deadline: float) -> int:
        """Reads the engine's clock."""
        with self._connection(deadline) as connection:
            return read_clock(connection)

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Waits for an attempt to connect if there is no connection."""
        with self._connection(deadline, insist=True) as connection:
            ping(connection)

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Reads the settings, which needs the rights ``+info`` and ``+config|get``."""
        with self._connection(deadline) as connection:
            return findings_of(connection)

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
