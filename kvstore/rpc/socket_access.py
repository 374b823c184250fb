"""Who may connect to a unix socket: its owner, or a group too."""

import os
from pathlib import Path
from typing import NamedTuple

OWNER_MODE = 0o600
GROUP_MODE = 0o660
UNCHANGED = -1


class SocketAccess(NamedTuple):
    """The owner alone may connect, or with ``group_id`` that group's members too."""

    group_id: int | None = None

    def apply(self, path: Path) -> None:
        """Give a socket its group and mode; raises OSError."""
        if self.group_id is None:
            path.chmod(OWNER_MODE)
            return
        os.chown(path, UNCHANGED, self.group_id)
        path.chmod(GROUP_MODE)
