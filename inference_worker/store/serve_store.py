"""The store that a serving process and its engine processes use."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from inference_worker.errors import StoreOptionsError
from inference_worker.fleet.settings import LoadedModel
from inference_worker.pages.backend import PrefixCacheBackend, store_arguments
from inference_worker.store.own_folder import named_folder
from inference_worker.store.own_store import OwnStore, budget_arguments
from inference_worker.store.temporary_folder import STORE, TemporaryFolder
from kvstore_client.runtime_dir import RuntimeDir


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What a user said of the store; raises ``StoreOptionsError`` for what contradicts itself.

    ``max_pages`` 0 is no store, as ``none`` is; more is the budget of a store of one's own.
    """

    runtime_dir: Path | None = None
    backend: PrefixCacheBackend | None = None
    start: bool = False
    max_pages: int | None = None

    def __post_init__(self) -> None:
        """Refuses a cap on somebody else's store, and one without a store."""
        if self.max_pages and self.backend is PrefixCacheBackend.NONE:
            raise StoreOptionsError(
                "--prefix-cache-max-pages caps a store, and with --prefix-cache-backend none "
                "there is none"
            )
        if self.max_pages and not self.start:
            raise StoreOptionsError(
                "--prefix-cache-max-pages caps a store of this command's own (--start-store); "
                "the store that is there has its own cap: kvstore-server --tier1-bytes"
            )

    @property
    def used(self) -> bool:
        """Whether there is a store at all."""
        return self.backend is not PrefixCacheBackend.NONE and self.max_pages != 0

    @property
    def asked(self) -> bool:
        """Whether the user named a store, and did not just leave room for one."""
        return self.used and (self.start or self.runtime_dir is not None)


class ServeStore:
    """Finds the store, or starts one when the first model says how large its pages are.

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
        """The store's folder, where there is one or may come to be one."""
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
