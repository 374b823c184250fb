"""Addresses of Valkey and Redis, and the credentials for them."""

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from kvstore.operator_files import UntrustedFile, read_private
from kvstore.remote.errors import CredentialRefused

DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_HELP: Final = (
    "write valkey+unix:///PATH, valkey://HOST:PORT, valkey+cluster://HOST:PORT,HOST:PORT or "
    "valkey+sentinel://HOST:PORT,HOST:PORT/MASTER, and valkeys for TLS"
)


class UnusableEngineAddress(ValueError):
    """The address is none of an engine; the message says how to write one."""


class EngineAddress(NamedTuple):
    """A unix socket, or a host and a port. ``is_tls`` is set for ``valkeys``."""

    path: str | None
    host: str = ""
    port: int = 0
    is_tls: bool = False

    def __str__(self) -> str:
        """Returns the path, or the host and the port, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


class SentinelAddress(NamedTuple):
    """The Sentinels that know a primary, and its name. The primary has TLS if they have."""

    sentinels: tuple[EngineAddress, ...]
    master: bytes


class ClusterAddress(NamedTuple):
    """Some nodes of a cluster. One that answers names the others."""

    seeds: tuple[EngineAddress, ...]


class EngineCredential(NamedTuple):
    """A user's name, or None for the default user, and a password."""

    user: bytes | None
    password: bytes


def parse_address(url: str) -> EngineAddress | SentinelAddress | ClusterAddress:
    """Returns the address that a URL names, in one of the forms that the errors list.

    Raises :class:`UnusableEngineAddress`, also if the address has a password: every process of
    the host could read it.
    """
    scheme, has_scheme, rest = url.partition("://")
    is_tls = scheme.startswith("valkeys")
    kind = scheme.removeprefix("valkeys" if is_tls else "valkey")
    if not has_scheme or not scheme.startswith("valkey"):
        raise UnusableEngineAddress(f"{url} is no address of Valkey: {_HELP}")
    require_no_secret(url)
    netloc, _, path = rest.partition("/")
    if kind == "+unix" and path and not netloc and not is_tls:
        return EngineAddress(f"/{path}")
    if kind == "+sentinel" and path and "/" not in path:
        return SentinelAddress(_places(netloc, SENTINEL_PORT, is_tls), path.encode())
    if kind == "+cluster" and not path:
        return ClusterAddress(_places(netloc, DEFAULT_PORT, is_tls))
    if not kind and not path and "," not in netloc:
        return _places(netloc, DEFAULT_PORT, is_tls)[0]
    raise UnusableEngineAddress(f"{url} is no address of Valkey: {_HELP}")


def require_no_secret(url: str) -> None:
    """Raises :class:`UnusableEngineAddress` if a URL has a user, a password or a fragment.

    The message leaves the URL out, since it goes to logs.
    """
    # A password may have a slash, so more than the host is searched. A path of a file may have it.
    if "@" in url.partition("://")[2] and "+unix:" not in url:
        raise UnusableEngineAddress("an address has no password: write that to a file")
    if "?" in url or "#" in url:
        raise UnusableEngineAddress(f"an address has no query and no fragment: {_HELP}")


def _places(netloc: str, default_port: int, is_tls: bool) -> tuple[EngineAddress, ...]:  # noqa: FBT001  # private
    places = []
    for each in netloc.split(","):
        try:
            parts = urlsplit(f"//{each}")
            port = parts.port or default_port
        except ValueError as error:
            raise UnusableEngineAddress(f"{error}: {_HELP}") from error
        if not parts.hostname:
            raise UnusableEngineAddress(f"a host has no name: {_HELP}")
        places.append(EngineAddress(None, parts.hostname, port, is_tls))
    return tuple(places)


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
