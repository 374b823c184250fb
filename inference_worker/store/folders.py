"""Folders for a store of a serving process's own: a named one, or a temporary one."""

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
    """Returns the folder that ``$KVSTORE_RUNTIME_DIR`` names; None if it cannot be used.

    It cannot be used if a server holds it, or if a server would refuse it: it is not a folder,
    belongs to another user or is open to others. Raises ``ValueError`` for a path that is too long
    for a socket.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = RuntimeDir(named)
    return folder.path if _is_ours(folder.path) and not _is_held(folder.flock_file) else None


def _is_ours(folder: Path) -> bool:
    """Returns whether a folder belongs to this user only, or does not exist yet."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return mine and not status.st_mode & OTHERS


def _is_held(flock_file: Path) -> bool:
    """Returns whether a process has locked a server's file; it is not locked afterwards."""
    try:
        with flock_file.open("rb") as looked:
            fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


PREFIX: Final = "kvstore-serve-"
# The store's own folder within a temporary one, with its sockets and its lock.
STORE: Final = "run"


class TemporaryFolder:
    """A new folder, locked by this process as long as it lives."""

    def __init__(self) -> None:
        """Makes the folder, and removes those of processes that ended."""
        for each in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _sweep(each)
        self._locked: int | None = None
        while self._locked is None:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            # Another process may remove it before it is locked: then try another name.
            self._locked = _locked(self.path)

    def remove(self) -> None:
        """Removes the folder with all its contents."""
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
    """Locks a path and returns its descriptor; None if it is missing or locked by others."""
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
