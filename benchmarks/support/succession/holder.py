"""A holder's process, which may be killed and started again."""

import subprocess
import sys
from pathlib import Path

from kvstore.holder.holder_process import SOCKET_NAME
from kvstore_client.testing import wait_until

START_TIMEOUT = 30.0


class Holder:
    """A ``kvstore-holder`` in a folder of its own. One thread uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the holder, and waits until it accepts connections."""
        command = [sys.executable, "-m", "kvstore.holder", str(self.folder)]
        (self.folder / SOCKET_NAME).unlink(missing_ok=True)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  # ours
        if not wait_until((self.folder / SOCKET_NAME).exists, START_TIMEOUT):
            self.kill()
            raise RuntimeError("the holder does not start")

    def kill(self) -> None:
        """Kills the holder. Memory that no other process has is gone. Can be repeated."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
