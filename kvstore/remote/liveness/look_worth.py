"""The worth of a look, by what the looks before it found."""

from collections import OrderedDict
from threading import Lock
from typing import Final

from kvstore.remote.remote_use import LookAnswer
from kvstore.service.clock import Clock
from kvstore.storage.page_store import PageKey

# The first page of a path that was missing is not asked for again so soon.
MISSING_SECONDS: Final = 2.0
MOST_MISSING: Final = 4096
# A namespace of which fewer looks find a page is asked for once in SELDOM looks.
LEAST_HITS: Final = 0.02
SELDOM: Final = 20
# Looks whose outcomes count, about: each outcome weighs one part of so many.
REMEMBERED_LOOKS: Final = 100
MOST_NAMESPACES: Final = 4096
# The newest look's part of the mean latency.
NEWEST: Final = 0.1


class _Record:
    """The share of a namespace's looks that found a page, and the looks left out since one."""

    def __init__(self) -> None:
        # A namespace has to show that it finds nothing.
        self.hits = 1.0
        self.skipped = 0


class LookWorth:
    """The outcomes of looks. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self.latency = 0.0
        """Mean of the seconds that looks took, late ones too."""
        self._clock = clock
        self._mutex = Lock()
        self._missing: OrderedDict[PageKey, float] = OrderedDict()
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def is_worth(self, first: PageKey) -> bool:
        """Returns whether to look for a path by the key of its first page."""
        with self._mutex:
            if self._missing.get(first, 0.0) > self._clock():
                return False
            record = self._records.get(first.namespace)
            if record is None or record.hits >= LEAST_HITS:
                return True
            record.skipped = (record.skipped + 1) % SELDOM
            return not record.skipped

    def note(self, first: PageKey, answer: LookAnswer, seconds: float) -> None:
        """Notes the outcome of a look."""
        with self._mutex:
            self.latency += (seconds - self.latency) * (NEWEST if self.latency else 1.0)
            if answer is LookAnswer.FAILED:
                return
            found = answer is not LookAnswer.MISS
            record = self._records.setdefault(first.namespace, _Record())
            self._records.move_to_end(first.namespace)
            record.hits += (found - record.hits) / REMEMBERED_LOOKS
            if found:
                self._missing.pop(first, None)
            else:
                self._missing[first] = self._clock() + MISSING_SECONDS
                self._missing.move_to_end(first)
            for memory, most in ((self._missing, MOST_MISSING), (self._records, MOST_NAMESPACES)):
                if len(memory) > most:
                    memory.popitem(last=False)

    def note_written(self, key: PageKey) -> None:
        """Notes that this host wrote a page."""
        with self._mutex:
            self._missing.pop(key, None)
