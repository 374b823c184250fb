"""A store of two tiers in this process, whose moves are timed batch by batch."""

import os
from array import array
from itertools import count

from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.policies import POLICIES
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.storage.arenas import Arenas

EPOCH = 1
PAGE_TOKENS = 16
PROCESS = 1


class TierStore:
    """Sequences of ``pages`` pages each, written through to tier 2, promoted by matches."""

    def __init__(self, upper: Arenas, lower: Arenas, *, page_bytes: int, pages: int) -> None:
        self._pages, self._published = pages, 0
        policy = TierPolicy(write=WritePolicy.THROUGH, in_place=False, promote=True, low=0.0)
        self._cache = PrefixCache(EPOCH, Limits(), POLICIES["lru"], tier_policy=policy)
        self._store = KVStore(self._cache, arenas=upper, lower=lower, clock=MONOTONIC)
        self._caller = Caller(Identity("benchmark"), bytes(16), b"secret", EPOCH)
        self._ids = count(1)
        self._renew()
        self._store.bind(self._caller, process_id=PROCESS, pid=os.getpid(), uid=os.getuid())
        layout = PageLayout(PAGE_TOKENS, page_bytes, 1, OpaqueContent(b"benchmark"))
        identity = NamespaceIdentity(b"benchmark of moves")
        self._namespace_id = self._store.open_namespace(self._caller, identity, layout).namespace_id
        owed = self._store.hand_out(PROCESS)
        self._store.acknowledge(PROCESS, [each.shape.extent_id for each in owed])

    def publish(self, number: int) -> None:
        """Publishes a sequence in tier 1, with the old bytes of its pages."""
        self._renew()
        pin_id, reservation_id = next(self._ids), next(self._ids)
        sequence = self._sequence(number)
        _, grant = self._store.acquire(
            self._caller,
            self._namespace_id,
            sequence,
            MatchOptions(pin_id),
            reservation_id=reservation_id,
            total_page_count=self._pages,
        )
        if grant is None:
            raise RuntimeError("tier 1 has no room")
        self._store.insert(self._caller, reservation_id, Sequence(sequence.tokens[:-4]))
        self._store.abort(self._caller, [reservation_id])
        self._published += self._pages

    def demote(self) -> None:
        """Runs the mover, which copies the published pages to tier 2."""
        self._store.mover.step()
        if self._cache.counters.demoted_page_count != self._published:
            raise RuntimeError("a page was not copied to tier 2")

    def promote(self, number: int) -> None:
        """Matches a sequence that is in tier 2 alone, so it is first copied to tier 1."""
        before, pin_id = self._cache.counters.promoted_page_count, next(self._ids)
        options = MatchOptions(pin_id)
        self._store.match(self._caller, self._namespace_id, self._sequence(number), options)
        self._store.release(self._caller, [pin_id])
        if self._cache.counters.promoted_page_count != before + self._pages:
            raise RuntimeError("a page was not copied to tier 1")

    def _renew(self) -> None:
        self._store.grant(self._caller, ttl=None, display_name="benchmark", features=())

    def _sequence(self, number: int) -> Sequence:
        """Returns whole pages of tokens and the one token that a match leaves."""
        size = self._pages * PAGE_TOKENS + 1
        return Sequence(array("I", range(number * size, (number + 1) * size)).tobytes())
