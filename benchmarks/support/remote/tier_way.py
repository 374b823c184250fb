"""The tier as a way of remote.py: the store that the server has, over the engine's client."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final

from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.remote_store import RemoteStore
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.valkey_engine import ValkeyEngine
from kvstore.storage.page_store import PageRead, ReadAnswer
from support.remote.pages import PagePath, page_path
from support.remote.ways import LIMIT

SECRET: Final = bytes(range(32))
# As in the server's loads.
RUN_PAGES: Final = 16


class TierWay:
    """The tier as the server has it: names, revisions, seals, checks, queues and deadlines."""

    def __init__(self, address: EngineAddress, folder: Path) -> None:
        settings = RemoteSettings(timeout_seconds=LIMIT, read_seconds=LIMIT, write_seconds=LIMIT)
        engine = ValkeyEngine(address, connections=settings.connection_count)
        self._store = RemoteStore(
            engine, secret=SECRET, state_folder=folder, clock=monotonic, settings=settings
        )
        self._paths: dict[tuple[str, int], PagePath] = {}

    def write(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Submits all pages, and waits until the engine has them."""
        assert self.try_to_write(turn, pages) == len(pages)

    def try_to_write(self, turn: str, pages: Sequence[memoryview]) -> int:
        """Submits all pages; returns how many the engine has once it answered."""
        written: list[bool] = []
        is_over = Event()

        def note(is_written: bool) -> None:  # noqa: FBT001  # as page stores tell
            written.append(is_written)
            if len(written) == len(pages):
                is_over.set()

        for page, content in zip(self._path(turn, len(pages)).writes, pages, strict=True):
            assert self._store.write(page, [content], note, checksum=None)
        assert is_over.wait(LIMIT)
        return sum(written)

    def read(self, turn: str, pages: Sequence[memoryview]) -> None:
        """Reads one path in runs, which are asked for together as the server does."""
        assert self.try_to_read(turn, pages) == len(pages)

    def try_to_read(self, turn: str, pages: Sequence[memoryview]) -> int:
        """Reads one path as ``read`` does; returns how many of its first pages came."""
        keys = self._path(turn, len(pages)).keys
        asked: list[tuple[int, Future[ReadAnswer]]] = []
        for start in range(0, len(pages), RUN_PAGES):
            run = slice(start, start + RUN_PAGES)
            pairs = zip(keys[run], pages[run], strict=True)
            wanted = [PageRead(key, [page]) for key, page in pairs]
            done: Future[ReadAnswer] = Future()
            self._store.read(wanted, done.set_result, monotonic() + LIMIT)
            asked.append((start, done))
        came = 0
        for start, each in asked:
            leading = each.result(LIMIT).leading
            came += leading if came == start else 0
        return came

    def look(self, turn: str, count: int) -> int:
        """Looks a path up."""
        return self._store.look(self._path(turn, count).keys, monotonic() + LIMIT)

    def close(self) -> None:
        """Closes the store, and its engine with it."""
        self._store.close()

    def _path(self, turn: str, count: int) -> PagePath:
        """Returns a turn's path. Its digests are the core's work, and not the tier's."""
        if (turn, count) not in self._paths:
            self._paths[turn, count] = page_path(turn, count)
        return self._paths[turn, count]
