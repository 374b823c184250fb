"""LMCache's standalone server, and a worker of it that is controlled by lines."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from kvstore_client import PagedContent
from support.fetch.workload import (
    BYTES_TOKENS,
    LARGE,
    PAGE_TOKENS,
    PAGES,
    PEER_ROW,
    SMALL,
    TOKENS,
    Pace,
    Times,
)
from support.loopback import free_ports, listens

VERSION = "0.5.6"
CHILD = Path(__file__).parent / "lmcache_child.py"
START_TIMEOUT = 120.0
LOOK_SECONDS = 0.2
STOP_TIMEOUT = 20.0
# Without these two options bytes are sent as pickles.
SHARED_MEMORY = ("--supported-transfer-mode", "engine_driven", "--no-l1-use-lazy")
SCHEMES = {"zmq": "tcp", "grpc": "grpc"}
SETTINGS = {
    "LMCACHE_DISABLE_BANNER": "1",
    "LMCACHE_LOG_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
}


class LMCachePeer:
    """A worker in a process of its own, of a server in another. One thread uses it."""

    def __init__(self, child: "subprocess.Popen[str]", log: Path) -> None:
        self._child = child
        self._log = log
        self.chunk_tokens = 0

    def ask(self, what: str, **arguments: object) -> dict[str, Any]:
        """Sends a request and returns its answer. Raises ``RuntimeError`` if the worker ends."""
        requests, answers = self._child.stdin, self._child.stdout
        assert requests
        assert answers
        requests.write(json.dumps({"do": what, **arguments}) + "\n")
        requests.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError(f"LMCache's worker ended:\n{_tail(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, url: str, payload: Path) -> str:
        """Connects and caches all prompts. Returns a digest of a fetch's result."""
        engines = {
            "large": _engine(LARGE, PAGES),
            "small": _engine(SMALL, max(TOKENS) // PAGE_TOKENS),
        }
        self.chunk_tokens = self.ask("open", url=url, engines=engines)["chunk_tokens"]
        self.ask("publish", engine="large", tokens=BYTES_TOKENS, payload=str(payload))
        for token_count in TOKENS:
            self.ask("publish", engine="small", tokens=token_count)
        verified = self.ask("verify", engine="large", tokens=BYTES_TOKENS)
        assert verified["tokens_hit"] == BYTES_TOKENS, verified
        return str(verified["digest"])

    def use_threads(self, count: int) -> None:
        """Sets the number of threads with which torch copies, 1 at first."""
        self.ask("threads", count=count)

    def empty(self, pace: Pace) -> Times:
        """Times round trips that do nothing."""
        return self.ask("empty", **pace._asdict())

    def hit(self, pace: Pace, token_count: int) -> Times:
        """Times the control path of a hit: ``whole``, and its part ``lookup``."""
        return self.ask("hit", engine="small", tokens=token_count, **pace._asdict())

    def hits_in_a_row(self, pace: Pace, token_count: int) -> Times:
        """Times consecutive hits, whose ends are sent without waiting. Returns a hit's part."""
        hits = PEER_ROW[token_count]
        return self.ask("row", engine="small", tokens=token_count, hits=hits, **pace._asdict())

    def fetch(self, pace: Pace) -> Times:
        """Times a hit whose bytes are copied into the engine's memory."""
        return self.ask("fetch", engine="large", tokens=BYTES_TOKENS, **pace._asdict())

    def store(self, pace: Pace) -> Times:
        """Times storing as many bytes from the engine's memory."""
        return self.ask("store", engine="large", tokens=BYTES_TOKENS, **pace._asdict())


@contextmanager
def lmcache_peer(
    python: Path, transport: str, chunk_tokens: int
) -> Iterator[tuple[LMCachePeer, str]]:
    """Runs a server and a worker of it. Yields the unconnected worker and the server's url.

    ``python`` is the environment's, ``transport`` is "zmq" or "grpc". Raises ``RuntimeError`` with
    the server's log if it does not start.
    """
    port, http, metrics = free_ports(3)
    name = f"kvstore-bench-{os.getpid()}-{port}"
    command = [
        *(str(python.with_name("lmcache")), "server", "--transport", transport),
        *("--host", "127.0.0.1", "--port", str(port), "--http-port", str(http)),
        *("--prometheus-port", str(metrics), *SHARED_MEMORY, "--shm-name", name),
        *("--l1-size-gb", "1", "--eviction-policy", "LRU", "--chunk-size", str(chunk_tokens)),
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lmcache-")))
        log_path = folder / "log"
        log = stack.enter_context(log_path.open("wb"))
        environment = os.environ | SETTINGS
        # In development it has our folders, which would come before LMCache's.
        environment.pop("PYTHONPATH", None)
        stack.callback(Path("/dev/shm", name).unlink, missing_ok=True)  # noqa: S108  # its name
        server = _start(stack, command, environment, log)
        _wait_listening(server, port, log_path)
        child = _start(stack, [str(python), str(CHILD)], environment, log, piped=True)
        yield LMCachePeer(child, log_path), f"{SCHEMES[transport]}://127.0.0.1:{port}"


def _engine(content: PagedContent, blocks: int) -> dict[str, int]:
    return {
        "layers": content.layer_count,
        "heads": content.kv_head_count,
        "head_dim": content.head_dim,
        "blocks": blocks,
    }


def _start(
    stack: ExitStack,
    command: list[str],
    environment: dict[str, str],
    log: IO[bytes],
    *,
    piped: bool = False,
) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE if piped else None
    process = subprocess.Popen(  # noqa: S603  # our own command line
        command,
        env=environment,
        stdin=pipe or subprocess.DEVNULL,
        stdout=pipe or log,
        stderr=log,
        text=True,
    )
    stack.callback(_stop, process)
    return process


def _stop(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_listening(server: "subprocess.Popen[str]", port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT
    while server.poll() is None and time.monotonic() < end:
        if listens(port):
            return
        time.sleep(LOOK_SECONDS)
    raise RuntimeError(f"LMCache's server did not start:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]
