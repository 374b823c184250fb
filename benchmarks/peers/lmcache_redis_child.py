"""LMCache's client of Redis, controlled by lines.

It runs in LMCache's environment, in a process of its own, and imports nothing of ours. Each line on
stdin is a JSON object with ``do``. Each gets one line on the stdout that the process was started
with. LMCache's own output goes to stderr.

The client is the one of LMCache's ``resp://`` backend: its native threads write from memory and
read into it. The backend's own copies between that memory and torch's tensors are left out.
"""

import asyncio
import hashlib
import json
import mmap
import os
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from lmcache.v1.storage_backend.native_clients.resp_client import RESPClient


class Worker:
    """The calls that the benchmark may make. ``loop`` is used by one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._client: Any = None
        self._source: list[memoryview] = []
        self._target: list[memoryview] = []

    def open(self, line: dict[str, Any]) -> dict[str, Any]:
        """Connects, and loads the pages of the file ``payload`` into memory."""
        payload = Path(line["payload"]).read_bytes()
        self._client = RESPClient("127.0.0.1", line["port"], line["threads"], self._loop)
        for pages in (self._source, self._target):
            region = memoryview(mmap.mmap(-1, len(payload)))
            size = line["page_bytes"]
            pages += [region[at : at + size] for at in range(0, len(payload), size)]
            # The memory exists before it is measured.
            region[:] = payload
        return {}

    def write(self, line: dict[str, Any]) -> dict[str, Any]:
        """Writes all pages under names of a turn."""
        return self._timed(self._client.batch_set(names(line, len(self._source)), self._source))

    def read(self, line: dict[str, Any]) -> dict[str, Any]:
        """Reads the pages of a turn into cleared memory. Returns their digest, too."""
        for page in self._target:
            page[:] = bytes(page.nbytes)
        found = self._timed(self._client.batch_get(names(line, len(self._target)), self._target))
        digest = hashlib.sha256()
        for page in self._target:
            digest.update(page)
        return found | {"digest": digest.hexdigest()}

    def look(self, line: dict[str, Any]) -> dict[str, Any]:
        """Asks for the first ``count`` names of a turn. Returns how many exist."""
        call = self._client.batch_exists(names(line, line["count"]))
        found = self._timed(call)
        return found | {"found": sum(found.pop("result"))}

    def fill(self, line: dict[str, Any]) -> dict[str, Any]:
        """Writes ``count`` small values under names of a turn."""
        small = memoryview(bytearray(line["page_bytes"]))
        self._timed(self._client.batch_set(names(line, line["count"]), [small] * line["count"]))
        return {}

    def _timed(self, call: Coroutine[Any, Any, Any]) -> dict[str, Any]:
        processor, began = time.process_time(), time.perf_counter()
        result = self._loop.run_until_complete(call)
        seconds = time.perf_counter() - began
        answer = {"seconds": seconds, "processor": time.process_time() - processor}
        return answer if result is None else answer | {"result": list(result)}


def names(line: dict[str, Any], count: int) -> list[str]:
    """Returns the names of a turn's first pages."""
    return [f"lmcache@{line['turn']}@{number:040x}" for number in range(count)]


def main() -> None:
    """Answers lines until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = Worker(loop)
    for text in sys.stdin:
        line = json.loads(text)
        answers.write(json.dumps(getattr(worker, line["do"])(line)) + "\n")


if __name__ == "__main__":
    main()
