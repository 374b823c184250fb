"""A store whose process also moves sealed pages to an engine and back, when it is told to.

The pages have the interpreter's lock, the threads and the memory of a server with a remote tier.
They are not those of its callers, so the store's own limits on loads do not slow them.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

from inference_worker.demo.valkey_server import ValkeyServer
from kvstore.remote.valkey.address import EngineAddress
from kvstore.server import run as run_server
from kvstore_client.testing import RunningStore, running_store
from support.child import die_with_parent
from support.remote.pages import PageMemory
from support.remote.tier_way import TierWay

BENCHMARKS: Final = Path(__file__).parents[2]
PAGE_BYTES: Final = 1 << 20
# Pages that are written and read at a time.
BATCH: Final = 8
ANSWER_BYTES: Final = 1 << 12
READY_SECONDS: Final = 30.0


class Moved(NamedTuple):
    """The bytes that were moved in both directions, and the seconds."""

    byte_count: int
    seconds: float


class Traffic:
    """The other end of the process's traffic. One thread uses it."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(READY_SECONDS)
        self._socket.connect(str(path))

    def begin(self, seconds: float, bytes_per_second: float) -> None:
        """Moves pages for some seconds, half of the bytes to the engine and half back."""
        self._socket.settimeout(seconds + READY_SECONDS)
        self._socket.sendall(json.dumps([seconds, bytes_per_second]).encode() + b"\n")

    def wait(self) -> Moved:
        """Waits for the end."""
        return Moved(*json.loads(self._socket.recv(ANSWER_BYTES)))

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


@contextmanager
def store_with_traffic(
    engine: ValkeyServer, folder: Path, *arguments: str
) -> Iterator[tuple[RunningStore, Traffic]]:
    """Runs such a store on an engine."""
    path = folder / "traffic.sock"
    given = str(path), str(folder), str(engine.socket), os.getpid()
    code = (
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); "
        f"from support.remote.traffic import main; sys.exit(main(*{given!r}))"
    )
    with running_store(*arguments, program=("-c", code)) as store:
        traffic = Traffic(path)
        try:
            yield store, traffic
        finally:
            traffic.close()


def main(path: str, folder: str, engine: str, parent: int) -> int:
    """Becomes a store, which ends with the process that started it."""
    die_with_parent(parent)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    way = TierWay(EngineAddress(engine), Path(folder))
    Thread(target=_serve, args=(listener, way), name="traffic", daemon=True).start()
    return run_server()


def _serve(listener: socket.socket, way: TierWay) -> None:
    source, target = (PageMemory(BATCH, PAGE_BYTES) for _ in range(2))
    source.fill()
    turns = count()
    connection, _ = listener.accept()
    for line in connection.makefile("rb"):
        seconds, rate = json.loads(line)
        moved = _move(way, source, target, turns, seconds=seconds, bytes_per_second=rate)
        connection.sendall(json.dumps(moved).encode())


def _move(
    way: TierWay,
    source: PageMemory,
    target: PageMemory,
    turns: Iterator[int],
    *,
    seconds: float,
    bytes_per_second: float,
) -> Moved:
    """Writes and reads batches at an even rate, or as fast as it can if that is slower.

    The engine evicts all the time, and now and then what was just written, or its revision.
    """
    begun = time.monotonic()
    moved = came = 0
    while (passed := time.monotonic() - begun) < seconds:
        due = moved / bytes_per_second
        if passed < due:
            time.sleep(due - passed)
        # Another store on the engine must not have these pages, since they would not be sent.
        turn = f"{os.getpid()} {next(turns)}"
        written = way.try_to_write(turn, source.pages)
        came = way.try_to_read(turn, target.pages)
        moved += (written + came) * PAGE_BYTES
    # Once, since a comparison keeps the interpreter's lock for milliseconds.
    assert target.pages[:came] == source.pages[:came], "other bytes came back"
    return Moved(moved, time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit("benchmarks/remote.py runs this")
