"""Ports of this host alone, for servers that are told theirs."""

import socket
from contextlib import ExitStack

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody had a moment ago, no two the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    """Returns whether somebody takes connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
