"""The engine's end of the socket between a serving process and one engine. Needs no torch."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.errors import EngineGoneError
from inference_worker.fleet.protocol import (
    Frame,
    end_frame,
    failure_frame,
    read_frame,
    request_of,
    stats_frame,
)


class EngineServer:
    """Answers the frames of one serving process from an engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        reader: StreamReader,
        writer: StreamWriter,
        attached: Callable[[], bool] = lambda: False,
    ) -> None:
        """Takes a ready engine, the socket, and a function that returns if a store is attached."""
        self._engine = engine
        self._attached = attached
        self._reader = reader
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._gone = asyncio.Event()

    async def serve(self) -> None:
        """Answers until the peer sends ``stop`` or either side ends; then aborts all requests."""
        ends = [asyncio.create_task(self._read()), asyncio.create_task(self._gone.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            under_way = [*ends, *self._tasks.values()]
            for each in under_way:
                each.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _read(self) -> None:
        while (frame := await read_frame(self._reader)) is not None:
            number = frame.fields.get("id", 0)
            match frame.fields["op"]:
                case "generate":
                    self._start(number, self._answer(number, frame))
                case "abort":
                    if (task := self._tasks.get(number)) is not None:
                        task.cancel()
                case "stats":
                    self._start(number, self._count(number))
                case "stop":
                    return

    def _start(self, number: int, answer: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answer)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _answer(self, number: int, frame: Frame) -> None:
        try:
            async with aclosing(self._engine.generate(request_of(frame))) as pieces:
                async for piece in pieces:
                    if piece.token_ids:
                        told = {"op": "tokens", "id": number, "reused": piece.reused}
                        self._put(Frame(told, piece.token_ids))
                    if piece.generation is not None:
                        assert piece.reason is not None  # the last has both
                        self._put(end_frame(number, piece.generation, piece.reason))
        except Exception as error:  # noqa: BLE001 - the client receives it
            self._put(failure_frame(number, error))
            if isinstance(error, EngineGoneError):
                # A new process replaces it.
                self._gone.set()

    async def _count(self, number: int) -> None:
        stats = replace(await self._engine.stats(), engines_attached=int(self._attached()))
        self._put(stats_frame(number, stats))

    def _put(self, frame: Frame) -> None:
        """Writes without waiting: at most some tokens of each request stay unread."""
        self._writer.write(frame.pack())
