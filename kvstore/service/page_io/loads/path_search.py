"""The search for a path's pages in the page stores, and loads of the pages that it finds.

Each page store is asked for the pages after those of the one before it, which are read meanwhile.
"""

from math import inf
from typing import NamedTuple

from kvstore import tracing
from kvstore.core import Caller, Identity, MatchOptions, Sequence
from kvstore.core.pool.namespace import Namespace
from kvstore.core.tiers.disk_reads import DiskRead, Located
from kvstore.core.tiers.disk_writes import UNBOUNDED
from kvstore.core.tiers.group_reads import GroupRead
from kvstore.core.tiers.load_or_recompute import Wanted
from kvstore.core.tiers.read_slots import CAREFUL_SHARE, FREE_ONLY, EvictionBound
from kvstore.core.values.layout import PageLayout
from kvstore.service.page_io.loads.group_load import GroupLoad
from kvstore.service.page_io.loads.load_call import LoadCall
from kvstore.service.page_io.loads.load_places import ByteBudget, HeldPlaces
from kvstore.service.page_io.loads.load_source import RUN_PAGES, LoadSource
from kvstore.service.page_io.loads.path_load import LoadParts, PathLoad
from kvstore.service.serving_turn import let_others_serve

# The loads under way by their reads, guarded by the store's mutex.
Loads = dict[DiskRead | GroupRead, PathLoad | GroupLoad]


class PathGap(NamedTuple):
    """The pages after a path's cached ones, and the load under way of the first, if any."""

    located: Located
    layout: PageLayout
    joined: PathLoad | None


class PathSearch:
    """Finds pages of paths, and begins loads of them. Thread-safe."""

    def __init__(self, parts: LoadParts, loads: Loads) -> None:
        self._parts = parts
        self._loads = loads
        self._shared = frozenset(each.number for each in parts.sources.values() if each.is_shared)
        self._last = max(parts.sources, default=0)
        self._prefetches = ByteBudget(parts.cache.limits.max_prefetch_bytes)

    def locate(
        self,
        caller: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions | None,
    ) -> PathGap:
        """Returns the pages that could be loaded of a sequence. Under the store's mutex.

        Raises the errors of a match.
        """
        cache = self._parts.cache
        located = cache.locate(caller, namespace_id, sequence, options)
        namespace = cache.namespaces[namespace_id]
        return PathGap(located, namespace.layout, self._joined(namespace, located))

    def bring(self, call: LoadCall, gap: PathGap | None = None) -> bool:
        """Loads the pages of a call's path that tier 3 has, as far as that is worth it.

        Locates them unless it gets their ``gap``. Waits as the call's terms allow. Returns True
        if it waited for the load of another call, which brought all of its pages that the path has,
        or is over. Raises the errors of a match.
        """
        located, layout, joined = self._gap_of(call, gap)
        if not located.page_count:
            return False
        with self._places(call) as held:
            load, is_joined = joined, True
            if load is None:
                load, is_joined = self._begin(call, located, layout, held)
            if load is None or not held.take(load.next_source().waiting):
                return False
            end = load.shared_end(located) if is_joined else inf
            with tracing.span("load", pages=load.page_count):
                is_over = load.progress.wait(call.terms, end)
            if not is_over:
                load.next_source().note_late()
        if is_joined:
            call.awaited = load.read.sources
            if not is_over:
                call.stand_at(located.end + located.page_count, self._shared)
        return is_joined and is_over

    def prefetch(self, call: LoadCall) -> None:
        """Begins to load pages of a call's path. Raises the errors of a match."""
        located, layout, joined = self._gap_of(call)
        load = joined
        if load is None and located.page_count:
            with self._places(call) as held:
                load, _ = self._begin(call, located, layout, held)
        if load is not None:
            end = located.end + located.page_count
            call.loading_end = min(load.read.sources[-1].end, end)
            call.awaited = load.read.sources
            call.stand_at(call.loading_end, self._shared)

    def _places(self, call: LoadCall) -> HeldPlaces:
        """Returns what holds the places of a call."""
        is_alone = len(self._parts.cache.table.tenants) <= 1
        return HeldPlaces(call.tenant, is_alone=is_alone)

    def _gap_of(self, call: LoadCall, gap: PathGap | None = None) -> PathGap:
        """Locates a call's pages unless that was done, and notes where the cached ones end."""
        if gap is None:
            with self._parts.mutex:
                gap = self.locate(call.caller, call.namespace_id, call.sequence, call.options)
        call.page_tokens = gap.layout.page_tokens
        call.stand_at(gap.located.end, self._shared)
        return gap

    def _joined(self, namespace: Namespace, located: Located) -> PathLoad | None:
        """Returns the load under way of the first page that is not cached, if there is one."""
        reads_in = self._parts.cache.reads_in(namespace)
        if not (reads_in and located.page_count):
            return None
        read = reads_in.get(located.digests.through(located.end + 1))
        return None if read is None else self._load_of(read)

    def _load_of(self, read: DiskRead) -> PathLoad:
        load = self._loads[read]
        assert isinstance(load, PathLoad)  # by its read
        return load

    def _begin(
        self, call: LoadCall, located: Located, layout: PageLayout, held: HeldPlaces
    ) -> tuple[PathLoad | None, bool]:
        """Begins a load of all pages that are found.

        Returns it, or the load of another call that brings the first of them and True.
        """
        own, end = None, located.end
        try:
            for source in self._parts.sources.values():
                count = self._find(source, call, located, end, layout, held)
                if not count:
                    continue
                if own is None:
                    load, is_joined = self._start(source, call, located, count, layout)
                    if load is None or is_joined:
                        return load, is_joined
                    own, added = load, load.page_count
                else:
                    added = self._extend(own, source, call, count, layout)
                end += added
                if added < count:
                    break
        finally:
            if own is not None:
                own.close()
        return own, False

    def _find(
        self,
        source: LoadSource,
        call: LoadCall,
        located: Located,
        start: int,
        layout: PageLayout,
        held: HeldPlaces,
    ) -> int:
        """Returns how many pages from ``start`` on are to be loaded from a page store."""
        left = located.end + located.page_count - start
        if not left or source.usable() is None:
            return 0
        most, deadline = left, inf
        if source.is_shared:
            if not self._may_look(source, call, left, layout, held):
                return 0
            most, deadline = min(left, source.most_pages(layout.page_bytes)), call.terms.shared
        names = located.page_names(start)
        look = source.look_anyway if call.is_of_operator else source.look
        count = look(located.namespace_digest, names, most, deadline)
        if source.is_shared:
            held.give_back(source.looking)
        if not count:
            held.give_back(source.waiting)
            return 0
        call.found(start, start + count, is_shared=source.is_shared)
        wanted = Wanted(count * layout.page_bytes, count * layout.page_tokens)
        if not source.worth_loading(wanted, call.speed):
            held.give_back(source.waiting)
            return 0
        if not (call.is_prefetch or held.take(source.waiting)):
            return 0
        return min(count, source.most_pages(layout.page_bytes))

    def _may_look(
        self, source: LoadSource, call: LoadCall, left: int, layout: PageLayout, held: HeldPlaces
    ) -> bool:
        """Returns True if a shared page store is to be asked for ``left`` pages.

        The call then has the places that it needs to ask and to wait.
        """
        if call.is_of_operator:
            return held.take(source.patient)
        patience = call.terms.shared - self._parts.clock()
        wanted = Wanted(left * layout.page_bytes, left * layout.page_tokens)
        if patience <= 0 or not source.worth_looking(wanted, call.speed, patience):
            return False
        return (call.is_prefetch or held.take(source.waiting)) and held.take(source.looking)

    def _start(
        self, source: LoadSource, call: LoadCall, located: Located, count: int, layout: PageLayout
    ) -> tuple[PathLoad | None, bool]:
        """Begins a load of the first ``count`` pages that were located, or joins one."""
        parts, is_careful = self._parts, source.is_shared or call.is_prefetch
        if call.is_prefetch:
            count = self._prefetches.take(call.holder, count, layout.page_bytes)
        load, is_joined, planned = None, False, 0
        try:
            with parts.mutex:
                bound = self._bound(call)
                read = parts.cache.begin_read(
                    *(call.caller, call.namespace_id, call.sequence, count, located, source.number),
                    run_pages=RUN_PAGES if is_careful else UNBOUNDED,
                    bound=bound if is_careful else None,
                )
                is_joined = read is not None and read in self._loads
                if read is not None:
                    load = self._load_of(read) if is_joined else self._make(read, bound, call)
                    planned = 0 if is_joined else load.page_count
        finally:
            # The namespace or the lease may have ended since the pages were looked for.
            if call.is_prefetch:
                self._prefetches.give_back(call.holder, (count - planned) * layout.page_bytes)
        if load is not None and not is_joined:
            # A page store's tables may be in use for long.
            let_others_serve()
            load.note()
            load.go_on()
        return load, is_joined

    def _make(self, read: DiskRead, bound: EvictionBound, call: LoadCall) -> PathLoad:
        """Makes the load of a new read. Under the store's mutex."""
        self._parts.took(read.namespace.arena)
        is_open = read.sources[-1].number != self._last
        load = PathLoad(self._parts, read, bound, lambda: self._ended(load, call), is_open=is_open)
        self._loads[read] = load
        return load

    def _ended(self, load: PathLoad, call: LoadCall) -> None:
        """Forgets a load that is over. Under the store's mutex."""
        del self._loads[load.read]
        if call.is_prefetch:
            page_bytes = load.read.namespace.layout.page_bytes
            self._prefetches.give_back(call.holder, load.page_count * page_bytes)

    def _extend(
        self, load: PathLoad, source: LoadSource, call: LoadCall, count: int, layout: PageLayout
    ) -> int:
        """Adds pages of another page store to a load; returns how many."""
        if not call.is_prefetch:
            return load.extend(count, source)
        count = self._prefetches.take(call.holder, count, layout.page_bytes)
        added = load.extend(count, source)
        self._prefetches.give_back(call.holder, (count - added) * layout.page_bytes)
        return added

    def _bound(self, call: LoadCall) -> EvictionBound:
        """Returns what a load may evict for pages of a shared page store. Under the mutex."""
        if call.is_prefetch and not call.may_evict:
            return FREE_ONLY
        since = self._parts.cache.recent_uses.since(self._parts.clock())
        return EvictionBound(CAREFUL_SHARE, since)
