"""The addresses of a tenant's events: one to subscribe to, and one for replays."""

import os
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from kvstore.runtime_dir import MAX_SOCKET_PATH_BYTES

IPC, TCP = "ipc://", "tcp://"
ANY_PORT = 0
# Bytes of a digest that stands for a tenant's name in a path that would be too long.
SHORT_NAME_BYTES = 4


class UnusableEndpoint(Exception):
    """Nothing can be bound at an address of ``kv_events_bind``."""


class Endpoint(NamedTuple):
    """The addresses of a tenant's events, as ZeroMQ writes them."""

    events: str
    replay: str


def endpoint_in(folder: Path, tenant: str) -> Endpoint:
    """Returns the addresses of a tenant's sockets in a folder; raises :class:`UnusableEndpoint`.

    A long name is shortened to eight digits of its digest.
    """
    short = blake2b(tenant.encode(), digest_size=SHORT_NAME_BYTES).hexdigest()
    for name in (tenant, short):
        events, replay = folder / f"{name}.pub", folder / f"{name}.replay"
        if len(os.fsencode(replay)) <= MAX_SOCKET_PATH_BYTES:
            return Endpoint(f"{IPC}{events}", f"{IPC}{replay}")
    raise UnusableEndpoint(
        f"{folder}: the paths of its sockets have more than {MAX_SOCKET_PATH_BYTES} bytes; choose "
        "a shorter --runtime-dir, or set --kv-events-bind"
    )


def endpoint_at(address: str) -> Endpoint:
    """Returns the addresses of a tenant's events at ``tcp://HOST:PORT`` or ``ipc:///PATH``.

    The replay's is the next port, or the path with ``.replay`` behind it. Port 0 is any.
    """
    if address.startswith(IPC):
        return Endpoint(address, f"{address}.replay")
    host, _, port = address.rpartition(":")
    return Endpoint(address, f"{host}:{int(port) + 1 if int(port) else ANY_PORT}")
