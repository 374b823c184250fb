"""The places at which the simulation replaces the machine. Import this before the client.

Nothing of the store or the client is replaced but what they take from the
machine: time, chance, threads, sockets, gRPC's wire, and who is at a socket's
other end. This is for a process of its own.
"""

import logging
import os
import queue
import random
import socket as real_socket
import sys
import threading
import time
import weakref
from collections.abc import MutableMapping
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import grpc
import structlog
from google.rpc import error_details_pb2

from kvstore.v1 import attach_pb2, lease_pb2_grpc, store_pb2
from simulation import current, sockets, threads, wire

# Loaded with the machine's own threads: what the client imports besides.
__all__ = ["attach_pb2", "error_details_pb2", "install", "lease_pb2_grpc", "store_pb2"]

NAMES = {
    threading: ("Thread", "Condition", "Event", "Lock", "RLock"),
    queue: ("SimpleQueue",),
}


class _Bugs(logging.Handler):
    """Takes an exception that the client logs, and so survived, for the bug that it is."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            current.kernel().failures.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


def _take_note(_: object, method: str, event: MutableMapping[str, Any]) -> str:
    """Does the same for the store's log, and print nothing of it."""
    if method in {"exception", "error"}:
        current.kernel().failures.append(f"{event.get('event')}: {sys.exc_info()[1]!r}")
    raise structlog.DropEvent


def unmap() -> None:
    """Unmaps what clients mapped, as the kernel does at a process's end."""
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = each.peek()
        if found is not None and found[1].__module__.startswith("kvstore_client."):
            each()


def install() -> None:
    """Takes the machine's place, and load the client; once, for the rest of this process."""
    time.monotonic = current.monotonic
    os.urandom = current.random_bytes
    random._urandom = current.random_bytes  # type: ignore[attr-defined]
    cast("Any", grpc).insecure_channel = wire.Channel
    structlog.configure(
        processors=[_take_note],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    logging.getLogger("kvstore_client").addHandler(_Bugs())
    logging.getLogger("kvstore_client").propagate = False
    # By name, for that is how the client imports them, also as defaults of arguments.
    patches = [
        patch.object(module, name, getattr(threads, name))
        for module, names in NAMES.items()
        for name in names
    ]
    for each in patches:
        each.start()
    try:
        import kvstore_client.client  # noqa: F401, PLC0415
    finally:
        for each in patches:
            each.stop()
    import kvstore.rpc.attach.server  # noqa: F401, PLC0415

    background: Any = sys.modules["kvstore.background"]
    # A rest would be of real time, and for nobody.
    background.give_way = lambda: None
    server: Any = sys.modules["kvstore.rpc.attach.server"]
    server.Thread, server.EventLoop = sockets.Unstarted, sockets.Loop
    server.identify = sockets.identify
    client: Any = sys.modules["kvstore_client.calls.attach_connection"]
    client.socket = SimpleNamespace(**vars(real_socket) | {"socket": sockets.ClientSocket})
