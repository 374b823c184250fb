"""A server for one benchmark: ``kvstore-worker serve`` with a store, until the block ends."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from kvstore_client.testing import wait_until
from support.loopback import HOST, free_ports

# Seconds, as a large model is loaded once for each engine.
START_SECONDS = 300.0
STOP_SECONDS = 60.0


@contextmanager
def own_server(model: str, *, workers: int, longest: int) -> Iterator[str]:
    """Starts the server and yields its base URL. Raises ``RuntimeError`` with its log."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "inference_worker", "serve", "--start-store"]
    command += ["--model", model, "--workers", str(workers), "--longest", str(longest)]
    command += ["--host", HOST, "--port", str(port)]
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own program, our own arguments
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            wait_until(lambda: process.poll() is not None or _is_well(port), START_SECONDS)
            if process.poll() is not None or not _is_well(port):
                raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')}")
            yield f"http://{HOST}:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_well(port: int) -> bool:
    with closing(HTTPConnection(HOST, port, timeout=1.0)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
