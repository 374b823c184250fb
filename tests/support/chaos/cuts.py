"""Cuts of the network, from within the process whose connections they are."""

import os
import socket
from contextlib import suppress
from pathlib import Path


def cut_connections(path: Path) -> int:
    """Shut down this process's connections over the unix socket at ``path``; return how many.

    Either side's: those that it made and those that it accepted. The listening socket stays.
    """
    return sum(_cut(int(each.name), str(path)) for each in Path("/proc/self/fd").iterdir())


def _cut(descriptor: int, path: str) -> bool:
    # One that another thread closed meanwhile, or no socket.
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
        if ours.family != socket.AF_UNIX:
            return False
        if ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        if path in (ours.getsockname(), ours.getpeername()):
            ours.shutdown(socket.SHUT_RDWR)
            return True
    return False
