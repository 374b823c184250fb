"""The listener's HOST:PORT, and the host names that its clients may use."""

import ipaddress
import socket
from typing import NamedTuple

BACKLOG = 16
LOCAL_NAME = "localhost"


class UnusableHttpAddress(Exception):
    """The address cannot be bound: it is in use, or not an address of this host."""


class HttpAddress(NamedTuple):
    """A host, by name or number, and a port. Port 0 stands for any free port."""

    host: str
    port: int

    def bind(self) -> socket.socket:
        """Returns a socket listening on the address; raises :class:`UnusableHttpAddress`."""
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
    """Returns the parts of ``HOST:PORT``. An IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    return HttpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def is_loopback(host: str) -> bool:
    """Returns whether a host, by name or number, is on the loopback interface."""
    if host.lower() == LOCAL_NAME:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_be_named(header: str) -> bool:
    """Returns whether a request's Host header is a loopback name.

    Another site's page can make a browser connect to 127.0.0.1 by that site's name (DNS rebinding)
    and read the response. The browser then sends that name as the Host.
    """
    host, colon, port = header.rpartition(":")
    named = host if colon and port.isdecimal() else header
    return is_loopback(named.removeprefix("[").removesuffix("]"))
