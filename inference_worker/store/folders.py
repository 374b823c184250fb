"""A folder that goes with its process, and what killed ones left, which the next one removes."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from kvstore_client.runtime_dir import RuntimeDir

VARIABLE: Final = "KVSTORE_RUNTIME_DIR"
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def named_folder() -> Path | None:
    """Returns the folder that ``$KVSTORE_RUNTIME_DIR`` names; None where it cannot be had.

    It cannot where a server holds it, where it is no folder, somebody else's or open to others,
    as a server would refuse it. Raises ``ValueError`` for a path too long for a socket.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = RuntimeDir(named)
    return folder.path if _is_ours(folder.path) and not _is_held(folder.flock_file) else None


def _is_ours(folder: Path) -> bool:
    """Returns whether a folder is this user's alone, or not there yet."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not status.st_mode & OTHERS


def _is_held(flock_file: Path) -> bool:
    """Returns whether a process has a server's file locked; it is not locked after."""
    try:
        with flock_file.open("rb") as looked:
            fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
