"""Where a store of a serving process's own may have its sockets, so that others find it."""

import fcntl
import os
import stat
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
