"""Programs that start at once: their imports, which take seconds, were done before."""

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

SERVER = Path(__file__).with_name("preloaded_server.py")


class Preloaded:
    """Runs ``python -m module`` again and again, each time in a fork of one that imported it.

    A context manager. One thread uses it; one program runs at a time.
    """

    def __init__(
        self,
        *modules: str,
        forget: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Imports ``modules``; each program imports those of the packages ``forget`` anew.

        ``environment`` comes over this process's own, for what is read as Python begins.
        """
        self._forget = [*forget]
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(other.fileno()), *modules],
                pass_fds=[other.fileno()],
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def run(
        self,
        module: str,
        *arguments: str,
        given: str = "",
        path: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        timeout: float,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program to its end; raises ``TimeoutError``, and it is killed then."""
        order = {
            "module": module,
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "path": [str(each) for each in path],
            "folder": str(folder or Path.cwd()),
            "forget": self._forget,
        }
        with (
            tempfile.TemporaryFile("w+") as words,
            tempfile.TemporaryFile("w+") as output,
            tempfile.TemporaryFile("w+") as errors,
        ):
            words.write(given)
            words.seek(0)
            streams = [each.fileno() for each in (words, output, errors)]
            socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
            self._socket.settimeout(timeout)
            answer = self._socket.recv(4)
            assert answer, "the process that forks has ended"
            (status,) = struct.unpack("=i", answer)
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(
                [module, *arguments], status, output.read(), errors.read()
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        if error is not None:
            self._process.kill()
        self._process.wait()
