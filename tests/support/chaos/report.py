"""The reports of workers to the supervisor: counts, times and wrong pages, a packet each.

What a worker told before it was killed has arrived.
"""

import json
import socket
from collections import Counter
from typing import Any

# A wrong page's text is cut, so that a packet is never too long for its socket.
LONGEST_TEXT = 2_000


class Report:
    """A worker's end, shared by all workers: a packet is whole or not there at all."""

    def __init__(self, ours: socket.socket, name: str) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = ours
        self._name = name
        self._seconds: list[float] = []

    def took(self, seconds: float) -> None:
        """Notes how long the store took for a request."""
        self._seconds.append(round(seconds, 5))

    def wrong(self, where: str, what: object) -> None:
        """Tell at once of a page that does not hold what it should."""
        self._send({"wrong": f"{self._name}: {where}: {what}"[:LONGEST_TEXT]})

    def finding(self, figure: str, what: str) -> None:
        """Tell at once of something that may not be, by its figure in the result."""
        self._send({"figure": figure, "found": f"{self._name}: {what}"[:LONGEST_TEXT]})

    def told(self, what: str) -> None:
        """Tell at once that something was done."""
        self._send({"told": what})

    def struck(self, kind: str) -> None:
        """Tell at once of a fault that this worker lives through."""
        self._send({"struck": kind})

    def send(self) -> None:
        """Tell what was counted since the last time."""
        if self.counts or self._seconds:
            self._send({"counts": dict(self.counts), "seconds": self._seconds})
            self.counts.clear()
            self._seconds.clear()

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps({"name": self._name, **message}).encode())
