"""From tier 3 to tier 1: which pages, into which slots, and what becomes of them.

Decided under the owner's mutex, read by others outside it, finished under it.
"""

from array import array
from collections.abc import Sequence as Items
from itertools import takewhile

from kvstore.core.evicting import evict
from kvstore.core.index.path_hashes import digests_to, kept_end, remember
from kvstore.core.keeping import Keeping
from kvstore.core.lease import Lease
from kvstore.core.load import Load, Located
from kvstore.core.lookup import cached_end
from kvstore.core.pages import publish, release
from kvstore.core.values.events import Cause
from kvstore.core.values.requests import NO_HINT, Caller, MatchWishes, Sequence
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES, matchable_pages


class Loading(Keeping):
    """Publishes pages that come from tier 3, as if they had been inserted."""

    def locate(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes | None = None,
    ) -> Located:
        """Return where a sequence's cached pages end, and what could be loaded after that.

        No effect at all. Raises what a match raises. Where a match with ``wishes`` was
        answered before nothing is to be loaded for it, for that answer is given again.
        """
        lease = self.member(caller)
        namespace = self._own(lease, namespace_id)
        length = self.length(sequence.tokens, sequence.position)
        page_tokens, width = namespace.layout.page_tokens, namespace.index.width
        at = cached_end(lease, namespace, sequence, length // page_tokens)
        begin = at.depth * width - sequence.position * TOKEN_BYTES
        # Where the base's path was removed what comes after it is not to be had.
        count = matchable_pages(length, page_tokens) - at.depth if begin >= 0 else 0
        if wishes is not None:
            self._require_alive(lease, wishes)
            count = 0 if wishes.pin_id in lease.pins else count
        digests = digests_to(at, sequence.tokens[begin : begin + max(count, 0) * width])
        return Located(namespace.digest, at.depth, max(count, 0), digests)

    def begin_load(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        page_count: int,
        located: Located,
    ) -> Load | None:
        """Take slots for the first ``page_count`` pages that were located; FREE to MOVING.

        For fewer where so many are not to be had, evicting as a reservation would. Where
        another load brings the first of them that load is returned, its ``callers`` more
        than one. None where there is nothing to load any more, or no slot, or where pages
        were removed of which tier 3 was not told. Whoever is given a load that it is the
        only caller of has to finish it. Raises what a match raises.
        """
        lease = self.member(caller)
        namespace = self._own(lease, namespace_id)
        end = located.end + min(page_count, located.page_count)
        if end <= located.end or namespace.removing:
            return None
        at = cached_end(lease, namespace, sequence, end)
        if not located.end <= at.depth < end:
            return None
        assert self.third is not None  # who loads has a tier 3
        load = Load(at, located.digests)
        loading = namespace.loading
        under_way = loading.get(load.digests.through(load.start + 1))
        if under_way is not None:
            under_way.callers += 1
            release(load.anchors)
            return under_way
        wanted = load.digests.between(load.start, end)
        fresh = list(takewhile(lambda digest: digest not in loading, wanted))
        load.targets = self._take_targets(lease, load, len(fresh))
        if not load.targets:
            release(load.anchors)
            return None
        loading.update((digest, load) for digest in fresh[: len(load.targets)])
        self.third.loads[load] = None
        return load

    def finish_load(self, load: Load, good_count: int, checksums: Items[int] = ()) -> int:
        """Publish the first ``good_count`` pages of a load; return how many were not there.

        MOVING to CACHED, or to FREE. Nothing is published where the path above left the
        index meanwhile, or pages of the namespace were removed. ``checksums`` are of the
        good pages, or none. Raises nothing.
        """
        namespace, arena = load.namespace, load.namespace.arena
        assert self.third is not None  # or none was begun
        del self.third.loads[load]
        for digest in load.page_digests:
            del namespace.loading[digest]
        lasting = arena.lasting
        good = load.targets[: 0 if load.is_stale else good_count]
        good = array("Q", takewhile(lambda slot: slot >> INDEX_BITS in lasting, good))
        arena.keep_checksums(zip(good, checksums, strict=False))
        published = self._publish_loaded(load, good) if good else good
        # Of the good ones the last were published.
        rest = load.targets[: len(good) - len(published)] + load.targets[len(good) :]
        arena.recycle(rest, SlotState.MOVING)
        release(load.anchors)
        for counters in (self.counters, namespace.counters):
            counters.loaded_page_count += len(published)
        return len(published)

    def _publish_loaded(self, load: Load, good: Slots) -> Slots:
        """Publish pages that were read below a load's path; return the slots of those new."""
        namespace = load.namespace
        tokens = load.digests.tokens(load.start, load.start + len(good))
        above = load.position_at(load.start)
        at = namespace.index.descend(above, tokens, len(good))
        there = at.depth - load.start
        fresh = good[there:]
        if fresh:
            namespace.arena.change(fresh, SlotState.MOVING, SlotState.RESERVED)
            rest = tokens[there * namespace.index.width :]
            at, superseded, returned = publish(
                namespace, at, rest, fresh, NO_HINT, cause=Cause.LOADED
            )
            for counters in (self.counters, namespace.counters, self.ended):
                counters.superseded_page_count += superseded
                counters.returned_page_count += returned
            self._touch(at)
            # Nobody holds it whose release would.
            namespace.leaf_changed(at.node)
            if self.wanted is not None:
                self.wanted.inserted(at)
        # Of a path whose beginning is not known to be kept nothing else is either.
        follows = kept_end(at) >= load.start and load.losses == namespace.losses
        remember(at, load.digests, load.start + len(good) if follows else 0)
        return fresh

    def _take_targets(self, lease: Lease, load: Load, count: int) -> Slots:
        """Return ``count`` slots that are MOVING now, or as many as the lease may have."""
        arena = load.namespace.arena
        usable = lease.usable_extents(arena)
        missing = count - arena.free_count
        if missing > 0 and usable == arena.lasting:
            cached = arena.counts[SlotState.CACHED]
            evicted = evict(self._nominate(arena, min(missing, cached)))
            for counters in (self.counters, lease.counters):
                counters.evicted_page_count += evicted
        targets = array("Q")
        left = sum(len(arena.extents[each].available) for each in usable)
        arena.take(min(count, left), usable, targets, SlotState.MOVING)
        if self.wanted is not None:
            self.wanted.reserved(arena, 0)
        return targets
