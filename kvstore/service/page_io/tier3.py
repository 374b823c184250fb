"""Tier 3 as a whole: writes, reads and removals over its page stores."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from threading import Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache, Removed
from kvstore.core.index.path_hashes import PathHashes
from kvstore.core.pool.arena import Arena
from kvstore.service.clock import Clock
from kvstore.service.page_io.disk_reader import Loader
from kvstore.service.page_io.disk_writer import Keeper
from kvstore.service.page_io.loads.load_source import LoadUse
from kvstore.service.page_io.pin_refresher import PinUse, pin_refreshers
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.service.page_io.removals import Removals
from kvstore.service.page_io.silent_losses import SilentLosses
from kvstore.service.page_io.slow_tier import SlowTier, TierKind, TierUse
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.page_store import PageKey


class PageStoreUse(NamedTuple):
    """The content of one page store, the loads from it, and the refreshes of named pins in it."""

    kind: TierKind
    tier: TierUse
    loads: LoadUse
    pins: PinUse = PinUse()


class Tier3Use(NamedTuple):
    """The content of tier 3 and its loads.

    ``disk`` is the page store of this host, ``bandwidth`` that of its loads in bytes a second, 0
    before the first, and ``declined_count`` counts its loads that were not worth their time.
    ``page_stores`` are all that are present, in the order in which they are asked.
    """

    disk: TierUse
    bandwidth: float
    declined_count: int
    page_stores: tuple[PageStoreUse, ...] = ()

    @property
    def remote(self) -> PageStoreUse | None:
        """The page store that other hosts use too, or None."""
        return next((each for each in self.page_stores if each.kind is TierKind.REMOTE), None)


class Tier3:
    """The parts of tier 3, over its page stores. Without one they do nothing. Thread-safe."""

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        tiers: Items[SlowTier],
        clock: Clock,
        took: Callable[[Arena], None],
        revise: Callable[[bytes, int], Removed],
    ) -> None:
        """Makes the tier; ``revise`` is as ``Removals`` takes it."""
        self.tiers = tuple(tiers) or (SlowTier(),)
        self._present = [each for each in self.tiers if each.page_store is not None]
        written = [each for each in self._present if each.is_written]
        self.keepers = [
            Keeper(cache, mutex, memory=memory, tier=each, clock=clock, keeper_count=len(written))
            for each in written
        ]
        self.loader = Loader(cache, mutex, memory=memory, tiers=self.tiers, clock=clock, took=took)
        self.removals = Removals(cache, mutex, self.tiers, revise)
        self.pin_refreshers = pin_refreshers(cache, mutex, self.tiers, clock, self.note)
        self.silent_losses = SilentLosses(cache, mutex, self.tiers, clock)
        self._cache = cache
        self._mutex = mutex
        for each in self._present:
            assert each.page_store is not None  # by its list
            each.page_store.lost = partial(self._lost, number=each.number)
            if not each.is_written:
                cache.write_nothing(each.number)

    @property
    def about(self) -> RemoteFacts | None:
        """Facts about the engine of the page store that other hosts use too, if there are any."""
        return next((each.about for each in self._present if each.is_shared), None)

    @property
    def present(self) -> bool:
        """True if tier 3 exists. It may fail later."""
        return bool(self._present)

    def note(self) -> None:
        """Wakes the threads that write pages, after touches of pages; under the store's mutex."""
        for each in self.keepers:
            each.note()

    def leading_tokens(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> int:
        """Returns how many leading tokens of a sequence are stored for good, in whole pages.

        Asks each page store for the pages after those that the one before it has. Raises
        NamespaceNotFound.
        """
        usable = [each for each in self._present if each.usable() is not None]
        if not usable:
            return 0
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            digest, width = namespace.digest, namespace.index.width
        hashes = PathHashes(0, digest, tokens[: len(tokens) // width * width], width)
        end = 0
        for each in usable:
            end += each.look(digest, map(hashes.name, range(end + 1, hashes.end + 1)))
        return end * namespace.layout.page_tokens

    def use(self) -> Tier3Use:
        """Returns the current content."""
        page_stores = tuple(
            PageStoreUse(each.kind, each.use(), loads, self._pins_of(each))
            for each, loads in zip(self._present, self.loader.uses(), strict=True)
        )
        own = next((each for each in page_stores if each.kind is TierKind.SLAB), None)
        if own is None:
            disk = next((each for each in self.tiers if not each.is_shared), SlowTier())
            return Tier3Use(disk.use(), 0.0, 0, page_stores)
        loads = own.loads
        return Tier3Use(own.tier, loads.bandwidth, loads.declined_count, page_stores)

    def _pins_of(self, tier: SlowTier) -> PinUse:
        refresher = self.pin_refreshers.get(tier.number)
        return PinUse() if refresher is None else refresher.use()

    def step(self) -> None:
        """Does what is due about each second, on one thread."""
        self.loader.note_time()
        self.silent_losses.step()

    def _lost(self, keys: Items[PageKey], number: int) -> None:
        """Allows pages that a page store lost to be written to it again."""
        with self._mutex:
            self._cache.forget_kept({each.namespace for each in keys}, number)
