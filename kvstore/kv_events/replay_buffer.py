"""The latest batches of an endpoint, for consumers that lost some."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

# Bounds of a buffer. vLLM keeps as many batches.
MOST_BATCHES = 10_000
MOST_BYTES = 64 << 20


class SentBatch(NamedTuple):
    """A batch that was sent: its number, and its bytes."""

    number: int
    payload: bytes


class ReplayBuffer:
    """The latest batches. A batch that begins a snapshot is a base. For one thread."""

    def __init__(self, most_batches: int = MOST_BATCHES, most_bytes: int = MOST_BYTES) -> None:
        self._most_batches = most_batches
        self._most_bytes = most_bytes
        self._bytes = 0
        self._batches: deque[SentBatch] = deque()
        self._base = -1

    def add(self, batch: SentBatch, *, is_base: bool) -> None:
        """Adds a batch, and drops the oldest ones beyond the bounds."""
        if is_base:
            self._base = batch.number
        self._batches.append(batch)
        self._bytes += len(batch.payload)
        while len(self._batches) > self._most_batches or self._bytes > self._most_bytes:
            self._bytes -= len(self._batches.popleft().payload)

    def since(self, number: int) -> Iterator[SentBatch]:
        """Yields the batches from ``number`` on that are left."""
        return (each for each in self._batches if each.number >= number)

    def is_enough(self, number: int) -> bool:
        """Returns True if a consumer that has all before ``number`` has everything after these.

        That is so if none of them was dropped, or if the latest base is here.
        """
        if not self._batches:
            return False
        return self._batches[0].number <= max(number, self._base)
