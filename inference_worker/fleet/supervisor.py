"""Supervises one engine of a fleet: its process, and a new one whenever it ends."""

import asyncio
import logging
import signal
import socket
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from inference_worker.errors import EngineGoneError, ProcessEndedError, WorkerError
from inference_worker.fleet.engine_client import EngineClient, both_ways
from inference_worker.fleet.protocol import EngineSettings, Frame, LoadedModel, read_frame
from inference_worker.store.tied_process import tied_command
from kvstore_client.calls.deadlines import Backoff

PROGRAM: Final = ("-m", "inference_worker.fleet.engine_process")
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 30.0
# After this many failed starts without a success, the settings are the cause, not chance.
FIRST_STARTS: Final = 3
# Seconds that a process has to end: it releases what it holds and revokes its lease.
STOP_SECONDS: Final = 10.0
# A process answers in microseconds, whatever its engine computes. The limit is far longer than an
# overloaded machine delays a process.
LOOK_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 60.0

log = logging.getLogger(__name__)

FindStore = Callable[[LoadedModel], Awaitable[Path | None]]
"""Returns the store's folder once a model is loaded; None if no store is used."""


class EngineSupervisor:
    """Keeps one engine process running. One event loop uses it.

    ``client`` is set while the process serves, ``failure`` once it is clear that none will.
    """

    def __init__(
        self,
        settings: EngineSettings,
        find_store: FindStore,
        changed: Callable[[], None],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """Starts nothing; calls ``changed`` whenever a field changed.

        ``program`` is the program for Python to run; a socket's number is added.
        """
        self._program = program
        self.settings = settings
        self.client: EngineClient | None = None
        self.loaded: LoadedModel | None = None
        self.failure: WorkerError | None = None
        self.pid: int | None = None
        self.restarts = 0
        self._find_store = find_store
        self._changed = changed
        self._served = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the process in the background."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends the process, by SIGKILL if it does not end by itself."""
        self._stopping = True
        if self._task is None:
            return
        if self.client is not None:
            self.client.stop()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        failures = 0
        while not self._stopping:
            try:
                status = await self._live(backoff)
            except Exception as error:  # noqa: BLE001 - the next process may serve
                how = f"{type(error).__name__}: {error}"
                if not self._served:
                    self.failure = error if isinstance(error, WorkerError) else WorkerError(how)
            else:
                how = f"it ended with status {status}"
                failures += not self._served
                if failures == FIRST_STARTS:
                    self.failure = ProcessEndedError(self.settings.name, status)
            self._changed()
            if self.failure is not None:
                log.error("%s: %s; it is given up", self.settings.name, how)
            if self.failure is not None or self._stopping:
                return
            wait = backoff.delay()
            log.warning("%s: %s; another starts in %.1f s", self.settings.name, how, wait)
            await asyncio.sleep(wait)
            self.restarts += 1

    async def _live(self, backoff: Backoff) -> int:
        """Runs one process until its end and returns its status; raises ``WorkerError``."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fd = theirs.fileno()
            process = await asyncio.create_subprocess_exec(
                *tied_command(signal.SIGKILL, *self._program, str(fd)),
                pass_fds=[fd],
                stdin=DEVNULL,
                # Ctrl-C must reach the serving process only.
                start_new_session=True,
            )
            theirs.close()
            self.pid = process.pid
            try:
                async with both_ways(ours) as (reader, writer):
                    with suppress(_EndedError):
                        await self._serve(process, reader, writer, backoff)
                    return await process.wait()
            finally:
                self.client = None
                await _ended(process)

    async def _serve(
        self, process: Process, reader: StreamReader, writer: StreamWriter, backoff: Backoff
    ) -> None:
        writer.write(Frame({"op": "load", **asdict(self.settings)}).pack())
        told = await _next(reader)
        self.loaded = LoadedModel(**told)
        self._changed()
        place = await self._find_store(self.loaded)
        store = None if place is None else str(place)
        writer.write(Frame({"op": "begin", "runtime_dir": store}).pack())
        await _next(reader)
        self.client = EngineClient(reader, writer)
        self._served = True
        backoff.reset()
        self._changed()
        watching = asyncio.create_task(self._watch(self.client, process))
        try:
            await self.client.serve()
        finally:
            watching.cancel()

    async def _watch(self, client: EngineClient, process: Process) -> None:
        """Kills a process that is stopped or hangs, because its socket would stay open."""
        with suppress(EngineGoneError, ProcessLookupError):
            attached = False
            while True:
                try:
                    told = await asyncio.wait_for(client.stats(), SILENT_SECONDS)
                except TimeoutError:
                    log.warning("%s is silent for %g s", self.settings.name, SILENT_SECONDS)
                    process.kill()
                else:
                    if attached != bool(told.engines_attached):
                        attached = not attached
                        how = "has a store" if attached else "lost the store: computing without"
                        log.info("%s %s", self.settings.name, how)
                await asyncio.sleep(LOOK_SECONDS)


class _EndedError(Exception):
    """The process closed its socket before it served."""


async def _next(reader: StreamReader) -> dict[str, Any]:
    """Reads a process's next frame; raises ``WorkerError`` with the reason if it refuses."""
    frame = await read_frame(reader)
    if frame is None:
        raise _EndedError
    told = dict(frame.fields)
    if told.pop("op") == "refused":
        raise WorkerError(told["message"])
    return told


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
