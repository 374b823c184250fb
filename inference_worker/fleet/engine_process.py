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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

import kvstore_client
from inference_worker.engine.engine import PAGE_TOKENS, longest_sequence
from inference_worker.engine.local_worker import ATTACH_SECONDS, local_worker
from inference_worker.errors import DeviceLostError, WorkerError, end_process
from inference_worker.fleet.engine_thread import MAX_WAITING, EngineThread
from inference_worker.fleet.log import log_to_stderr
from inference_worker.fleet.protocol import (
    EngineSettings,
    Frame,
    LoadedModel,
    read_frame,
)
from inference_worker.fleet.request_server import EngineServer
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.model import load_model, model_folder
from inference_worker.model.tokenizer import ByteTokenizer
from inference_worker.store.backend import PrefixCacheBackend


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
