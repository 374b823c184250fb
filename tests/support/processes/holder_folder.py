"""A holder's process on a folder of a test."""

import shlex
import subprocess
from pathlib import Path
from select import select
from typing import Self

from kvstore.holder.holder_process import FLOCK_NAME, SOCKET_NAME, holder_command

LIMIT = 60.0


class HolderFolder:
    """A folder that a holder serves; as a context manager it starts and ends the holder."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def start(self, before: str = "") -> None:
        """Starts a holder, after commands of the shell; returns once it serves."""
        command = shlex.join(holder_command([str(self.path), *self._options]))
        self._process = subprocess.Popen(
            ["sh", "-c", f"{before} exec {command}"], stderr=subprocess.PIPE, text=True
        )
        line = self.line()
        assert "serves" in line, line

    @property
    def pid(self) -> int:
        """The pid of the holder that serves the folder, whoever started it."""
        return int((self.path / FLOCK_NAME).read_text())

    @property
    def socket(self) -> Path:
        """The holder's socket."""
        return self.path / SOCKET_NAME

    def line(self) -> str:
        """Returns the next line of the log."""
        assert self._process is not None
        assert self._process.stderr is not None
        assert select([self._process.stderr], [], [], LIMIT)[0]
        return self._process.stderr.readline()

    def wait_exit(self) -> int:
        """Returns the exit status of the holder that this object started."""
        assert self._process is not None
        return self._process.wait(LIMIT)

    def kill(self) -> None:
        """Sends SIGKILL to the holder that this object started, and waits for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(LIMIT)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()
