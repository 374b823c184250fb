"""Ports of this host for servers that need a given port."""

import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Returns distinct ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    """Returns whether a port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
