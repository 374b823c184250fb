"""The calls of administrators: statistics, lists, removals and named pins.

Each call takes the store's mutex for a part of its work at a time. Other calls run between the
parts.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from threading import Lock
from time import sleep
from typing import Generic, NamedTuple, TypeVar

import structlog

from kvstore import background
from kvstore.core import Identity, NamedPinRequest, PrefixCache, Removed
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.stats import (
    HoldStats,
    LeaseStats,
    NamedPinStats,
    NamespaceStats,
    PrefixStats,
    Stats,
    count_pins,
    hold_stats,
    later_nodes,
    lease_stats,
    named_pin_stats,
    namespace_stats,
    prefix_stats,
    snapshot,
    summary,
    with_rows,
)
from kvstore.core.values.event_log import Cause
from kvstore.errors import NamespaceNotFound
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The work of a removal under the mutex at a time, in pages: half a millisecond.
REMOVED_AT_ONCE = 256
# Leases, namespaces or nodes read under the mutex at a time: one millisecond at most.
ROWS_AT_ONCE = 64
# Pins and reservations that are read under the mutex at a time: one millisecond. A lease takes as
# long as so many of them.
HOLDS_AT_ONCE, LEASE_WORK = 1000, 16
# Leases whose pins are counted at a time, by their namespaces alone.
HOLDERS_AT_ONCE = 512
NOTHING = Removed(0, 0)


class Administration:
    """Statistics, lists and removals, under the mutex that all calls of a store share."""

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def responds(self, timeout: float) -> bool:
        """Returns whether the mutex was free within ``timeout`` seconds."""
        if not self._mutex.acquire(timeout=timeout):
            return False
        self._mutex.release()
        return True

    def evict_prefix(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> Removed:
        """Removes all pages that hold a prefix's last token, and every page below them.

        A large removal takes the mutex for one part at a time. Calls between two parts find the
        pages that are left.
        """
        before = self._thin(identity, namespace_id, tokens, Cause.REMOVED)
        with self._mutex:
            self._cache.events.now = self._clock()
            return before.plus(self._cache.evict_prefix(identity, namespace_id, tokens))

    def delete_namespace(self, identity: Identity, namespace_id: bytes) -> Removed:
        """Removes a namespace with all its pages; raises NamespaceNotFound.

        A large namespace is removed part by part, as in ``evict_prefix``.
        """
        before = self._thin(identity, namespace_id, b"", Cause.NAMESPACE_DELETED)
        with self._mutex:
            self._cache.events.now = self._clock()
            return before.plus(self._cache.delete_namespace(identity, namespace_id))

    def revise(self, namespace_digest: bytes, number: int) -> Removed:
        """Removes all pages of a namespace, some of which another host removed for all hosts.

        ``namespace_digest`` and ``number`` are those of the core's ``revise``. A large namespace is
        removed part by part, as in ``evict_prefix``. One that is not open has no pages here.
        """
        before = NOTHING
        with self._mutex:
            disk = self._cache.state.disk
            namespace = None if disk is None else disk.namespaces.get(namespace_digest)
        if namespace is not None:
            owner = Identity(namespace.tenant)
            # It may be deleted meanwhile.
            with suppress(NamespaceNotFound):
                before = self._thin(owner, namespace.namespace_id, b"", Cause.REMOVED)
        with self._mutex:
            self._cache.events.now = self._clock()
            return before.plus(self._cache.revise(namespace_digest, number))

    def _thin(
        self, identity: Identity, namespace_id: bytes, tokens: bytes, cause: Cause
    ) -> Removed:
        """Removes nearly all that ``evict_prefix`` would, part by part; returns what it removed."""
        removed = NOTHING
        with self._mutex:
            count = self._cache.namespace(identity, namespace_id).index.page_count
        # Each part removes at least one page, so new pages cannot make this loop endless.
        for _ in range(count):
            with self._mutex:
                self._cache.events.now = self._clock()
                part = self._cache.thin(identity, namespace_id, tokens, REMOVED_AT_ONCE, cause)
            if part is None:
                break
            removed = removed.plus(part)
            _pause()
        return removed

    def stats(self, identity: Identity) -> Stats:
        """Returns a snapshot of what the identity may see, if that takes about a millisecond.

        Otherwise returns what ``stats_in_parts`` does.
        """
        with self._mutex:
            holders = self._cache.table.visible(identity)
            is_short = len(self._cache.visible_namespaces(identity)) <= ROWS_AT_ONCE
            if is_short and len(next(_by_holds(holders), [])) == len(holders):
                return snapshot(self._cache, identity, self._clock())
        return self.stats_in_parts(identity)

    def stats_in_parts(self, identity: Identity) -> Stats:
        """Returns what ``stats`` does, but each lease and namespace as of a moment of its own.

        Takes the mutex for some of them at a time. Sums are those of the rows.
        """
        with self._mutex:
            holders = self._cache.table.visible(identity)
            visible = self._cache.visible_namespaces(identity)
        leases: list[LeaseStats] = []
        pins: Counter[bytes] = Counter()
        for holding in _by_holds(holders):
            with self._mutex:
                now = self._clock()
                held = [each for each in holding if _is_held(self._cache, each)]
                leases += [lease_stats(each, now) for each in held]
                count_pins(held, pins)
            _pause()
        spaces: list[NamespaceStats] = []
        for part in _parts(visible, ROWS_AT_ONCE):
            with self._mutex:
                now = self._clock()
                spaces += [namespace_stats(each, pins, now) for each in part if not each.deleted]
        with self._mutex:
            rest = summary(self._cache, identity)
        return with_rows(rest, leases, spaces, sums_counters=not identity.admin)

    def holds(self, identity: Identity, lease_id: bytes, tenant: str) -> list[HoldStats]:
        """Returns the holds of a lease, by number; raises LeaseNotFound or InvalidField."""
        with self._mutex:
            lease = self._cache.table.listed(identity, lease_id, tenant)
            return hold_stats(lease, self._clock())

    def prefixes(
        self, identity: Identity, namespace_id: bytes, *, after: int, count: int, max_tokens: int
    ) -> list[PrefixStats]:
        """Returns up to ``count`` nodes of a namespace's tree with numbers above ``after``.

        Takes the mutex for some nodes at a time. Nodes that leave meanwhile may be in it or not.
        """
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
        rows: list[PrefixStats] = []
        while len(rows) < count and (numbers := later_nodes(namespace, after, count - len(rows))):
            for part in _parts(numbers, ROWS_AT_ONCE):
                with self._mutex:
                    rows += prefix_stats(namespace, part, max_tokens)
            after = numbers[-1]
        return rows


Row = TypeVar("Row")
Listed = TypeVar("Listed", Lease, Namespace)
Entry = TypeVar("Entry")


class ListPage(NamedTuple, Generic[Row]):
    """Some rows of a list, by number. ``last`` is the number to continue after; 0 at the end."""

    rows: list[Row]
    last: int


class Listing:
    """The lists of leases and namespaces. Thread-safe.

    ``mutex`` is the store's; it guards ``cache``. Each row is of one moment, but rows may be of
    different moments: the mutex is taken for a part at a time. A row removed meanwhile may be
    listed or not. ``GetStats`` returns a snapshot.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def leases(self, identity: Identity, *, after: int, count: int) -> ListPage[LeaseStats]:
        """Returns up to ``count`` leases with numbers above ``after`` that an identity may see."""
        with self._mutex:
            visible = self._cache.table.visible(identity)
        chosen, last = _page_of(visible, after, count)
        rows: list[LeaseStats] = []
        for part in _parts(chosen, ROWS_AT_ONCE):
            with self._mutex:
                now = self._clock()
                rows += [lease_stats(each, now) for each in part if _is_held(self._cache, each)]
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


def _pause() -> None:
    """Allows other calls to take the mutex."""
    sleep(background.PAUSE)
    background.give_way()


def _is_held(cache: PrefixCache, lease: Lease) -> bool:
    return cache.table.leases.get((lease.tenant, lease.lease_id)) is lease


def _by_holds(leases: list[Lease]) -> Iterator[list[Lease]]:
    """Yields leases in parts of about as many holds."""
    part: list[Lease] = []
    work = 0
    for each in leases:
        part.append(each)
        work += LEASE_WORK + len(each.pins) + len(each.reservations)
        if work >= HOLDS_AT_ONCE:
            yield part
            part, work = [], 0
    if part:
        yield part


def _parts(listed: list[Entry], size: int) -> Iterator[list[Entry]]:
    """Yields the entries of a list a part at a time, with a pause between two parts."""
    for first in range(0, len(listed), size):
        if first:
            _pause()
        yield listed[first : first + size]


def _page_of(visible: list[Listed], after: int, count: int) -> tuple[list[Listed], int]:
    found = list(islice((each for each in visible if each.number > after), count + 1))
    return found[:count], found[count - 1].number if len(found) > count else 0


class NamedPinKeeper:
    """Makes, ends and lists named pins, for any thread. Raises what the core's methods raise.

    ``mutex`` is the store's; it guards ``cache``.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def pin(self, identity: Identity, namespace_id: bytes, request: NamedPinRequest) -> int:
        """Pins the cached whole pages of a prefix; returns how many tokens they hold."""
        with self._mutex:
            return self._cache.pin_prefix(identity, namespace_id, request, self._clock())

    def unpin(self, identity: Identity, namespace_id: bytes, name: str) -> None:
        """Ends a named pin; succeeds if no such pin exists."""
        with self._mutex:
            self._cache.unpin_prefix(identity, namespace_id, name)

    def visible(self, identity: Identity, namespace_id: bytes | None) -> list[NamedPinStats]:
        """Returns the named pins of a namespace, or of all for None, oldest first."""
        with self._mutex:
            now = self._clock()
            pins = self._cache.visible_named_pins(identity, namespace_id)
            return [named_pin_stats(each, now) for each in pins]

    def expire(self) -> None:
        """Ends the named pins past their time to live, and logs a line for each."""
        with self._mutex:
            ended = self._cache.expire_named_pins(self._clock())
        for pin in ended:
            namespace_id = pin.namespace.namespace_id.hex()
            log.info("named_pin_expired", name=pin.name, namespace_id=namespace_id)
