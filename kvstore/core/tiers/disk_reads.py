"""Disk reads: from the disk to tier 1, published once they are read.

The core decides under its owner's mutex; others read outside it, and finish under it.
"""

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import NamedTuple

from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import PathDigests, digests_to, kept_end, remember
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.lease import Lease
from kvstore.core.leases.state import CacheState
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import evict, nominate, publish, release
from kvstore.core.pool.placement import nearest
from kvstore.core.values.events import Cause
from kvstore.core.values.requests import NO_HINT, Caller, MatchWishes, Sequence
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES, matchable_pages
from kvstore.core.verbs.lookup import cached_end


class LoadPage(NamedTuple):
    """A page to read into a slot. ``end`` counts pages from the beginning through it."""

    end: int
    digest: bytes
    slot: int


class Located(NamedTuple):
    """The end of a sequence's cached whole pages, and the pages after it that could be read.

    These are ``page_count`` whole pages that a match could use. ``digests`` may be asked outside
    the owner's mutex, by one thread at a time.
    """

    namespace_digest: bytes
    end: int
    page_count: int
    digests: PathDigests

    def page_digests(self) -> Iterator[bytes]:
        """Yields the digests of the pages that could be read, computed on demand."""
        for end in range(self.end, self.end + self.page_count):
            yield self.digests.through(end + 1)


class Load(Hold):
    """A hold on the path above pages that are to be published in tier 1, from ``start`` on.

    Their slots, ``targets``, are MOVING. ``callers`` counts the callers that asked for it; all
    but the first wait. It belongs to no lease.
    """

    __slots__ = ("callers", "digests", "losses", "removals", "start", "targets")

    def __init__(self, at: Position, digests: PathDigests) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.start = at.depth
        self.targets: Slots = array("Q")
        self.digests = digests
        self.removals = namespace.removals
        self.losses = namespace.losses
        self.callers = 1
        if at.depth:
            self.stand_at(at)

    @property
    def end(self) -> int:
        """Pages from the beginning through the last one to be read."""
        return self.start + len(self.targets)

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def pages(self) -> list[LoadPage]:
        """The pages, in prefix order."""
        ends = range(self.start + 1, self.end + 1)
        return list(map(LoadPage, ends, self.page_digests, self.targets))

    @property
    def page_digests(self) -> list[bytes]:
        """The digests of the pages."""
        return self.digests.between(self.start, self.end)

    @property
    def is_stale(self) -> bool:
        """True if its path left the index, or if pages of the namespace were removed since."""
        left = bool(self.anchors) and self.anchors[0].node.detached
        return left or self.removals != self.namespace.removals


class DiskReads:
    """Publishes pages that come from the disk, as if they had been inserted.

    ``under_way`` are the reads that nobody finished yet.
    """

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[Load, None] = {}
        self._by_digest: dict[Namespace, dict[bytes, Load]] = {}

    def loading(self, namespace: Namespace) -> Mapping[bytes, Load]:
        """Returns the reads under way in a namespace, by the digests of their pages."""
        return self._by_digest.get(namespace, {})

    def locate(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        wishes: MatchWishes | None = None,
    ) -> Located:
        """Returns the end of a sequence's cached pages, and the pages after it that could be read.

        Has no effect at all. Raises the errors of a match. If a match with ``wishes`` was answered
        before, nothing is to be read for it, since it gets that answer again.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        length = self._state.length(sequence.tokens, sequence.position)
        page_tokens, width = namespace.layout.page_tokens, namespace.index.width
        at = cached_end(lease, namespace, sequence, length // page_tokens)
        begin = at.depth * width - sequence.position * TOKEN_BYTES
        # If the base's path was removed, nothing after it can be read.
        count = matchable_pages(length, page_tokens) - at.depth if begin >= 0 else 0
        if wishes is not None:
            lease.require_pins_alive(wishes)
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
        """Takes slots for the first ``page_count`` pages that were located; FREE to MOVING.

        Takes fewer if there are too few, and evicts as a reservation would. If another load brings
        the first of them, returns that load, with more than one of ``callers``. Returns None if
        there is nothing left to read, no slot, or a removal that the disk has not heard of. The
        only caller of a load has to finish it. Raises the errors of a match.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        end = located.end + min(page_count, located.page_count)
        if end <= located.end or namespace.removing:
            return None
        at = cached_end(lease, namespace, sequence, end)
        if not located.end <= at.depth < end:
            return None
        load = Load(at, located.digests)
        loading = self.loading(namespace)
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
        begun = dict.fromkeys(fresh[: len(load.targets)], load)
        self._by_digest.setdefault(namespace, {}).update(begun)
        self.under_way[load] = None
        return load

    def finish_load(self, load: Load, good_count: int, checksums: Items[int] = ()) -> int:
        """Publishes the first ``good_count`` pages of a load; returns how many were new.

        MOVING to CACHED, or to FREE. Publishes nothing if the path above left the index, or if
        pages of the namespace were removed. ``checksums`` are those of the good pages, or empty.
        Raises nothing.
        """
        namespace, arena = load.namespace, load.namespace.arena
        del self.under_way[load]
        loading = self._by_digest[namespace]
        for digest in load.page_digests:
            del loading[digest]
        if not loading:
            del self._by_digest[namespace]
        lasting = arena.lasting
        good = load.targets[: 0 if load.is_stale else good_count]
        good = array("Q", takewhile(lambda slot: slot >> INDEX_BITS in lasting, good))
        arena.keep_checksums(zip(good, checksums, strict=False))
        published = self._publish_loaded(load, good) if good else good
        # The last of the good pages were published.
        rest = load.targets[: len(good) - len(published)] + load.targets[len(good) :]
        arena.recycle(rest, SlotState.MOVING)
        release(load.anchors)
        for counters in (self._state.counters, namespace.counters):
            counters.loaded_page_count += len(published)
        return len(published)

    def _publish_loaded(self, load: Load, good: Slots) -> Slots:
        """Publishes pages that were read below a load's path; returns the slots of the new ones."""
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
            for counters in (self._state.counters, namespace.counters, self._state.ended):
                counters.superseded_page_count += superseded
                counters.returned_page_count += returned
            self._state.touch(at)
            # Nobody holds it, so no release offers it to the policy.
            namespace.leaf_changed(at.node)
            if self._state.wanted is not None:
                self._state.wanted.inserted(at)
        # Pages are known to be kept only if all pages before them are.
        follows = kept_end(at) >= load.start and load.losses == namespace.losses
        remember(at, load.digests, load.start + len(good) if follows else 0)
        return fresh

    def _take_targets(self, lease: Lease, load: Load, count: int) -> Slots:
        """Returns ``count`` slots, now MOVING, or as many as the lease may have."""
        arena = load.namespace.arena
        usable = lease.usable_extents(arena)
        missing = count - arena.free_count
        if missing > 0 and usable == arena.lasting:
            cached = arena.counts[SlotState.CACHED]
            evicted = evict(nominate(arena, min(missing, cached)))
            for counters in (self._state.counters, lease.counters):
                counters.evicted_page_count += evicted
        targets = array("Q")
        left = sum(len(arena.extents[each].available) for each in usable)
        arena.take(min(count, left), usable, targets, SlotState.MOVING)
        if self._state.wanted is not None:
            self._state.wanted.reserved(arena, 0)
        return targets
