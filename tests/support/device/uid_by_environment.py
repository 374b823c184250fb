"""kvstore-server that takes a peer's uid from the peer's environment or name, if that has one.

So that processes of one user are of several tenants. ``KVSTORE_AS_UID`` is read as it
was when the peer's process started. A forked process has its parent's, and so its name counts.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import kvstore.server as program
from kvstore.rpc.attach import server as attach
from kvstore.rpc.attach.peer import Peer, identify

VARIABLE = "KVSTORE_AS_UID"
# A process's name for its uid. Linux keeps 15 bytes of a name.
NAME = "as-uid-"
PROGRAM = (str(Path(__file__)),)


@contextmanager
def as_uid(uid: int) -> Iterator[None]:
    """Makes processes that are started in the block pass for a user's."""
    with patch.dict(os.environ, {VARIABLE: str(uid)}):
        yield


def identify_by_environment(connection: socket.socket, *, overflow: int) -> Peer:
    """Returns the peer of a connection, of the user that its environment or name has."""
    peer = identify(connection, overflow=overflow)
    own = Path(f"/proc/{peer.pid}/comm").read_text(encoding="utf-8").strip()
    if own.startswith(NAME):
        return replace(peer, uid=int(own.removeprefix(NAME)))
    for entry in Path(f"/proc/{peer.pid}/environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == VARIABLE.encode():
            return replace(peer, uid=int(value))
    return peer


if __name__ == "__main__":
    with patch.object(attach, "identify", identify_by_environment):
        sys.exit(program.run())
