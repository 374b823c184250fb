"""The store of a serving process: found, or started, kept running and ended by it."""

import asyncio
import logging
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import kvstore_client
from inference_worker.errors import StoreOptionsError, WorkerError
from inference_worker.fleet.protocol import LoadedModel
from inference_worker.store.backend import PrefixCacheBackend, store_arguments
from inference_worker.store.folders import STORE, TemporaryFolder, named_folder
from inference_worker.store.tied_process import tied_command
from kvstore_client.calls.deadlines import Backoff
from kvstore_client.errors import StoreError
from kvstore_client.runtime_dir import RuntimeDir

FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 30.0
LOOK_SECONDS: Final = 0.05
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
# At its end its own workers have left; others with a lease have this long to leave.
DRAIN_SECONDS: Final = "2"
# Up to this size the store has one extent, so that dividing a small budget loses no page.
LARGEST_EXTENT: Final = 1 << 30

log = logging.getLogger(__name__)


def budget_arguments(max_pages: int, page_bytes: int) -> tuple[str, ...]:
    """Returns kvstore-server's arguments for at most ``max_pages`` pages, all of one size.

    All extents have the same size, so up to one page for each GiB may be lost.
    """
    extents = -(-max_pages * page_bytes // LARGEST_EXTENT)
    extent_bytes = max_pages // extents * page_bytes
    return (
        *("--tier1-bytes", str(extents * extent_bytes)),
        *("--extent-bytes", str(extent_bytes)),
    )


class OwnStore:
    """A kvstore-server in ``runtime_dir``, started again whenever it ends.

    It logs to standard error. One event loop uses it.
    """

    def __init__(self, runtime_dir: Path, arguments: Sequence[str]) -> None:
        """Starts nothing."""
        self.runtime_dir = runtime_dir
        self.pid: int | None = None
        # Whether the process of that pid has answered.
        self.answered = False
        self._arguments = [*arguments, "--drain-grace", DRAIN_SECONDS]
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the store and waits until it answers.

        Raises ``WorkerError`` if it does not, for example because another server holds the folder.
        """
        self.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._begin()
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await asyncio.to_thread(self._answers):
                    assert self._process is not None
                    if self._process.returncode is not None:
                        status = self._process.returncode
                        raise WorkerError(
                            f"the store did not start: status {status}, see its log above"
                        )
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            await self.close()
            raise WorkerError(f"the store did not answer within {START_SECONDS:g} s") from None
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Ends the store by SIGTERM, and by SIGKILL if that takes too long."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _begin(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *tied_command(signal.SIGTERM, "-m", "kvstore"),
            *("--runtime-dir", str(self.runtime_dir), *self._arguments),
            stdin=DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        self.answered = False
        self.pid = self._process.pid

    def _answers(self) -> bool:
        """Returns whether this store answers, and not another server in its folder."""
        try:
            holder = RuntimeDir(self.runtime_dir).flock_file.read_text(encoding="ascii").strip()
            if holder != str(self.pid):
                return False
            with kvstore_client.connect_admin(self.runtime_dir, timeout=1.0):
                return True
        except (FileNotFoundError, StoreError):
            return False

    async def _keep(self) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while True:
            assert self._process is not None
            answering = asyncio.create_task(self._reset_once_it_answers(backoff))
            try:
                status = await self._process.wait()
            finally:
                answering.cancel()
            wait = backoff.delay()
            log.warning("the store ended with status %d; another starts in %.1f s", status, wait)
            await asyncio.sleep(wait)
            try:
                await self._begin()
            except OSError as error:
                log.warning("the store could not be started: %s", error)

    async def _reset_once_it_answers(self, backoff: Backoff) -> None:
        while not await asyncio.to_thread(self._answers):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(LOOK_SECONDS)
        backoff.reset()
        self.answered = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """A user's options about the store; raises ``StoreOptionsError`` for a contradiction."""

    runtime_dir: Path | None = None
    backend: PrefixCacheBackend | None = None
    start: bool = False
    max_pages: int | None = None

    def __post_init__(self) -> None:
        """Refuses a cap on another's store, and a cap without a store."""
        if self.max_pages and self.backend is PrefixCacheBackend.NONE:
            raise StoreOptionsError(
                "--prefix-cache-max-pages caps a store, but with --prefix-cache-backend none there "
                "is none: leave one of them out"
            )
        if self.max_pages and not self.start:
            raise StoreOptionsError(
                "--prefix-cache-max-pages needs --start-store: a store that already runs has its "
                "own cap, kvstore-server --tier1-bytes"
            )

    @property
    def used(self) -> bool:
        """True if a store is used at all."""
        return self.backend is not PrefixCacheBackend.NONE and self.max_pages != 0

    @property
    def asked(self) -> bool:
        """True if the user asked for a store explicitly."""
        return self.used and (self.start or self.runtime_dir is not None)


class ServeStore:
    """Finds the store, or starts one once the first model knows its page size.

    One event loop uses it.
    """

    def __init__(self, options: StoreOptions) -> None:
        """Starts nothing; raises ``ValueError`` for a path too long for a socket."""
        self._options = options
        self._temporary: TemporaryFolder | None = None
        self._own: OwnStore | None = None
        self._started: asyncio.Task[None] | None = None
        folder = options.runtime_dir
        if options.used and options.start and folder is None:
            folder = named_folder()
        if options.used and options.start and folder is None:
            self._temporary = TemporaryFolder()
            folder = self._temporary.path / STORE
        self._paths = RuntimeDir(folder)

    @property
    def path(self) -> Path:
        """The store's folder; the store may start later."""
        return self._paths.path

    async def find(self, loaded: LoadedModel) -> Path | None:
        """Returns the store's folder, None without a store; raises ``WorkerError``."""
        if not self._options.used:
            return None
        if self._options.start:
            if self._started is None:
                self._started = asyncio.create_task(self._start(loaded.page_bytes))
            await asyncio.shield(self._started)
        return self._paths.path

    async def close(self) -> None:
        """Ends the store that was started, if one was."""
        if self._started is not None:
            self._started.cancel()
            await asyncio.wait([self._started])
        if self._own is not None:
            await self._own.close()
        if self._temporary is not None:
            self._temporary.remove()

    async def _start(self, page_bytes: int) -> None:
        arguments = store_arguments(self._options.backend)
        if self._options.max_pages:
            arguments += budget_arguments(self._options.max_pages, page_bytes)
        self._own = OwnStore(self._paths.path, arguments)
        await self._own.start()
