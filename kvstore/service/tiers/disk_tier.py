"""Tier 3 as a whole: what goes there, what comes back, and what it has to forget."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from threading import Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.disk import RemovedPrefix
from kvstore.core.values.page_hash import page_digests
from kvstore.service.clock import Clock
from kvstore.service.tiers.disk import REMOVAL_PATIENCE, Disk, DiskUse
from kvstore.service.tiers.disk_reader import Loader
from kvstore.service.tiers.disk_writer import Keeper
from kvstore.storage.slab.header import PageKey
from kvstore.storage.slab.policy import SecondTouch, WriteAdmission
from kvstore.storage.tiers import Tiers


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
        """Returns once what was removed before cannot return, whoever removed it.

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


# Pages touched once that are remembered: some 200 bytes each.
REMEMBERED_TOUCHES = 1 << 18


class Tier3Use(NamedTuple):
    """What tier 3 has, and how loads go: ``bandwidth`` in bytes a second, 0 before the first."""

    disk: DiskUse
    bandwidth: float
    declined_count: int


class Tier3:
    """The parts of tier 3, over one disk. Without a disk all of them do nothing. Thread-safe."""

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        disk: Disk,
        clock: Clock,
        took: Callable[[Arena], None],
        admission: WriteAdmission | None = None,
    ) -> None:
        """Without ``admission`` pages are written at their second touch."""
        if admission is None:
            admission = SecondTouch(REMEMBERED_TOUCHES)
        self.keeper = Keeper(
            cache, mutex, memory=memory, disk=disk, admission=admission, clock=clock
        )
        self.loader = Loader(cache, mutex, memory=memory, disk=disk, clock=clock, took=took)
        self.removals = Removals(cache, mutex, disk)
        self._cache = cache
        self._mutex = mutex
        self._disk = disk
        disk.lost = self._lost

    @property
    def present(self) -> bool:
        """Whether there is one, which may fail later."""
        return self._disk.slab is not None

    def leading_tokens(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> int:
        """Returns how many tokens of a sequence it has for good, in whole pages, from the first on.

        Raises NamespaceNotFound.
        """
        if self._disk.usable() is None:
            return 0
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            digest, width = namespace.digest, namespace.index.width
        whole = tokens[: len(tokens) // width * width]
        count = self._disk.leading(digest, page_digests(digest, whole, width))
        return count * namespace.layout.page_tokens

    def use(self) -> Tier3Use:
        """Returns what it has now."""
        return Tier3Use(self._disk.use(), self.loader.bandwidth, self.loader.declined_count)

    def _lost(self, keys: Items[PageKey]) -> None:
        """Let pages be written again that the disk lost."""
        with self._mutex:
            self._cache.forget_kept({each.namespace for each in keys})
