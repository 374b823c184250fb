"""kvstore-server that stays alive after its YIELD, until a test lets it end.

Before it yields and afterwards it says so on the socket that ``KVSTORE_YIELDING`` names, and waits
for an answer each time. ``KVSTORE_YIELDING_FAULT`` is "threads" if its threads are to go on, and
the mutex is to stay free.
"""

import os
import socket
import sys
from pathlib import Path
from unittest.mock import patch

import kvstore.server as program
from kvstore.holder.holder_client import HolderClient
from kvstore.service.periodic_threads import Ticker
from kvstore.service.store import KVStore

SOCKET, FAULT = "KVSTORE_YIELDING", "KVSTORE_YIELDING_FAULT"
THREADS = "threads"
PROGRAM = (str(Path(__file__)),)
# Seconds that no test comes near.
LIMIT = 600.0


def main() -> int:
    """Runs kvstore-server."""
    give_up = HolderClient.give_up

    def give_up_slowly(client: HolderClient, sequence: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as test:
            test.connect(os.environ[SOCKET])
            _say(test, b"yields")
            give_up(client, sequence)
            _say(test, b"yielded")

    with (
        patch.object(HolderClient, "give_up", give_up_slowly),
        patch.object(program, "STOP_PATIENCE", LIMIT),
    ):
        if os.environ.get(FAULT) != THREADS:
            return program.run()
        with (
            patch.object(Ticker, "close", lambda _: None),
            patch.object(KVStore, "freeze", lambda *_: True),
        ):
            return program.run()


def _say(test: socket.socket, what: bytes) -> None:
    test.sendall(what)
    test.recv(1)


if __name__ == "__main__":
    sys.exit(main())
