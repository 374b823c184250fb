"""Several ``kvstore-worker serve`` on several stores, until the block ends."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from kvstore_client.testing import running_store, wait_until
from support.loopback import HOST, free_ports

# Seconds for a server to load its model and to serve, of which several start at a time.
START_SECONDS = 300.0
STOP_SECONDS = 60.0
OK = 200


class Server:
    """One ``kvstore-worker serve`` of a tiny model, with one engine. One thread uses it."""

    def __init__(self, store: Path, log: Path, options: Sequence[str]) -> None:
        """Starts it on a store, and does not wait."""
        [self.port] = free_ports(1)
        self.url = f"http://{HOST}:{self.port}"
        self._log = log
        command = [sys.executable, "-m", "inference_worker", "serve", "--store", str(store)]
        command += ["--host", HOST, "--port", str(self.port), "--threads", "1", *options]
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, our own arguments
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait(self) -> None:
        """Waits until it serves; raises ``RuntimeError`` with its log."""
        wait_until(lambda: self._process.poll() is not None or self.is_well(), START_SECONDS)
        if not self.is_well():
            raise RuntimeError(f"no server started:\n{self._log.read_text(errors='replace')}")

    def is_well(self) -> bool:
        """Returns whether it takes requests."""
        return answers(self.port, "/health")

    def metric(self, name: str) -> float:
        """Returns the value of one of its metrics without labels, 0 if it has none."""
        with closing(HTTPConnection(HOST, self.port, timeout=30.0)) as connection:
            connection.request("GET", "/metrics")
            shown = connection.getresponse().read().decode()
        found = [line.split()[-1] for line in shown.splitlines() if line.startswith(f"{name} ")]
        return float(found[0]) if found else 0.0

    def kill(self) -> None:
        """Kills it by SIGKILL; the kernel ends its engine."""
        self._process.kill()
        self._process.wait()

    def drain(self) -> None:
        """Sends SIGTERM, after which it ends its running requests and takes no new one."""
        self._process.terminate()

    def close(self) -> None:
        """Ends it, by force if it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def serving(
    stores: int,
    each: int,
    *,
    model: str,
    longest: int,
    store_options: Callable[[int], Sequence[str]] = lambda _: (),
) -> Iterator[list[Server]]:
    """Runs ``each`` servers on each of several stores; yields them by store.

    ``store_options`` returns a store's options by its number.

    Raises ``RuntimeError`` with the log of a server that does not start.
    """
    options = ("--model", model, "--longest", str(longest))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvstore-")))
        servers = []
        for number in range(stores):
            store = stack.enter_context(running_store(*store_options(number)))
            for place in range(each):
                log = folder / f"server-{number}-{place}.log"
                servers.append(Server(store.runtime_dir, log, options))
                stack.callback(servers[-1].close)
        for server in servers:
            server.wait()
        yield servers


def answers(port: int, path: str) -> bool:
    """Returns whether a port answers a GET with 200."""
    with closing(HTTPConnection(HOST, port, timeout=1.0)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == OK
        except (OSError, HTTPException):
            return False
