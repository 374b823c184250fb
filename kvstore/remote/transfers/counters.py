"""The counts of a remote store, which its threads add to."""

from collections import Counter
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import TypeVar

from kvstore.remote.remote_use import LookAnswer, Reason, Refusal, Rejection
from kvstore.storage.page_store import StoreCounters

T = TypeVar("T")


@dataclass
class RemoteCounters:
    """Each number only grows. Thread-safe by its methods."""

    looks: Counter[LookAnswer] = field(default_factory=Counter)
    look_seconds: float = 0.0
    read_seconds: float = 0.0
    refused_writes: Counter[Refusal] = field(default_factory=Counter)
    rejected_pages: Counter[Rejection] = field(default_factory=Counter)
    pages: StoreCounters = field(default_factory=StoreCounters)
    mutex: Lock = field(default_factory=Lock)

    def look(self, answer: LookAnswer, seconds: float = 0.0) -> None:
        """Counts a look."""
        with self.mutex:
            self.looks[answer] += 1
            self.look_seconds += seconds

    def refuse(self, reason: Refusal | None) -> None:
        """Counts a page that was not written; without a reason it is there or on its way."""
        with self.mutex:
            self.pages.refused_writes += 1
            if reason is not None:
                self.refused_writes[reason] += 1

    def write(self, size: int) -> None:
        """Counts a written page."""
        with self.mutex:
            self.pages.written_pages += 1
            self.pages.written_bytes += size

    def read(self, count: int, size: int, seconds: float) -> None:
        """Counts a read."""
        with self.mutex:
            self.pages.read_pages += count
            self.pages.read_bytes += size
            self.read_seconds += seconds

    def refuse_read(self) -> None:
        """Counts a read for which no room was left."""
        with self.mutex:
            self.pages.refused_reads += 1

    def reject(self, reason: Rejection, *, is_corrupt: bool) -> None:
        """Counts a value that was not the page."""
        with self.mutex:
            self.rejected_pages[reason] += 1
            self.pages.corrupt_pages += is_corrupt

    def page_counters(self) -> StoreCounters:
        """Returns a copy of the counters that each page store has."""
        with self.mutex:
            return replace(self.pages)


def by_reason(counts: Counter[Reason], reasons: type[Reason]) -> "MappingProxyType[Reason, int]":
    """Returns the count of each reason."""
    return MappingProxyType({each: counts[each] for each in reasons})
