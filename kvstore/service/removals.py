"""Pages that left the index because they may not return: tier 3 forgets them before it is said."""

from threading import Lock

from kvstore.core import PrefixCache
from kvstore.core.pool.disk import RemovedPrefix
from kvstore.service.disk import REMOVAL_PATIENCE, Disk
from kvstore.storage.slab_header import PageKey


class Removals:
    """Has tier 3 forget what the core removed. Thread-safe.

    ``mutex`` is the store's, under which ``cache`` may be used.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, disk: Disk) -> None:
        self._cache = cache
        self._mutex = mutex
        self._disk = disk
        self._settling = Lock()

    def settle(self) -> bool:
        """Return once what was removed before cannot return, whoever removed it.

        False where the disk does not forget it; that is logged, and the alarm. Waits for
        the disk, some seconds at most. Without the store's mutex.
        """
        in_turn = self._settling.acquire(timeout=REMOVAL_PATIENCE)
        try:
            with self._mutex:
                removed = self._cache.take_removed()
            forgotten = not removed or self._forget(removed)
            # Out of turn another may have taken what was removed before, and wait for it still.
            return in_turn and forgotten
        finally:
            if in_turn:
                self._settling.release()

    def _forget(self, removed: list[RemovedPrefix]) -> bool:
        pages = [each for each in removed if each.page_digest is not None]
        return self._disk.remove(
            [PageKey(each.namespace_digest, each.page_digest or b"") for each in pages],
            [each.namespace_digest for each in removed if each.page_digest is None],
            lambda: self._submitted(removed),
        )

    def _submitted(self, removed: list[RemovedPrefix]) -> None:
        with self._mutex:
            self._cache.finish_removed(removed)
