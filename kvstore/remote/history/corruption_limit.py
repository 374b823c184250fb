"""A limit of what one host with bad memory can do to the pages of all.

A removal from a shared store removes a namespace for all hosts. After each page that changed in
this host's memory it would come down to emptying the store.
"""

from threading import Lock
from typing import Final

from kvstore.service.clock import Clock

# A namespace is removed for corruption at most once in so many seconds.
PAUSE_SECONDS: Final = 600.0


class CorruptionLimit:
    """The times of removals for corruption, by namespace. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = Lock()
        self._removed: dict[bytes, float] = {}
        self._waiting: set[bytes] = set()

    def take(self, namespace: bytes) -> bool:
        """Returns whether a namespace may be removed now. Otherwise it waits for its time."""
        with self._mutex:
            now = self._clock()
            is_free = now - self._removed.get(namespace, float("-inf")) >= PAUSE_SECONDS
            if is_free:
                self._removed[namespace] = now
            else:
                self._waiting.add(namespace)
            return is_free

    def due(self) -> list[bytes]:
        """Returns the namespaces whose time has come, and forgets what is long ago."""
        with self._mutex:
            now = self._clock()
            old = {each for each, at in self._removed.items() if now - at >= PAUSE_SECONDS}
            due = sorted(self._waiting & old)
            self._waiting.difference_update(due)
            for each in old:
                del self._removed[each]
            self._removed.update(dict.fromkeys(due, now))
            return due
