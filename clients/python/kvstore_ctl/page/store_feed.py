"""The data of the page, asked of a store once a second."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, TypeVar

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client.admin import Admin
from kvstore_client.errors import StoreError, StoreUnavailable
from kvstore_ctl.page.counter_history import SampleHistory, sample_of
from kvstore_ctl.page.recent_trees import NamespaceTree, Trees

# First tokens of a node that are shown where the operator asked for tokens.
MAX_TOKENS = 24
Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class StoreQueries(Protocol):
    """A connection to a store."""

    def ask(self, call: Callable[[Admin], Result]) -> Result:
        """Returns the result of a call. Raises ``StoreError``."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """One answer of GetStats.

    The page names namespaces and leases by numbers, since their ids are for calls. An object
    keeps its number while it is in each snapshot.
    """

    stats: store_pb2.GetStatsResponse
    namespaces: dict[bytes, int]
    leases: dict[tuple[str, bytes], int]

    def namespace(self, number: int) -> store_pb2.NamespaceInfo | None:
        """Returns the namespace of a number; None if it has left."""
        found = (n for n in self.stats.namespaces if self.namespaces[n.namespace_id] == number)
        return next(found, None)

    def lease(self, number: int) -> lease_pb2.LeaseInfo | None:
        """Returns the lease of a number; None if it has left."""
        found = (each for each in self.stats.leases if self.leases[lease_key(each)] == number)
        return next(found, None)


class Feed:
    """A store's last snapshot, its history and its trees. Thread-safe.

    SampleHistory and numbers begin again when the store restarts.
    """

    def __init__(
        self, store: StoreQueries, clock: Callable[[], float], *, shows_tokens: bool = False
    ) -> None:
        self.shows_tokens = shows_tokens
        self.history = SampleHistory()
        self._store = store
        self._clock = clock
        self._mutex = Lock()
        self._trees = Trees(clock)
        self._snapshot: Snapshot | None = None
        self._answers = False
        self._last_number = 0

    def poll(self) -> None:
        """Asks for a snapshot, once a second. Raises ``StoreError``; :meth:`snapshot` then too."""
        try:
            stats = self._store.ask(lambda admin: admin.stats())
        except StoreError:
            self._answers = False
            raise
        with self._mutex:
            before = self._snapshot
            if before is None or before.stats.store_epoch != stats.store_epoch:
                self.history, self._trees = SampleHistory(), Trees(self._clock)
                self._last_number, before = 0, Snapshot(stats, {}, {})
            namespaces = (each.namespace_id for each in stats.namespaces)
            self._snapshot = Snapshot(
                stats,
                self._numbers(before.namespaces, namespaces),
                self._numbers(before.leases, map(lease_key, stats.leases)),
            )
            self.history.add(sample_of(stats))
            self._answers = True

    def snapshot(self) -> Snapshot:
        """Returns the last snapshot; raises ``StoreUnavailable`` if the store did not answer."""
        snapshot = self._snapshot
        if snapshot is None or not self._answers:
            raise StoreUnavailable("the store does not answer")
        return snapshot

    def tree(self, namespace: store_pb2.NamespaceInfo) -> NamespaceTree:
        """Returns a namespace's tree, a few seconds old; raises ``StoreError``."""
        count = MAX_TOKENS if self.shows_tokens else 0

        def read(admin: Admin) -> NamespaceTree:
            prefixes = admin.prefixes(namespace.namespace_id, max_tokens=count)
            return NamespaceTree(namespace.layout.page_tokens, prefixes)

        return self._trees.get(namespace.namespace_id, lambda: self._store.ask(read))

    def holds(self, lease: lease_pb2.LeaseInfo) -> list[lease_pb2.HoldInfo]:
        """Returns what a lease holds, the oldest first; raises ``StoreError``."""
        return self._store.ask(lambda admin: admin.holds(lease))

    def _numbers(self, before: dict[Key, int], keys: Iterable[Key]) -> dict[Key, int]:
        return {key: before.get(key) or self._next_number() for key in keys}

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number


def lease_key(lease: lease_pb2.LeaseInfo) -> tuple[str, bytes]:
    """Returns the key of a lease: two tenants may choose the same id."""
    return lease.tenant, lease.lease_id
