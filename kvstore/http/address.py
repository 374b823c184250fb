"""HOST:PORT that HTTP is listened on, and which names its clients may call it by."""

import ipaddress
import socket
from typing import NamedTuple

BACKLOG = 16
LOCAL_NAME = "localhost"


class UnusableHttpAddress(Exception):
    """The address cannot be bound: it is taken, or not of this host."""


class HttpAddress(NamedTuple):
    """A host, by name or number, and a port; 0: any that is free."""

    host: str
    port: int

    def bind(self) -> socket.socket:
        """Returns a socket that listens there; raises :class:`UnusableHttpAddress`."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise self._unusable(error) from None
        return listener

    def _unusable(self, error: OSError) -> UnusableHttpAddress:
        return UnusableHttpAddress(
            f"{self.host}:{self.port} cannot be listened on for HTTP: {error.strerror or error}"
        )


def parse_address(text: str) -> HttpAddress:
    """Returns the parts of ``HOST:PORT``; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    return HttpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def is_loopback(host: str) -> bool:
    """Returns whether a host, by name or number, is this machine alone."""
    if host.lower() == LOCAL_NAME:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_be_named(header: str) -> bool:
    """Returns whether a request's Host names this machine as only its own programs do.

    A page of another site can have a browser connect to 127.0.0.1 by a name of that
    site's (DNS rebinding), and read what it answers; the browser then says that name.
    """
    host, colon, port = header.rpartition(":")
    named = host if colon and port.isdecimal() else header
    return is_loopback(named.removeprefix("[").removesuffix("]"))
