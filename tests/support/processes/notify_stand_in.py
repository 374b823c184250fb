"""A stand-in for systemd: its notify socket with the store of descriptors of one service.

There is no systemd in the environment of the tests. The rules are those of man 3 sd_notify and man
5 systemd.service: what exceeds the store is closed without a word, and a stored descriptor that
hangs up is dropped unless it came with ``FDPOLL=0``.
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Self

from kvstore.holder.holder_process import close_all

# Moves the descriptors in its arguments to where systemd passes them, and becomes the program.
LAUNCHER = """
import fcntl, os, sys
count = int(sys.argv[1])
numbers = [int(each) for each in sys.argv[2 : 2 + count]]
high = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in numbers]
for place, each in enumerate(high, 3):
    os.dup2(each, place)
    os.close(each)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, *sys.argv[2 + count :]])
"""

# Gets the descriptors of a service from the stand-in, and becomes the server in this process.
SERVER_LAUNCHER = """
import fcntl, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passing:
    passing.connect(sys.argv[1])
    names, received, _, _ = socket.recv_fds(passing, 65536, 253)
high = [fcntl.fcntl(each, fcntl.F_DUPFD, 500) for each in received]
for place, each in enumerate(high, 3):
    os.dup2(each, place)
    os.close(each)
os.environ |= {
    "LISTEN_PID": str(os.getpid()),
    "LISTEN_FDS": str(len(high)),
    "LISTEN_FDNAMES": names.decode().strip(),
    "NOTIFY_SOCKET": sys.argv[2],
    "FDSTORE": sys.argv[3],
}
os.execv(sys.executable, [sys.executable, "-m", "kvstore", *sys.argv[4:]])
"""


class NotifyStandIn:
    """A service manager for one service, with a place for ``most`` descriptors.

    ``stored`` has name, descriptor and whether its hanging up drops it, the latest first.
    """

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        self.stored: list[tuple[str, int, bool]] = []
        self._most = most
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._passing = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._passing.bind(f"{path}.passing")
        self._passing.listen()
        self._threads = [Thread(target=each, daemon=True) for each in (self._serve, self._pass)]

    def program(self) -> tuple[str, ...]:
        """Returns the program that starts kvstore-server as the service's next process."""
        return ("-c", SERVER_LAUNCHER, f"{self.path}.passing", str(self.path), str(self._most))

    def environment(self) -> dict[str, str]:
        """Returns what the service gets."""
        return {"NOTIFY_SOCKET": str(self.path), "FDSTORE": str(self._most)}

    def run(self, *arguments: str) -> str:
        """Runs Python as the service's next process, and returns its output."""
        self.drop_hung_up()
        numbers = [str(each) for _, each, _ in self.stored]
        passed = {
            "LISTEN_FDS": str(len(self.stored)),
            "LISTEN_FDNAMES": ":".join(name for name, _, _ in self.stored),
        }
        return subprocess.run(
            [sys.executable, "-c", LAUNCHER, str(len(numbers)), *numbers, *arguments],
            env={**os.environ, **self.environment(), **passed},
            pass_fds=[int(each) for each in numbers],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def drop_hung_up(self) -> None:
        """Drops what hung up, as systemd does at once."""
        for each in [each for each in self.stored if each[2]]:
            waiting = select.poll()
            waiting.register(each[1], 0)
            if waiting.poll(0):
                self.stored.remove(each)
                os.close(each[1])

    def _serve(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 253)
            if not message:
                return
            fields = dict(line.split("=", 1) for line in message.decode().splitlines())
            name = fields.get("FDNAME", "stored")
            if "FDSTORE" in fields:
                self._store(name, descriptors, polled=fields.get("FDPOLL") != "0")
            else:
                if "FDSTOREREMOVE" in fields:
                    close_all(each for found, each, _ in self.stored if found == name)
                    self.stored = [each for each in self.stored if each[0] != name]
                close_all(descriptors)

    def _pass(self) -> None:
        """Gives each process that asks all that is stored. The one before it MUST be dead."""
        while True:
            try:
                connection, _ = self._passing.accept()
            except OSError:
                return  # closed
            self.drop_hung_up()
            names = ":".join(name for name, _, _ in self.stored)
            with connection:
                # An empty message would be the end of the connection.
                message = [f"{names}\n".encode()]
                socket.send_fds(connection, message, [each for _, each, _ in self.stored])

    def _store(self, name: str, descriptors: Sequence[int], *, polled: bool) -> None:
        for each in descriptors:
            if len(self.stored) < self._most:
                self.stored.insert(0, (name, each, polled))
            else:
                os.close(each)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", str(self.path))
        self._passing.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join()
        self._socket.close()
        self._passing.close()
        Path(f"{self.path}.passing").unlink()
        close_all(each for _, each, _ in self.stored)
