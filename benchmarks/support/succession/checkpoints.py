"""Moments of a server's start at which it waits until the benchmark has copied the tables."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Self

# The server owns the memory and has not written it yet; it has recovered and serves nobody yet.
OWNED, RECOVERED = "owned", "recovered"
_NAME_BYTES, _NAME_SECONDS = 64, 10.0


class Checkpoints:
    """Calls ``reached`` with the name of each moment, on a thread, until the block ends."""

    def __init__(self, path: Path, reached: Callable[[str], None]) -> None:
        self._reached = reached
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = Thread(target=self._serve, name="checkpoints", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with connection, suppress(OSError):
                # A server that is stopped here would keep this thread, and the end of the block.
                connection.settimeout(_NAME_SECONDS)
                name = connection.recv(_NAME_BYTES).decode()
                if name:
                    self._reached(name)
                    connection.sendall(b".")


def wait_at(path: Path, name: str) -> None:
    """Waits until the benchmark was told that this server is at a checkpoint."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.fspath(path))
        connection.sendall(name.encode())
        connection.recv(1)
