"""The tiers beyond tier 1 in a replay: moves made at once, and a slab's tier 3."""

from collections import Counter
from dataclasses import dataclass, field

from kvstore.core.cache import PrefixCache
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.requests import Caller, MatchOptions, Sequence
from support.replay.slab import REMEMBERED, ReplaySlab

# The same as in the store's mover and keeper.
BATCH_PAGES = 256
ROUNDS = 64


@dataclass(frozen=True)
class Beyond:
    """The sizes of the tiers beyond the first, in pages, and how tier 2 is used."""

    lower: int = 0
    third: int = 0
    policy: TierPolicy = field(default_factory=TierPolicy)


class ReplayTiers:
    """Does between requests, without bytes, what the store does beside them."""

    def __init__(self, cache: PrefixCache, caller: Caller, namespace_id: bytes) -> None:
        self._cache = cache
        self._caller = caller
        self._namespace_id = namespace_id
        self._digest = cache.namespaces[namespace_id].digest
        slots = sum(each.slot_count for each in cache.arenas.values())
        self.slab: ReplaySlab | None = None
        self._slots = slots

    def add_slab(self, capacity: int) -> None:
        """Adds a tier 3."""
        self.slab = ReplaySlab(capacity, REMEMBERED * (capacity + self._slots))

    def bring(self, sequence: Sequence, options: MatchOptions) -> dict[int, int]:
        """Loads and promotes pages for a match. Returns how many of them each tier had before."""
        cache = self._cache
        found = Counter(
            dict(cache.peek(self._caller.identity, self._namespace_id, sequence.tokens, 0.0).tiers)
        )
        if self.slab is not None:
            found[3] = self._load(self.slab, sequence)
        most = len(sequence.tokens)
        moves = cache.plan_promotion(self._caller, self._namespace_id, sequence, options, most)
        cache.finish_moves(moves)
        return found

    def settle(self) -> None:
        """Makes the moves between tiers that are due, and stores pages that are worth it."""
        cache, slab = self._cache, self.slab
        for _ in range(ROUNDS):
            before = cache.moves_wanted()
            moves = cache.plan_moves(BATCH_PAGES)
            if not (before or moves):
                break
            cache.finish_moves(moves)
        while slab is not None and (keeps := cache.plan_writes(BATCH_PAGES)):
            lost = slab.lost_count
            cache.finish_writes(keeps, [slab.keep(each) for each in keeps])
            if slab.lost_count > lost:
                cache.forget_kept([self._digest])

    def _load(self, slab: ReplaySlab, sequence: Sequence) -> int:
        """Loads a sequence's pages from tier 3 that the index lacks. Returns their number."""
        cache, caller = self._cache, self._caller
        located = cache.locate(caller, self._namespace_id, sequence)
        count = slab.leading(located)
        if not count:
            return 0
        load = cache.begin_read(caller, self._namespace_id, sequence, count, located)
        if load is None:
            return 0
        slab.read([page.digest for page in load.pages])
        return cache.finish_read(load, len(load.targets))
