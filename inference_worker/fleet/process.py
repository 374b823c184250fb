"""One engine as a process: ``kvstore-worker serve`` has some.

``python -m inference_worker.fleet.process FD`` speaks on the socket FD as engine_messages.py
says, and ends when that closes.
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
from inference_worker.commands.local_worker import ATTACH_SECONDS, local_worker
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.sizes import longest_sequence
from inference_worker.errors import DeviceLostError, WorkerError
from inference_worker.fleet.answers import EngineAnswers
from inference_worker.fleet.frames import Frame, read_frame
from inference_worker.fleet.log import log_to_stderr
from inference_worker.fleet.settings import EngineSettings, LoadedModel
from inference_worker.fleet.thread import MAX_WAITING, EngineThread
from inference_worker.model.device import end_process, threads_for, use_threads
from inference_worker.model.model import load_model
from inference_worker.model.source import model_folder
from inference_worker.model.tokenizer import ByteTokenizer
from inference_worker.pages.backend import PrefixCacheBackend


async def main(sock: socket.socket) -> int:
    """Load, start once the store's place is known, and answer; return the exit status.

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
        # Text is the serving process' business.
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
        answers = EngineAnswers(engine, reader, writer, lambda: worker.without_store is None)
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
    # A service manager and a terminal signal all of a group: the serving process decides.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    log_to_stderr(logging.WARNING)
    try:
        sys.exit(asyncio.run(main(socket.socket(fileno=int(sys.argv[1])))))
    except DeviceLostError as lost:
        end_process(lost)
