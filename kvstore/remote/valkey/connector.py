"""Connections to Valkey and Redis: name, socket, TLS, credential and clock."""

import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

from kvstore.remote.errors import CredentialRefused, EngineUnreachable, Reaction, RemoteError
from kvstore.remote.valkey.address import EngineAddress, read_credential
from kvstore.remote.valkey.resp import RespConnection, encoded

# A peer that says nothing for so long is dead, whatever its kernel does.
SILENT_SECONDS: Final = 15
# Family, kind, protocol, name and address of a socket, as socket.getaddrinfo returns them.
Place = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
Resolver = Callable[[str, int], Sequence[Place]]


def resolve_stream(host: str, port: int) -> Sequence[Place]:
    """Returns the places of a host's port, as the C library finds them. Has no deadline."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class ValkeyConnector:
    """Makes connections with one credential, by one resolver. Thread-safe.

    Reads the credential anew for each, so a rotated password needs no restart. An attempt takes
    ``seconds`` at most after the name is resolved, which has no bound.
    """

    def __init__(
        self,
        *,
        credential: Path | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float,
        resolve: Resolver = resolve_stream,
    ) -> None:
        self.seconds = seconds
        self._credential = credential
        self._tls = tls
        self._resolve = resolve

    def connect(self, address: EngineAddress) -> RespConnection:
        """Returns an authenticated connection that knows the engine's clock.

        Raises a ``RemoteError`` whose reaction is not VALUE.
        """
        return self._made(address, read_clock)

    def connect_to_sentinel(self, address: EngineAddress) -> RespConnection:
        """Returns a connection to a Sentinel. Those without passwords refuse ours: no matter."""
        return self._made(address, None)

    def _made(
        self, address: EngineAddress, prepare: Callable[[RespConnection], object] | None
    ) -> RespConnection:
        try:
            places = [] if address.path else self._resolve(address.host, address.port)
            deadline = monotonic() + self.seconds
            connected = _connected(address, places, deadline)
        except (OSError, ValueError) as error:
            raise EngineUnreachable(f"no connection to {address}: {error}") from error
        try:
            connected.settimeout(max(deadline - monotonic(), 0.001))
            if address.is_tls:
                context = self._tls or ssl.create_default_context()
                connected = context.wrap_socket(connected, server_hostname=address.host)
            made = RespConnection(connected)
            made.deadline = deadline
            self._authenticate(made, is_needed=prepare is not None)
            if prepare is not None:
                prepare(made)
        except (OSError, ValueError, RemoteError) as error:
            connected.close()
            if isinstance(error, RemoteError) and error.reaction is not Reaction.VALUE:
                raise
            # Such as too many clients, which the first reply says.
            raise EngineUnreachable(f"no connection to {address}: {error}") from error
        return made

    def _authenticate(self, connection: RespConnection, *, is_needed: bool) -> None:
        if self._credential is None:
            return
        user, password = read_credential(self._credential)
        names = [] if user is None else [user]
        connection.send(encoded(b"AUTH", *names, password))
        try:
            connection.simple()
        except RemoteError as error:
            if connection.is_broken or connection.due:
                raise
            if not is_needed:
                return  # the next command tells whether the server wanted any
            # A server without a password refuses any, by an error that has no word of its own.
            if not str(error).startswith("ERR AUTH"):
                raise
            raise CredentialRefused(str(error)) from error


def read_clock(connection: RespConnection) -> int:
    """Returns the engine's clock in ms, and notes its offset at the connection."""
    connection.send(encoded(b"TIME"))
    seconds, microseconds = connection.pair()
    found = seconds * 1000 + microseconds // 1000
    connection.clock_read = monotonic()
    connection.clock_offset_ms = found - int(connection.clock_read * 1000)
    return found


def _connected(
    address: EngineAddress,
    places: Sequence[Place],
    deadline: float,
) -> socket.socket:
    """Returns a socket to the first place that takes the connection."""
    if address.path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(max(deadline - monotonic(), 0.001))
            local.connect(address.path)
        except OSError:
            local.close()
            raise
        return local
    refused: OSError = OSError("the name has no address")
    for family, kind, protocol, _, place in places:
        remote = socket.socket(family, kind, protocol)
        try:
            remote.settimeout(max(deadline - monotonic(), 0.001))
            remote.connect(place)
        except OSError as error:
            remote.close()
            refused = error
            continue
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        remote.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS)
        remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
        return remote
    raise refused
