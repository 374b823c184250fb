"""Lists of leases and of namespaces, a page at a time, while calls go on."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from threading import Lock
from time import sleep
from typing import Generic, NamedTuple, TypeVar

from kvstore.core import Identity, PrefixCache
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.stats import LeaseStats, NamespaceStats, count_pins, lease_stats, namespace_stats
from kvstore.service.clock import Clock

# Leases, or namespaces, that are looked at while all calls wait: a millisecond.
ROWS_AT_ONCE = 64
# Leases whose pins are counted at a time, by their namespaces alone.
HOLDERS_AT_ONCE = 512
# Seconds that the mutex is left alone in between: whoever waits for it gets it.
PAUSE = 0.0005

Row = TypeVar("Row")
Listed = TypeVar("Listed", Lease, Namespace)


class ListPage(NamedTuple, Generic[Row]):
    """Some rows of a list, by number; ``last`` is where to go on after, 0 at the end."""

    rows: list[Row]
    last: int


class Listing:
    """What lists show. Thread-safe; ``mutex`` is the store's, under which ``cache`` may be used.

    Each row is of one moment, and not all are of the same: the mutex is taken for a part of
    them at a time. What goes meanwhile may be in it or not. ``GetStats`` is for a snapshot.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def leases(self, identity: Identity, *, after: int, count: int) -> ListPage[LeaseStats]:
        """Returns up to ``count`` leases that an identity may see, of numbers above ``after``."""
        with self._mutex:
            visible = self._cache.table.visible(identity)
        chosen, last = _page_of(visible, after, count)
        rows: list[LeaseStats] = []
        for part in _parts(chosen, ROWS_AT_ONCE):
            with self._mutex:
                now = self._clock()
                rows += [lease_stats(each, now) for each in part if self._is_held(each)]
        return ListPage(rows, last)

    def namespaces(self, identity: Identity, *, after: int, count: int) -> ListPage[NamespaceStats]:
        """Returns up to ``count`` namespaces that an identity may see, as :meth:`leases` does."""
        with self._mutex:
            visible = self._cache.visible_namespaces(identity)
            holders = self._cache.table.visible(identity)
        chosen, last = _page_of(visible, after, count)
        pins: Counter[bytes] = Counter()
        for holding in _parts(holders, HOLDERS_AT_ONCE):
            with self._mutex:
                count_pins(holding, pins)
        rows: list[NamespaceStats] = []
        for part in _parts(chosen, ROWS_AT_ONCE):
            with self._mutex:
                now = self._clock()
                rows += [namespace_stats(each, pins, now) for each in part if not each.deleted]
        return ListPage(rows, last)

    def _is_held(self, lease: Lease) -> bool:
        return self._cache.table.leases.get((lease.tenant, lease.lease_id)) is lease


def _parts(listed: list[Listed], size: int) -> Iterator[list[Listed]]:
    """Yields what is listed a part at a time, with a moment in between."""
    for first in range(0, len(listed), size):
        if first:
            sleep(PAUSE)
        yield listed[first : first + size]


def _page_of(visible: list[Listed], after: int, count: int) -> tuple[list[Listed], int]:
    found = list(islice((each for each in visible if each.number > after), count + 1))
    return found[:count], found[count - 1].number if len(found) > count else 0
