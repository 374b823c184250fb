"""The tiers beyond tier 1 in a replay: moves made at once, and a page store without bytes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from kvstore.core.cache import PrefixCache
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.tiers.disk_reads import Located
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.core.values.requests import Caller, MatchOptions, Sequence
from support.replay.slab import REMEMBERED, ReplaySlab

# The same as in the store's mover and keeper.
BATCH_PAGES = 256
ROUNDS = 64


class ReplayStore(Protocol):
    """A page store of a replay: a slab, or a host's view of a remote pool."""

    @property
    def write_count(self) -> int:
        """Number of pages written."""
        ...

    def leading(self, located: Located) -> int:
        """Returns the number of consecutive pages, from the first on, that could be loaded."""
        ...

    def read(self, located: Located, count: int) -> None:
        """Records that the first ``count`` pages were read."""
        ...

    def keep(self, keep: DiskWrite) -> int:
        """Writes a path's worthy pages. Returns the end of the pages that are all stored."""
        ...

    def forgets(self) -> bool:
        """Returns True if the core must ask anew which pages are stored, and resets that."""
        ...


@dataclass(frozen=True)
class Beyond:
    """The tiers beyond the first, with sizes in pages, and how tier 2 is used.

    Tier 3 is a slab of ``third`` pages, or ``shared``.
    """

    lower: int = 0
    third: int = 0
    policy: TierPolicy = field(default_factory=TierPolicy)
    shared: ReplayStore | None = None

    @property
    def page_stores(self) -> int:
        """Number of page stores."""
        return int(self.third > 0 or self.shared is not None)


class ReplayTiers:
    """Does between requests, without bytes, what the store does beside them."""

    def __init__(
        self, cache: PrefixCache, caller: Caller, namespace_id: bytes, beyond: Beyond
    ) -> None:
        self._cache = cache
        self._caller = caller
        self._namespace_id = namespace_id
        self._digest = cache.namespaces[namespace_id].digest
        self.store = beyond.shared
        if beyond.third:
            slots = beyond.third + sum(each.slot_count for each in cache.arenas.values())
            self.store = ReplaySlab(beyond.third, REMEMBERED * slots)

    def bring(self, sequence: Sequence, options: MatchOptions) -> dict[int, int]:
        """Loads and promotes pages for a match. Returns how many of them each tier had before."""
        cache = self._cache
        found = Counter(
            dict(cache.peek(self._caller.identity, self._namespace_id, sequence.tokens, 0.0).tiers)
        )
        if self.store is not None:
            found[3] = self._load(self.store, sequence)
        most = len(sequence.tokens)
        moves = cache.plan_promotion(self._caller, self._namespace_id, sequence, options, most)
        cache.finish_moves(moves)
        return found

    def settle(self) -> None:
        """Makes the moves between tiers that are due, and stores pages that are worth it."""
        cache, store = self._cache, self.store
        for _ in range(ROUNDS):
            before = cache.moves_wanted()
            moves = cache.plan_moves(BATCH_PAGES)
            if not (before or moves):
                break
            cache.finish_moves(moves)
        while store is not None:
            if store.forgets():
                cache.forget_kept([self._digest])
            if not (keeps := cache.plan_writes(BATCH_PAGES)):
                break
            cache.finish_writes(keeps, [store.keep(each) for each in keeps])

    def _load(self, store: ReplayStore, sequence: Sequence) -> int:
        """Loads a sequence's pages from tier 3 that the index lacks. Returns their number."""
        cache, caller = self._cache, self._caller
        located = cache.locate(caller, self._namespace_id, sequence)
        count = store.leading(located)
        if not count:
            return 0
        load = cache.begin_read(caller, self._namespace_id, sequence, count, located)
        if load is None:
            return 0
        store.read(located, len(load.targets))
        return cache.finish_read(load, len(load.targets))
