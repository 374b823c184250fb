"""One engine as a process of ``kvstore-worker serve``.

``python -m inference_worker.fleet.engine_process FD`` speaks the protocol of
inference_worker/fleet/protocol.py on the socket FD, and ends when the socket closes. Each request
is a task, whose tokens are written as they come.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

import kvstore_client
from inference_worker.engine.async_engine import AsyncEngine
from inference_worker.engine.engine import PAGE_TOKENS, longest_sequence
from inference_worker.engine.local_worker import ATTACH_SECONDS, local_worker
from inference_worker.errors import DeviceLostError, EngineGoneError, WorkerError, end_process
from inference_worker.fleet.engine_thread import MAX_WAITING, EngineThread
from inference_worker.fleet.log import log_to_stderr
from inference_worker.fleet.protocol import (
    EngineSettings,
    Frame,
    LoadedModel,
    end_frame,
    failure_frame,
    read_frame,
    request_of,
    stats_frame,
)
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.model import load_model, model_folder
from inference_worker.model.tokenizer import ByteTokenizer
from inference_worker.store.backend import PrefixCacheBackend


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
                        told = {"op": "tokens", "id": number, "reused": piece.reused_tokens}
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


async def main(sock: socket.socket) -> int:
    """Loads the model, attaches to the store, and answers; returns the exit status.

    Raises ``DeviceLostError`` if the device has failed for good.
    """
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        told = await read_frame(reader)
        if told is None or told.fields.pop("op") != "load":
            return 1
        settings = EngineSettings(**told.fields)
        try:
            await _serve(settings, reader, writer)
        except (WorkerError, kvstore_client.errors.StoreError, OSError, ValueError) as error:
            writer.write(Frame({"op": "refused", "message": str(error)}).pack())
            await writer.drain()
            return 1
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    return 0


async def _serve(settings: EngineSettings, reader: StreamReader, writer: StreamWriter) -> None:
    threads = threads_for(settings.model, settings.threads)
    use_threads(threads or max(1, len(os.sched_getaffinity(0)) // settings.processes))
    disable_progress_bar()
    model = load_model(
        settings.model,
        device=settings.device,
        dtype=settings.dtype,
        deterministic=settings.deterministic,
        # The serving process converts text.
        tokenizer=ByteTokenizer(),
    )
    page_tokens = settings.page_tokens or PAGE_TOKENS
    loaded = LoadedModel(
        folder=str(model_folder(settings.model)),
        longest=settings.longest or longest_sequence(model, page_tokens),
        end_ids=sorted(model.end_ids),
        page_bytes=model.layout(page_tokens).page_bytes,
    )
    writer.write(Frame({"op": "loaded", **asdict(loaded)}).pack())
    told = await read_frame(reader)
    if told is None:
        return
    place = told.fields["runtime_dir"]
    with local_worker(
        model,
        backend=PrefixCacheBackend.NONE if place is None else None,
        runtime_dir=None if place is None else Path(place),
        name=settings.name,
        model_name=settings.model,
        page_tokens=page_tokens,
        longest=loaded.longest,
        attach_seconds=ATTACH_SECONDS if settings.awaits_store else None,
        max_step_tokens=settings.max_step_tokens,
        max_running=settings.max_running,
    ) as worker:
        engine = EngineThread(worker.engine, max_waiting=settings.max_waiting or MAX_WAITING)
        writer.write(Frame({"op": "ready"}).pack())
        answers = EngineServer(engine, reader, writer, lambda: worker.without_store is None)
        serving = asyncio.create_task(answers.serve())
        ends = [serving, asyncio.create_task(engine.wait_failed())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await engine.close()
        if isinstance(engine.failure, DeviceLostError):
            raise engine.failure
        if not serving.cancelled():
            serving.result()


if __name__ == "__main__":
    # A service manager and a terminal signal the whole group: the serving process decides.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    log_to_stderr(logging.WARNING)
    try:
        sys.exit(asyncio.run(main(socket.socket(fileno=int(sys.argv[1])))))
    except DeviceLostError as lost:
        end_process(lost)
