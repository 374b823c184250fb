"""The serving process's connection to one engine process."""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from itertools import count
from typing import Any, Final

from inference_worker.engine.async_engine import EngineStats, Piece
from inference_worker.engine.request import Request, ReusedTokens
from inference_worker.errors import EngineGoneError
from inference_worker.fleet.protocol import (
    Frame,
    end_of,
    failure_of,
    read_frame,
    request_frame,
    stats_of,
)

# Follows the last frame of a request when the process's socket closes.
GONE: Final = Frame({"op": "gone"})


@asynccontextmanager
async def both_ways(sock: socket.socket) -> AsyncGenerator[tuple[StreamReader, StreamWriter], None]:
    """Yields a reader and a writer of a connected socket, and closes them at the end.

    Each has its own descriptor. A transport that writes to a closed peer is closed at once, with
    everything that was not read: the last frames of a process before it died.
    """
    reader, reading = await asyncio.open_unix_connection(sock=sock)
    with closing(reading):
        _, writer = await asyncio.open_unix_connection(sock=sock.dup())
        with closing(writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            yield reader, writer


class EngineClient:
    """Sends requests to one engine process and receives its answers, until its socket closes.

    ``outstanding_tokens`` is how many tokens the process still has to compute. One event loop uses
    it.
    """

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Takes a socket's reader and writer; reads nothing before :meth:`serve`."""
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._heard: dict[int, asyncio.Queue[Frame]] = {}
        self.outstanding_tokens = 0
        self.open = True

    async def serve(self) -> None:
        """Passes each answer to its request until the process ends; then ends all requests."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                heard = self._heard.get(frame.fields["id"])
                if heard is not None:
                    heard.put_nowait(frame)
        finally:
            self.open = False
            self._writer.close()
            for heard in self._heard.values():
                heard.put_nowait(GONE)

    async def generate(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Yields a request's tokens as they come; closing it early aborts the request.

        Raises the engine's error, and ``EngineGoneError`` if the process ended.
        """
        number, heard = self._listen()
        left = len(request.prompt_ids) + request.max_tokens
        self.outstanding_tokens += left
        ended = False
        reused: ReusedTokens | None = None
        try:
            self._send(request_frame(number, request))
            while not ended:
                frame = await heard.get()
                if frame.fields["op"] == "tokens":
                    ids = list(frame.token_ids)
                    rest = max(0, min(left, request.max_tokens) - len(ids))
                    self.outstanding_tokens -= left - rest
                    left = rest
                    reused = ReusedTokens(*frame.fields["reused"])
                    yield Piece(ids, None, None, reused)
                    continue
                ended = True
                if frame.fields["op"] != "end":
                    raise _failure(frame.fields)
                yield Piece([], *end_of(frame.fields), reused)
        finally:
            self.outstanding_tokens -= left
            del self._heard[number]
            if not ended and self.open:
                self._send(Frame({"op": "abort", "id": number}))

    async def stats(self) -> EngineStats:
        """Returns the engine's statistics; raises ``EngineGoneError`` if it ended."""
        number, heard = self._listen()
        try:
            self._send(Frame({"op": "stats", "id": number}))
            frame = await heard.get()
        finally:
            del self._heard[number]
        if frame.fields["op"] != "stats":
            raise _failure(frame.fields)
        return stats_of(frame.fields)

    def stop(self) -> None:
        """Asks the process to abort its requests, release everything and end."""
        if self.open:
            self._send(Frame({"op": "stop"}))

    def _listen(self) -> tuple[int, asyncio.Queue[Frame]]:
        if not self.open:
            raise _failure(GONE.fields)
        number, heard = next(self._numbers), asyncio.Queue[Frame]()
        self._heard[number] = heard
        return number, heard

    def _send(self, frame: Frame) -> None:
        # A write to a dead process needs no error: the end of its socket fails the request.
        self._writer.write(frame.pack())


def _failure(told: dict[str, Any]) -> Exception:
    if told["op"] == "gone":
        return EngineGoneError("the engine process ended")
    return failure_of(told)
