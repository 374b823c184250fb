"""Files that decide who is let in, read only where nobody else could have written them."""

import os
import stat
from pathlib import Path

from kvstore.regular_file import NoRegularFile, read_regular

# Others than the owner and its group get nothing, the group may read: root's files for a service.
SECRET = stat.S_IWGRP | stat.S_IRWXO
# Anybody may read what holds no secret.
TRUSTED = stat.S_IWGRP | stat.S_IWOTH
ROOT_UID = 0


class UntrustedFile(ValueError):
    """The file cannot be read, or others can reach into it."""


def read_private(path: Path, *, secret: bool) -> bytes:
    """Return a file's content; ``secret``: others may not even read it.

    Raises :class:`UntrustedFile` where it cannot be read, is no regular file, belongs to
    neither root nor this process's user, or its mode lets others in. What is checked is
    what is read, also where the path is moved meanwhile.
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
