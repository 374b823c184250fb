"""Namespaces' trees as they were a moment ago, of those that somebody looks at."""

from collections import OrderedDict
from threading import Lock
from typing import Final

from kvstore.core import Identity
from kvstore.page.outline import Outline
from kvstore.page.recent import Recent
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

# Seconds after which a tree is read again; and as often as its reading takes no more than a
# twentieth of the time.
MAX_AGE: Final = 2.0
REST: Final = 19.0
# Trees that are kept: a million nodes take some 200 MB.
MOST: Final = 2


class Trees:
    """Reads trees, not oftener than is worth it, and keeps the last. Thread-safe."""

    def __init__(self, store: KVStore, clock: Clock, identity: Identity) -> None:
        self._store = store
        self._clock = clock
        self._identity = identity
        self._mutex = Lock()
        self._kept: OrderedDict[bytes, Recent[Outline]] = OrderedDict()

    def get(self, namespace_id: bytes) -> Outline:
        """Returns a namespace's tree; raises NamespaceNotFound."""
        with self._mutex:
            if namespace_id not in self._kept:
                self._kept[namespace_id] = self._recent(namespace_id)
            self._kept.move_to_end(namespace_id)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
            kept = self._kept[namespace_id]
        return kept.get()

    def _recent(self, namespace_id: bytes) -> Recent[Outline]:
        def read() -> Outline:
            return Outline(self._store.tree_rows(self._identity, namespace_id))

        return Recent(read, self._clock, max_age=MAX_AGE, rest=REST)
