"""Tier 3 as a whole: what goes there, what comes back, and what it has to forget."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from threading import Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.values.page_hash import page_digests
from kvstore.service.clock import Clock
from kvstore.service.disk import Disk, DiskUse
from kvstore.service.keeper import Keeper
from kvstore.service.loader import Loader
from kvstore.service.removals import Removals
from kvstore.storage.slab_admission import SecondTouch, WriteAdmission
from kvstore.storage.slab_header import PageKey
from kvstore.storage.tiers import Tiers

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
        """Return how many tokens of a sequence it has for good, in whole pages, from the first on.

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
        """Return what it has now."""
        return Tier3Use(self._disk.use(), self.loader.bandwidth, self.loader.declined_count)

    def _lost(self, keys: Items[PageKey]) -> None:
        """Let pages be written again that the disk lost."""
        with self._mutex:
            self._cache.forget_kept({each.namespace for each in keys})
