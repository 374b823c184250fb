"""Reads the files of an operator: only regular ones, and only those that others cannot change."""

import os
import stat
from pathlib import Path
from typing import NamedTuple


class NoRegularFile(ValueError):
    """The path is not a regular file, but for example a pipe or a device."""


class RegularFile(NamedTuple):
    """A file's content, and its status when it was read."""

    content: bytes
    status: os.stat_result


def read_regular(path: Path) -> RegularFile:
    """Returns a regular file. Never waits for a writer, as reading a pipe would.

    Raises :class:`NoRegularFile`, and ``OSError`` if the file cannot be read.
    """
    with open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NoRegularFile(f"{path} is no regular file")
        return RegularFile(file.read(), status)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


# Others than the owner and its group get nothing, the group may read: root's files for a service.
SECRET = stat.S_IWGRP | stat.S_IRWXO
# Anybody may read what holds no secret.
TRUSTED = stat.S_IWGRP | stat.S_IWOTH
ROOT_UID = 0


class UntrustedFile(ValueError):
    """The file cannot be read, or other users can read or change it."""


def read_private(path: Path, *, secret: bool) -> bytes:
    """Returns the content of a file that other users cannot change, or read if it is ``secret``.

    Raises :class:`UntrustedFile` if the file cannot be read or is no regular file. Raises it too
    if the file belongs to neither root nor this process's user, or if its mode permits others too
    much. The checked file is the one that is read, also if the path is moved meanwhile.
    """
    try:
        content, status = read_regular(path)
    except NoRegularFile as error:
        raise UntrustedFile(str(error)) from error
    except OSError as error:
        raise UntrustedFile(f"{path}: {error.strerror}") from error
    if status.st_uid not in (ROOT_UID, os.geteuid()):
        raise UntrustedFile(f"{path} belongs to uid {status.st_uid}, who could change it")
    if open_bits := stat.S_IMODE(status.st_mode) & (SECRET if secret else TRUSTED):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        more = "read it" if secret and not open_bits & TRUSTED else "change it"
        wanted = "640" if secret else "644"
        raise UntrustedFile(
            f"{path} has mode {mode}: others can {more}; chmod {wanted} it, or less"
        )
    return content
