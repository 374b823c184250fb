"""A server of Valkey that sends what a test writes down, and ends the connection."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from threading import Thread
from time import monotonic

from kvstore.remote.valkey.resp import RespConnection

GENEROUS = 60.0


@contextmanager
def answered(reply: bytes, cuts: Sequence[int] = ()) -> Iterator[RespConnection]:
    """Returns a connection on which a reply comes in pieces, cut at some places, and an end."""
    ours, theirs = socket.socketpair()
    ends = sorted({min(cut, len(reply)) for cut in cuts} | {0, len(reply)})

    def serve() -> None:
        try:
            for start, end in pairwise(ends):
                theirs.sendall(reply[start:end])
            theirs.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the connection was closed, as it should be

    thread = Thread(target=serve)
    thread.start()
    connection = RespConnection(ours)
    connection.deadline = monotonic() + GENEROUS
    try:
        yield connection
    finally:
        connection.close()
        theirs.close()
        thread.join()
