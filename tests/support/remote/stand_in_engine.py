"""An engine without deadlines, revisions, lists and expiry, as Mooncake is: for helpers alone.

Its values are files, so helpers share them. It hangs, crashes and answers late on demand.
"""

import os
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from kvstore.remote.engine import EngineCapabilities, EngineNodes, ReadResult
from kvstore.remote.errors import EngineRefused, RemoteError
from kvstore.remote.finding import EngineFinding

CAPABILITIES = EngineCapabilities(
    exists_in_one_trip=True,
    expires=False,
    revisions=False,
    lists=False,
    most_bytes=1 << 30,
    best_bytes=1,
    registered_memory=True,
    keeps_deadlines=False,
)


class StandInEngine:
    """An engine on a folder. ``gate`` and ``crash`` are names of files in it.

    A call that begins while ``gate`` is there, a named pipe, waits until somebody opens the pipe
    to write, whatever its deadline is. The process ends at a call that finds ``crash``, which it
    removes. A pipe ``gate_of`` a name holds its reads.
    """

    capabilities = CAPABILITIES

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Looks for files."""
        del deadline
        self._begin()
        return [self._path(name).exists() for name in names]

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Reads files."""
        del deadline
        self._begin()
        for name, buffer in zip(names, into, strict=True):
            try:
                content = self._path(name).read_bytes()
            except FileNotFoundError:
                yield ReadResult.MISSING
                continue
            if len(content) != buffer.nbytes:
                yield ReadResult.WRONG_SIZE
                continue
            half = len(content) // 2
            buffer[:half] = content[:half]
            self._wait(gate_of(self._folder, name))
            buffer[half:] = content[half:]
            yield ReadResult.READ

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Writes files, each to another name first."""
        del lives_ms, deadline
        self._begin()
        for name, value in zip(names, values, strict=True):
            unfinished = self._path(name).with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(value)
            unfinished.rename(self._path(name))
            yield None

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Does nothing."""
        del names, lives_ms, deadline
        self._begin()

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Refuses."""
        raise EngineRefused(f"no control values, so no {name!r} by {deadline}")

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Refuses."""
        del value, life_ms, only_if_absent
        raise EngineRefused(f"no control values, so no {name!r} by {deadline}")

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Removes files."""
        del deadline
        self._begin()
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def time_ms(self, deadline: float) -> int:
        """Returns this host's clock."""
        del deadline
        self._begin()
        return int(time.time() * 1000)

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Answers."""
        del deadline
        self._begin()

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Has no settings."""
        del deadline
        self._begin()
        return []

    def close(self) -> None:
        """Has nothing to end."""

    def _begin(self) -> None:
        crash = self._folder / "crash"
        if crash.exists():
            crash.unlink()
            os._exit(11)
        self._wait(self._folder / "gate")

    @staticmethod
    def _wait(gate: Path) -> None:
        try:
            # Returns when the test opens the other end.
            gate.open("rb").close()
        except FileNotFoundError:
            return

    def _path(self, name: bytes) -> Path:
        return _path(self._folder, name)


def gate_of(folder: Path, name: bytes) -> Path:
    """Returns the path of a pipe that holds reads of a value, once half of it is read."""
    return _path(folder, name).with_suffix(".gate")


def _path(folder: Path, name: bytes) -> Path:
    return folder / f"v{sha256(name).hexdigest()}"
