"""A folder that goes with its process, and what killed ones left, which the next one removes."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvstore_client.runtime_dir import RuntimeDir

PREFIX: Final = "kvstore-serve-"
# In such a folder: where a store has its sockets and its lock.
STORE: Final = "run"


class TemporaryFolder:
    """A new folder, locked by this process as long as it lives."""

    def __init__(self) -> None:
        """Makes it, and removes those of processes that are gone."""
        for each in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _sweep(each)
        self._locked: int | None = None
        while self._locked is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            # Another one may sweep it before it is locked: then there is another name.
            self._locked = _locked(self.path)

    def remove(self) -> None:
        """Removes it with all that is in it."""
        assert self._locked is not None  # since it was made
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._locked)


def _sweep(folder: Path) -> None:
    """Removes a folder of this user that neither a process nor its store has locked."""
    held = [_locked(folder)]
    try:
        if held[0] is None or os.fstat(held[0]).st_uid != os.geteuid():
            return
        flock_file = RuntimeDir(folder / STORE).flock_file
        if flock_file.exists():
            held.append(_locked(flock_file))
        if None not in held:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        for each in held:
            if each is not None:
                os.close(each)


def _locked(path: Path) -> int | None:
    """Locks what is there and returns its descriptor; None where it is gone or another's."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
    return None
