"""LMCache's client of Redis as a way of remote.py, in a process of its own."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from peers.lmcache_peer import SETTINGS, VERSION

CHILD: Final = Path(__file__).parent / "lmcache_redis_child.py"
STOP_SECONDS: Final = 20.0
# Its own default, and as many as our tier reads with.
THREADS: Final = (8, 2)

__all__ = ["THREADS", "VERSION", "LMCacheRedis", "lmcache_redis"]


class LMCacheRedis:
    """A client whose calls are timed in its own process. One thread uses it."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child
        self._digest = ""

    def open(self, port: int, threads: int, pages: Sequence[memoryview], payload: Path) -> None:
        """Connects, and gives it the pages to write."""
        digest = hashlib.sha256()
        with payload.open("wb") as file:
            for page in pages:
                file.write(page)
                digest.update(page)
        self._digest = digest.hexdigest()
        size = pages[0].nbytes
        self._ask("open", port=port, threads=threads, payload=str(payload), page_bytes=size)

    def write(self, turn: str) -> tuple[float, float]:
        """Writes all pages. Returns the seconds and the processor seconds."""
        answer = self._ask("write", turn=turn)
        return answer["seconds"], answer["processor"]

    def read(self, turn: str) -> tuple[float, float]:
        """Reads all pages. Returns the seconds and the processor seconds."""
        answer = self._ask("read", turn=turn)
        assert answer["digest"] == self._digest, "LMCache read other bytes"
        return answer["seconds"], answer["processor"]

    def fill(self, turn: str, count: int, page_bytes: int) -> None:
        """Writes small values for looks."""
        self._ask("fill", turn=turn, count=count, page_bytes=page_bytes)

    def look(self, turn: str, count: int) -> float:
        """Looks names up that all exist. Returns the seconds."""
        answer = self._ask("look", turn=turn, count=count)
        assert answer["found"] == count, answer
        seconds: float = answer["seconds"]
        return seconds

    def _ask(self, what: str, **arguments: object) -> dict[str, Any]:
        requests, answers = self._child.stdin, self._child.stdout
        assert requests
        assert answers
        requests.write(json.dumps({"do": what, **arguments}) + "\n")
        requests.flush()
        line = answers.readline()
        if not line:
            raise RuntimeError("LMCache's process ended; its log is above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def lmcache_redis(python: Path, log: IO[bytes] | None = None) -> Iterator[LMCacheRedis]:
    """Runs a client by the environment's Python; ``log`` gets what it says, stderr without one."""
    environment = os.environ | SETTINGS
    # In development it has our folders, which would come before LMCache's.
    environment.pop("PYTHONPATH", None)
    child = subprocess.Popen(  # noqa: S603  # our own command line
        [str(python), str(CHILD)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield LMCacheRedis(child)
    finally:
        assert child.stdin
        child.stdin.close()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
