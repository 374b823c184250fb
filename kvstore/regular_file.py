"""An operator's files, read whole, where they are files: what a pipe has may never end."""

import os
import stat
from pathlib import Path
from typing import NamedTuple


class NoRegularFile(ValueError):
    """The path is a pipe's or a device's."""


class RegularFile(NamedTuple):
    """A file's content, and what it was as that was read."""

    content: bytes
    status: os.stat_result


def read_regular(path: Path) -> RegularFile:
    """Return a regular file; never waits for somebody to write it.

    Raises :class:`NoRegularFile`, and ``OSError`` where it cannot be read.
    """
    with open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NoRegularFile(f"{path} is no regular file")
        return RegularFile(file.read(), status)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
