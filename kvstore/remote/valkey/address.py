"""Addresses of Valkey and Redis, their credentials, and how a connection is made."""

import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kvstore.operator_files import UntrustedFile, read_private
from kvstore.remote.errors import CredentialRefused, EngineUnreachable, Reaction, RemoteError
from kvstore.remote.valkey.resp import RespConnection, encoded

DEFAULT_PORT: Final = 6379
# A peer that says nothing for so long is dead, whatever its kernel does.
SILENT_SECONDS: Final = 15
_TLS: Final = "valkeys"
# Family, kind, protocol, name and address of a socket, as socket.getaddrinfo returns them.
Place = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
Resolver = Callable[[str, int], Sequence[Place]]


class UnusableEngineAddress(ValueError):
    """The address is none of an engine; the message says how to write one."""


class EngineAddress(NamedTuple):
    """A unix socket, or a host and a port. ``is_tls`` is set for ``valkeys``."""

    path: str | None
    host: str = ""
    port: int = 0
    is_tls: bool = False


class EngineCredential(NamedTuple):
    """A user's name, or None for the default user, and a password."""

    user: bytes | None
    password: bytes


def parse_address(url: str) -> EngineAddress:
    """Returns the address of ``valkey+unix:///PATH``, ``valkey://HOST:PORT`` or ``valkeys://...``.

    Raises :class:`UnusableEngineAddress`, also if the address has a password: every process of
    the host could read it.
    """
    help_text = "write valkey+unix:///PATH, valkey://HOST:PORT or valkeys://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise UnusableEngineAddress(f"{error}: {help_text}") from error
    if "@" in parts.netloc:
        raise UnusableEngineAddress("an address has no password: write that to a file")
    if parts.query or parts.fragment:
        raise UnusableEngineAddress(f"{url} has a query or fragment: {help_text}")
    if parts.scheme == "valkey+unix" and parts.path and not parts.netloc:
        return EngineAddress(parts.path)
    if parts.scheme in ("valkey", _TLS) and parts.hostname and parts.path in ("", "/"):
        return EngineAddress(None, parts.hostname, port, parts.scheme == _TLS)
    raise UnusableEngineAddress(f"{url} is no address of an engine: {help_text}")


def read_credential(path: Path) -> EngineCredential:
    """Returns the credential of a file: a line with the password, or with the user before it.

    Raises :class:`CredentialRefused` if the file cannot be read or others can.
    """
    try:
        lines = read_private(path, secret=True).splitlines()
    except UntrustedFile as error:
        raise CredentialRefused(str(error)) from error
    match lines:
        case [password]:
            return EngineCredential(None, password)
        case [user, password]:
            return EngineCredential(user, password)
        case _:
            raise CredentialRefused(f"{path} has {len(lines)} lines: write the user and password")


def connect(
    address: EngineAddress,
    *,
    credential: Path | None,
    tls: ssl.SSLContext | None,
    seconds: float,
    resolve: Resolver,
) -> RespConnection:
    """Makes a connection, authenticates and reads the engine's clock.

    Reads the credential anew, so a rotated password needs no restart. Takes ``seconds`` at most
    after the name is resolved, which has no bound. Raises a ``RemoteError``.
    """
    try:
        places = [] if address.path else resolve(address.host, address.port)
        deadline = monotonic() + seconds
        connected = _connected(address, places, deadline)
    except (OSError, ValueError) as error:
        raise EngineUnreachable(f"no connection to {address}: {error}") from error
    try:
        connected.settimeout(max(deadline - monotonic(), 0.001))
        if address.is_tls:
            context = tls or ssl.create_default_context()
            connected = context.wrap_socket(connected, server_hostname=address.host)
        made = RespConnection(connected)
        made.deadline = deadline
        if credential is not None:
            user, password = read_credential(credential)
            names = [] if user is None else [user]
            made.send(encoded(b"AUTH", *names, password))
            _authenticated(made)
        read_clock(made)
    except (OSError, ValueError, RemoteError) as error:
        connected.close()
        if isinstance(error, RemoteError) and error.reaction is not Reaction.VALUE:
            raise
        # Such as too many clients, which the first reply says.
        raise EngineUnreachable(f"no connection to {address}: {error}") from error
    return made


def read_clock(connection: RespConnection) -> int:
    """Returns the engine's clock in ms, and notes its offset at the connection."""
    connection.send(encoded(b"TIME"))
    seconds, microseconds = connection.pair()
    found = seconds * 1000 + microseconds // 1000
    connection.clock_read = monotonic()
    connection.clock_offset_ms = found - int(connection.clock_read * 1000)
    return found


def _authenticated(connection: RespConnection) -> None:
    try:
        connection.simple()
    except RemoteError as error:
        # A server without a password refuses any, by an error that has no word of its own.
        if not str(error).startswith("ERR AUTH"):
            raise
        raise CredentialRefused(str(error)) from error


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
