"""A helper: a process that runs an engine for a store, one call at a time.

The store starts it as ``python -m kvstore.remote.process.helper``, with the numbers of a socket
and of shared memory, and an engine as JSON. It ends with the store.
"""

import ctypes
import importlib
import json
import mmap
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Final, cast

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.process.messages import (
    DONE,
    ITEM,
    READY,
    STOP,
    Message,
    packed_error,
    receive,
    send,
)
from kvstore.signals import PR_SET_PDEATHSIG

# Offsets and sizes of values in the shared memory.
Places = Sequence[tuple[int, int]]


class Helper:
    """Serves a store's calls on an engine. ``memory`` is shared with the store."""

    def __init__(self, engine: RemoteEngine, connection: Connection, memory: memoryview) -> None:
        self._engine = engine
        self._connection = connection
        self._memory = memory

    def serve(self) -> None:
        """Serves calls until the store closes the connection."""
        send(self._connection, [READY])
        while True:
            try:
                call, *arguments = receive(self._connection)
                if call == STOP:
                    continue  # the call that it would end has ended meanwhile
                send(self._connection, self._answer(str(call), arguments))
            except (EOFError, OSError):
                return

    def _answer(self, call: str, arguments: list[object]) -> Message:
        try:
            match call:
                case "get_many":
                    names, places, deadline = cast("tuple[list[str], Places, float]", arguments)
                    reads = self._engine.get_many(_bytes(names), self._views(places), deadline)
                    self._send_each(each.value for each in reads)
                    return [DONE, None]
                case "put_many":
                    names, places, lives, deadline = cast(
                        "tuple[list[str], Places, list[int], float]", arguments
                    )
                    values = self._views(places)
                    writes = self._engine.put_many(_bytes(names), values, lives, deadline)
                    self._send_each(None if each is None else packed_error(each) for each in writes)
                    return [DONE, None]
                case _:
                    return [DONE, _SHORT[call](self._engine, *arguments)]
        except Exception as error:  # noqa: BLE001  # any error of an engine is the caller's
            return packed_error(error)

    def _views(self, places: Places) -> list[memoryview]:
        return [self._memory[start : start + size] for start, size in places]

    def _send_each(self, results: Iterable[object]) -> None:
        """Sends results as they come, until the store wants no more."""
        for result in results:
            send(self._connection, [ITEM, result])
            if self._connection.poll():
                return  # it is STOP: the store sends nothing else during a call


def _digits(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _bytes(names: Iterable[str]) -> list[bytes]:
    return [name.encode() for name in names]


# Calls without values, whose results a message can have.
_SHORT: Final[dict[str, Callable[..., object]]] = {
    "exists_many": lambda engine, names, deadline: engine.exists_many(_bytes(names), deadline),
    "delete_many": lambda engine, names, deadline: engine.delete_many(_bytes(names), deadline),
    "refresh_many": lambda engine, names, lives_ms, deadline: engine.refresh_many(
        _bytes(names), lives_ms, deadline
    ),
    "control": lambda engine, name, deadline: _digits(engine.control(name.encode(), deadline)),
    "set_control": lambda engine, name, value, life_ms, is_new, deadline: engine.set_control(
        name.encode(), bytes.fromhex(value), life_ms, deadline, only_if_absent=is_new
    ),
    "time_ms": lambda engine, deadline: engine.time_ms(deadline),
    "ping": lambda engine, deadline: engine.ping(deadline),
    "findings": lambda engine, deadline: [
        [each.kind.value, *each[1:]] for each in engine.findings(deadline)
    ],
}


def main(arguments: Sequence[str]) -> None:
    """Runs the engine of the command line."""
    # The kernel kills this process with its parent, even if the engine hangs.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    socket_number, memory_number, memory_bytes = map(int, arguments[:3])
    path, factory, settings = json.loads(arguments[3])
    sys.path[:] = path
    module, _, name = factory.partition(":")
    connection = Connection(socket_number)
    memory = memoryview(mmap.mmap(memory_number, memory_bytes))
    try:
        engine = getattr(importlib.import_module(module), name)(**settings)
    except Exception as error:  # noqa: BLE001  # the store says it to its callers
        send(connection, packed_error(error))
        return
    Helper(engine, connection, memory).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
