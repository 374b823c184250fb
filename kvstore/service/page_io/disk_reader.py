"""Disk reads: pages of tier 3 that a match can use, loaded to tier 1 before the answer.

They are chosen under the store's mutex, read outside it, and published under it.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from functools import partial
from threading import Lock

from kvstore.core import Caller, Identity, MatchOptions, Prefetched, PrefixCache, Sequence
from kvstore.core.pool.arena import Arena
from kvstore.errors import KVStoreError
from kvstore.service.clock import Clock
from kvstore.service.page_io.loads.group_search import GroupSearch
from kvstore.service.page_io.loads.load_call import DiskPart, LoadCall, LoadTerms
from kvstore.service.page_io.loads.load_source import LoadSource, LoadUse
from kvstore.service.page_io.loads.path_load import LoadParts
from kvstore.service.page_io.loads.path_search import Loads, PathGap, PathSearch
from kvstore.service.page_io.read_targets import ReadTargets
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.memory_tiers import Tiers

# Times that a call looks for pages: again after each load of another call that it waited for.
MOST_ROUNDS = 4
# Seconds that a prefetch waits for a shared page store to say what it has.
PREFETCH_LOOK = 0.05


class Loader:
    """Loads pages for matches, from each page store those that the ones before it lack.

    Thread-safe. The store's mutex guards the cache and is never held while pages are searched,
    read or copied.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        tiers: Items[SlowTier],
        clock: Clock,
        took: Callable[[Arena], None],
    ) -> None:
        """Makes a loader; ``took`` is called under the mutex with arenas that gave slots."""
        present = [LoadSource(each, clock) for each in tiers if each.page_store is not None]
        self._sources = {each.number: each for each in present}
        targets = ReadTargets(memory, clock)
        self._parts = LoadParts(cache, mutex, clock, targets, self._sources, took)
        loads: Loads = {}
        self._paths = PathSearch(self._parts, loads)
        self._groups = GroupSearch(self._parts, loads)

    def uses(self) -> list[LoadUse]:
        """Returns the figures of each page store's loads, in the order of the page stores."""
        return [each.use() for each in self._sources.values()]

    def note_time(self) -> None:
        """Notes the time, so that recent uses can be recognized. Call it about each second."""
        cache = self._parts.cache
        with self._parts.mutex:
            cache.recent_uses.note(self._parts.clock(), cache.state.use_count)

    def locate(
        self, caller: Caller, namespace_id: bytes, sequence: Sequence, options: MatchOptions
    ) -> PathGap | None:
        """Returns the pages that ``load`` would look for; None if a match lacks none.

        With KV cache groups the pages may be none, since only a load finds out what groups lack.
        Called under the store's mutex. Errors in the call are left to the match.
        """
        if not self._may_have_any():
            return None
        with suppress(KVStoreError):
            gap = self._paths.locate(caller, namespace_id, sequence, options)
            return gap if gap.located.page_count or options.groups else None
        return None

    def load(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        terms: LoadTerms,
        gap: PathGap | None = None,
    ) -> DiskPart:
        """Loads a sequence's pages that only tier 3 has to tier 1, as far as that is worth it.

        Returns the tokens that it has beyond the index, loaded or not. ``gap`` is what ``locate``
        returned; without it, this locates the pages. A call waits as its ``terms`` allow, and a
        longer load finishes without it. Errors in the call are left to the match, which may have
        been answered before.

        For a match with KV cache groups it then loads the pages that their windows lack at the end
        of the path, if tier 3 has all of them.
        """
        call = LoadCall(caller, namespace_id, sequence, options, terms)
        # The errors of one step leave what the step before it found.
        with suppress(KVStoreError):
            _repeat(partial(self._paths.bring, call), gap)
            if options.groups:
                _repeat(lambda _: self._groups.bring(call))
        return call.part()

    def note_match(self, part: DiskPart, matched: int, speed: int) -> None:
        """Records which page stores saved a caller the prefill of tokens of a match.

        ``part`` is what ``load`` returned. A caller without a stated ``speed`` in tokens a second
        counts for nothing.
        """
        if speed <= 0:
            return
        shared = part.shared_loaded(matched)
        for each in self._sources.values():
            tokens = shared if each.is_shared else part.loaded(matched) - shared
            if tokens:
                each.note_saved(tokens, speed)

    def prefetch(
        self,
        caller: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        *,
        may_evict: bool = False,
    ) -> Prefetched:
        """Begins to load a sequence's pages that only tier 3 has, and waits for none of them.

        Takes FREE slots alone unless it ``may_evict`` as a match may, and pins nothing. Returns
        what is in memory, what is being loaded by this call or another one, and what is not. A
        lease's prefetches load at most ``Limits.max_prefetch_bytes`` at a time. Those of callers
        without a lease share one such bound for each tenant. They ask a shared page store also if
        a miss is likely. Raises the errors of a match.
        """
        until = self._parts.clock() + PREFETCH_LOOK
        terms = LoadTerms(until, until)
        call = LoadCall(caller, namespace_id, sequence, None, terms, may_evict=may_evict)
        self._paths.prefetch(call)
        return call.prefetched()

    def _may_have_any(self) -> bool:
        return any(each.usable() is not None for each in self._sources.values())


def _repeat(bring: Callable[[PathGap | None], bool], gap: PathGap | None = None) -> None:
    """Searches again after each load of another call that ended, a few times.

    The first time for what is located already, if there is a ``gap``.
    """
    for _ in range(MOST_ROUNDS):
        if not bring(gap):
            return
        gap = None
