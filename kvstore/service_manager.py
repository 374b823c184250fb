"""The service manager of the process, such as systemd, told over ``$NOTIFY_SOCKET``."""

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

# systemd reads its socket at once, unless it is stopped.
SEND_SECONDS = 10.0


class ServiceManager:
    """The service manager of this process, if there is one. Thread-safe.

    The protocol is one datagram a message to ``$NOTIFY_SOCKET`` (man 3 sd_notify).
    A manager that does not read its socket changes nothing here.
    """

    def __init__(self, address: str | None) -> None:
        """``address`` is a socket's path, ``@`` and an abstract name, or None without a manager."""
        self._address = address.replace("@", "\0", 1) if address else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ServiceManager":
        """Returns the manager that started this process."""
        return cls(environment.get("NOTIFY_SOCKET"))

    def ready(self) -> None:
        """Reports that the server accepts calls."""
        self._tell("READY=1")

    def alive(self) -> None:
        """Reports that the server is alive. Without these reports systemd restarts it."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Reports that the server drains and will end."""
        self._tell("STOPPING=1")

    def send(self, message: str, descriptors: Iterable[int] = ()) -> None:
        """Sends a message with copies of descriptors, and waits while the manager's queue is full.

        Raises ``OSError``, also without a manager.
        """
        if self._address is None:
            raise FileNotFoundError("no service manager started this process")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_SECONDS)
            sender.connect(self._address)
            socket.send_fds(sender, [message.encode()], list(descriptors))

    def _tell(self, message: str) -> None:
        if self._address is None:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.sendto(message.encode(), self._address)
