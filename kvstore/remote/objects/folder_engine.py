"""The remote engine on a folder of a shared file system, by the library obstore.

It needs no server. It expires nothing, so somebody has to delete
old files, and its calls end when the file system answers: a hung one holds them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore

from kvstore.remote.buffers import copy_bytes
from kvstore.remote.engine import (
    MOST_CONTROL_BYTES,
    EngineCapabilities,
    EngineNodes,
    ReadResult,
    require_lives,
)
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineClosed,
    EngineUnreachable,
    RemoteError,
    ReplyMalformed,
)
from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.objects.object_errors import path_of, remote_error

CAPABILITIES: Final = EngineCapabilities(
    exists_in_one_trip=False,
    expires=False,
    revisions=True,
    lists=True,
    most_bytes=1 << 40,
    best_bytes=256 << 10,
    registered_memory=False,
    keeps_deadlines=False,
)
NOTHING_EXPIRES: Final = EngineFinding(
    FindingKind.HITS,
    "expiry",
    "none",
    "A folder expires nothing and grows without bound.",
    "Delete files below kv1 that nobody used for longer than --remote-ttl, by a job of your own.",
)
_CLOCK: Final = "kvr/clock"


def open_folder(folder: str) -> "FolderEngine":
    """Returns the engine of a helper: see :mod:`kvstore.remote.process.helper`."""
    return FolderEngine(Path(folder))


class FolderEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` on a folder. Thread-safe.

    A value is written to a file of its own and renamed, so readers see a whole one. A deadline
    is compared before each value. Lives have no effect.
    """

    capabilities = CAPABILITIES

    def __init__(self, folder: Path) -> None:
        """Opens a folder, which has to exist. Raises :class:`EngineUnreachable`."""
        self._folder = folder
        self._closed = Event()
        try:
            self._identity = _identity(folder)
            self._store = LocalStore(folder)
        except (OSError, BaseError) as error:
            raise EngineUnreachable(f"cannot open the folder {folder}: {error}") from error

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Asks for each name by itself."""
        return [self._exists(name, deadline) for name in names]

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Compares the length of a file before it reads it."""
        for name, buffer in zip(names, into, strict=True):
            content = self._read(name, buffer.nbytes, buffer.nbytes, deadline)
            if isinstance(content, memoryview):
                copy_bytes(buffer, content)
                yield ReadResult.READ
            else:
                yield content

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Writes one file after another."""
        require_lives(lives_ms)
        for name, value in zip(names, values, strict=True):
            with self._call(deadline):
                obstore.put(self._store, path_of(name), value, use_multipart=False)
            yield None

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Does nothing, since nothing expires."""
        del names, lives_ms
        with self._call(deadline):
            return

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Reads a short file."""
        content = self._read(name, 0, MOST_CONTROL_BYTES, deadline)
        if content is ReadResult.WRONG_SIZE:
            raise ReplyMalformed("a control value is too long")
        return bytes(content) if isinstance(content, memoryview) else None

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Creates a file, or replaces it."""
        del life_ms
        mode: Literal["create", "overwrite"] = "create" if only_if_absent else "overwrite"
        with self._call(deadline):
            try:
                obstore.put(self._store, path_of(name), value, use_multipart=False, mode=mode)
            except AlreadyExistsError:
                return False
        return True

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Deletes one file after another."""
        for name in names:
            with self._call(deadline):
                try:
                    obstore.delete(self._store, path_of(name))
                except FileNotFoundError:
                    continue

    def time_ms(self, deadline: float) -> int:
        """Returns the time that the file system gives a file that is written now."""
        with self._call(deadline):
            obstore.put(self._store, _CLOCK, b"", use_multipart=False)
            written = obstore.head(self._store, _CLOCK)["last_modified"]
        return int(written.timestamp() * 1000)

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Returns if the folder is the one that was opened."""
        with self._call(deadline):
            return

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Says that nothing expires."""
        with self._call(deadline):
            return [NOTHING_EXPIRES]

    def close(self) -> None:
        """Refuses later calls. Those under way end by themselves."""
        self._closed.set()

    def _exists(self, name: bytes, deadline: float) -> bool:
        with self._call(deadline):
            try:
                obstore.head(self._store, path_of(name))
            except FileNotFoundError:
                return False
        return True

    def _read(self, name: bytes, least: int, most: int, deadline: float) -> memoryview | ReadResult:
        """Returns a file's content if its length is within bounds."""
        with self._call(deadline):
            try:
                found = obstore.get(self._store, path_of(name))
            except FileNotFoundError:
                return ReadResult.MISSING
            if not least <= found.meta["size"] <= most:
                return ReadResult.WRONG_SIZE
            content = memoryview(found.bytes()).cast("B")
            # It can have been replaced in between.
            return content if least <= content.nbytes <= most else ReadResult.WRONG_SIZE

    @contextmanager
    def _call(self, deadline: float) -> Iterator[None]:
        """Checks what every operation has to, and gives each error its class."""
        if self._closed.is_set():
            raise EngineClosed("the engine was closed")
        if monotonic() >= deadline:
            raise DeadlinePassed("the file system did not answer in time")
        try:
            # A write would create the folder anew, and fill the disk below a lost mount.
            if _identity(self._folder) != self._identity:
                raise EngineUnreachable(f"another folder is at {self._folder}")
            yield
        except (BaseError, OSError) as error:
            raise remote_error(error) from error


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
