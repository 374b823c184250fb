"""An attach socket that has lanes, and answers on them what a test wrote down."""

import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import NamedTuple

from google.rpc import status_pb2

from kvstore.rpc.attach.frames import FrameReader, FrameWriter
from kvstore.rpc.lane import LENGTHS, HotLane, Party
from kvstore.v1 import attach_pb2

METHOD = "/kvstore.v1.PrefixCacheService/ReleasePins"
WELCOME = attach_pb2.ServerFrame(welcome=attach_pb2.Welcome(credential="c", tenant="t"))
METHODS = [METHOD, "/kvstore.v1.PrefixCacheService/AbortReservation"]
OPENED = attach_pb2.ServerFrame(lane_opened=attach_pb2.LaneOpened(methods=METHODS))
# What a call may meet, besides a response's bytes and a refusal's status.
HANG_UP, GARBAGE, HUGE = object(), object(), object()
# Calls of a test that meet nothing.
MOST_UNANSWERED = 100


class InPieces(NamedTuple):
    """A response that comes ``count`` bytes at a time, and ``more`` bytes right behind it."""

    response: bytes
    count: int
    more: bytes = b""


class ScriptedLanes:
    """Takes connections; ``calls`` are what came over them, and ``came`` is released for each."""

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[attach_pb2.LaneCall, bytes]] = []
        self.opened = 0
        self.came = Semaphore(0)
        self.refusal: status_pb2.Status | None = None
        self._script: SimpleQueue[object] = SimpleQueue()
        self._connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def answer(self, *what: bytes | status_pb2.Status | Event | object) -> None:
        """Writes down what calls meet, one each; after an ``Event`` nothing comes."""
        for each in what:
            self._script.put(each)

    def all_met(self) -> bool:
        """Returns whether calls met all that was written down: what comes next is another's."""
        return self._script.empty()

    def cut(self) -> None:
        """Ends all connections."""
        for each in self._connections:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        # For what came and nothing was written down for.
        self.answer(*[HANG_UP] * MOST_UNANSWERED)
        for each in self._threads:
            each.join()
        for connection in (self._listener, *self._connections):
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                thread = Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError):
            reader, writer = FrameReader(connection), FrameWriter(connection)
            for answer in (WELCOME, OPENED):
                reader.read()
                if answer is OPENED and self.refusal is not None:
                    answer = attach_pb2.ServerFrame(refused=self.refusal)  # noqa: PLW2901
                writer.push(answer.SerializeToString())
                writer.flush()
            if self.refusal is not None:
                return
            self.opened += 1
            party = Party(os.getuid(), b"", b"", 0)
            lane = HotLane(connection, party, max_body_bytes=16 << 20)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
            while True:
                while not lane.has_next():
                    if lane.may_be_gone:
                        return
                    select.select([connection], [], [])
                frame = lane.read()
                call = attach_pb2.LaneCall.FromString(frame.head)
                self.calls.append((call, frame.whole_body))
                self.came.release()
                self._meet(lane, connection, self._script.get())

    def _meet(self, lane: HotLane, connection: socket.socket, what: object) -> None:
        if isinstance(what, bytes):
            lane.write(b"", what)
        elif isinstance(what, status_pb2.Status):
            lane.write(attach_pb2.LaneAnswer(status=what).SerializeToString(), b"")
        elif isinstance(what, InPieces):
            frame = LENGTHS.pack(0, len(what.response)) + what.response + what.more
            for start in range(0, len(frame), what.count):
                connection.sendall(frame[start : start + what.count])
        elif what is GARBAGE:
            lane.write(b"\xff\xff", b"")
        elif what is HUGE:
            connection.sendall(LENGTHS.pack(1, 1 << 31))
        else:
            if isinstance(what, Event):
                what.wait(30)
            connection.shutdown(socket.SHUT_RDWR)
