"""Pages that a page store may have lost without a word, and which are offered to it again."""

from collections.abc import Sequence as Items
from math import ceil
from threading import Lock

from kvstore.core import PrefixCache
from kvstore.service.clock import Clock
from kvstore.service.page_io.slow_tier import SlowTier, TierState

# Seconds in which it is forgotten once what a page store has of each namespace.
FORGET_SECONDS = 60.0


class _Losses:
    """The namespaces to be forgotten for one page store."""

    def __init__(self, tier: SlowTier, now: float) -> None:
        self.tier = tier
        self.was_away = False
        self.looked_at = now
        # The namespaces whose turn has not come.
        self.left: list[bytes] = []


class SilentLosses:
    """Forgets what page stores that lose pages silently are known to have, a share at a time.

    Each touch of a page that is not known to be there offers it again. A page store that comes back
    may have lost all, so all of it is forgotten. For one thread. ``mutex`` is the store's; it
    guards ``cache``.
    """

    def __init__(
        self, cache: PrefixCache, mutex: Lock, tiers: Items[SlowTier], clock: Clock
    ) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock
        now = clock()
        self._losses = [
            _Losses(each, now)
            for each in tiers
            if each.page_store is not None and each.page_store.facts.loses_silently
        ]

    def step(self) -> None:
        """Forgets the share that is due since the step before; to be called about each second."""
        for each in self._losses:
            now, away = self._clock(), each.tier.state is TierState.AWAY
            share = min((now - each.looked_at) / FORGET_SECONDS, 1.0)
            came_back, each.was_away = each.was_away and not away, away
            each.looked_at = now
            with self._mutex:
                disk = self._cache.state.disk
                names = [] if disk is None else list(disk.namespaces)
                each.left = each.left or names
                due = ceil(share * len(names))
                forgotten, each.left = each.left[:due], each.left[due:]
                if came_back:
                    forgotten, each.left = names, []
                self._cache.forget_kept(forgotten, each.tier.number)
