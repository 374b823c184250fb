"""Disk reads: from the disk to tier 1, published once they are read.

The core decides under its owner's mutex; others read outside it, and finish under it.
"""

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import PageName, PathHashes, hashes_to, kept_end, remember
from kvstore.core.journal.records import INSERTED, NO_PAGE, PagesRecord, parts_of_pages
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.journaling import generations_of
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import begun, evict, nominate, publish, release
from kvstore.core.pool.placement import FIRST, nearest
from kvstore.core.values.event_log import Cause
from kvstore.core.values.group_pages import path_bytes
from kvstore.core.values.requests import NO_HINT, Caller, MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.lookup import cached_end, matchable_pages


class ReadPage(NamedTuple):
    """A page to read into a slot. ``end`` counts pages from the beginning through it."""

    end: int
    digest: bytes
    slot: int
    segment: bytes


class Located(NamedTuple):
    """The end of a sequence's cached whole pages, and the pages after it that could be read.

    These are ``page_count`` whole pages that a match could use. ``digests`` may be asked outside
    the owner's mutex, by one thread at a time.
    """

    namespace_digest: bytes
    end: int
    page_count: int
    digests: PathHashes

    def page_digests(self) -> Iterator[bytes]:
        """Yields the digests of the pages that could be read, computed on demand."""
        for end in range(self.end, self.end + self.page_count):
            yield self.digests.through(end + 1)

    def page_names(self) -> Iterator[PageName]:
        """Yields the names of the pages that could be read, computed on demand."""
        for end in range(self.end + 1, self.end + self.page_count + 1):
            yield self.digests.name(end)


class DiskRead(Hold):
    """A hold on the path above pages that are to be published in tier 1, from ``start`` on.

    Their slots, ``targets``, are MOVING. ``callers`` counts the callers that asked for it; all
    but the first wait. It belongs to no lease.
    """

    __slots__ = ("callers", "digests", "losses", "number", "removals", "start", "targets")

    def __init__(self, at: Position, digests: PathHashes, number: int = 0) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.start = at.depth
        self.targets: Slots = array("Q")
        self.digests = digests
        self.removals = namespace.removals
        self.number = number
        self.losses = namespace.losses[number]
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
    def pages(self) -> list[ReadPage]:
        """The pages, in prefix order."""
        ends = range(self.start + 1, self.end + 1)
        segments = (self.digests.name(end).segment for end in ends)
        return list(map(ReadPage, ends, self.page_digests, self.targets, segments))

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
        self.under_way: dict[DiskRead, None] = {}
        self._by_digest: dict[Namespace, dict[bytes, DiskRead]] = {}

    def reads_in(self, namespace: Namespace) -> Mapping[bytes, DiskRead]:
        """Returns the reads under way in a namespace, by the digests of their pages."""
        return self._by_digest.get(namespace, {})

    def locate(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions | None = None,
    ) -> Located:
        """Returns the end of a sequence's cached pages, and the pages after it that could be read.

        Has no effect at all. Raises the errors of a match. If a match with ``options`` was answered
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
        if options is not None:
            lease.require_pins_alive(options)
            count = 0 if options.pin_id in lease.pins else count
        wanted = sequence.tokens[max(begin, 0) : max(begin, 0) + max(count, 0) * width]
        count = path_bytes(wanted, width) // width
        digests = hashes_to(at, wanted[: count * width])
        return Located(namespace.digest, at.depth, count, digests)

    def begin_read(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        page_count: int,
        located: Located,
        number: int = 0,
    ) -> DiskRead | None:
        """Takes slots for the first ``page_count`` pages that were located; FREE to MOVING.

        They come from page store ``number``.

        Takes fewer if there are too few, and evicts as a reservation would. If another read brings
        the first of them, returns that read, with more than one of ``callers``. Returns None if
        there is nothing left to read, no slot, or a removal that the page store has not heard of.
        The only caller of a read has to finish it. Raises the errors of a match.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        end = located.end + min(page_count, located.page_count)
        if end <= located.end or namespace.removing[number]:
            return None
        at = cached_end(lease, namespace, sequence, end)
        if not located.end <= at.depth < end:
            return None
        read = DiskRead(at, located.digests, number)
        reads_in = self.reads_in(namespace)
        under_way = reads_in.get(read.digests.through(read.start + 1))
        if under_way is not None:
            under_way.callers += 1
            release(read.anchors)
            return under_way
        wanted = read.digests.between(read.start, end)
        fresh = list(takewhile(lambda digest: digest not in reads_in, wanted))
        read.targets = take_targets(self._state, lease, namespace, len(fresh))
        if not read.targets:
            release(read.anchors)
            return None
        begun = dict.fromkeys(fresh[: len(read.targets)], read)
        self._by_digest.setdefault(namespace, {}).update(begun)
        self.under_way[read] = None
        return read

    def finish_read(self, read: DiskRead, good_count: int, checksums: Items[int] = ()) -> int:
        """Publishes the first ``good_count`` pages of a read; returns how many were new.

        MOVING to CACHED, or to FREE. Publishes nothing if the path above left the index, or if
        pages of the namespace were removed. ``checksums`` are those of the good pages, or empty.
        Raises nothing.
        """
        namespace, arena = read.namespace, read.namespace.arena
        del self.under_way[read]
        reads_in = self._by_digest[namespace]
        for digest in read.page_digests:
            del reads_in[digest]
        if not reads_in:
            del self._by_digest[namespace]
        lasting = arena.lasting
        good = read.targets[: 0 if read.is_stale else good_count]
        good = array("Q", takewhile(lambda slot: slot >> INDEX_BITS in lasting, good))
        arena.keep_checksums(zip(good, checksums, strict=False))
        published = self._publish_read(read, good) if good else good
        # The last of the good pages were published.
        rest = read.targets[: len(good) - len(published)] + read.targets[len(good) :]
        arena.recycle(rest, SlotState.MOVING)
        release(read.anchors)
        for counters in (self._state.counters, namespace.counters):
            counters.loaded_page_count += len(published)
        return len(published)

    def _publish_read(self, read: DiskRead, good: Slots) -> Slots:
        """Publishes pages that were read below a read's path; returns the slots of the new ones."""
        namespace = read.namespace
        tokens = read.digests.tokens(read.start, read.start + len(good))
        above = read.position_at(read.start)
        at = namespace.index.descend(above, tokens, len(good))
        there = at.depth - read.start
        fresh = good[there:]
        if fresh:
            rest = tokens[there * namespace.index.width :]
            page_id = write_loaded(read, at, rest, fresh)
            namespace.arena.change(fresh, SlotState.MOVING, SlotState.RESERVED)
            at, superseded, returned = publish(
                namespace, at, rest, fresh, NO_HINT, cause=Cause.LOADED, page_id=page_id
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
        number = read.number
        follows = kept_end(at, number) >= read.start and read.losses == namespace.losses[number]
        remember(at, read.digests, read.start + len(good) if follows else 0, number)
        return fresh


def write_loaded(read: Hold, at: Position, tokens: bytes, slots: Slots) -> int:
    """Writes to the journal that pages which were read are published after ``at``.

    Returns the first one's id, or zero without a journal. Their slots have their checksums.
    """
    namespace = read.namespace
    if namespace.journal is None:
        return 0
    partial = begun(at, tokens[: namespace.width])
    checksums = [
        namespace.extents[each >> INDEX_BITS].checksums[each & INDEX_MASK] for each in slots
    ]
    record = PagesRecord(
        *(INSERTED, FIRST, namespace.number, 0, namespace.journal.next_id, at.page_id),
        NO_PAGE if partial is None else Position(partial, 1).page_id,
        *(0, 0, 0, 0, 0),
        slots,
        generations_of(read, slots),
        array("Q", checksums),
        tokens,
    )
    return namespace.journal.insert(len(slots), *parts_of_pages(record))


def take_targets(state: CacheState, lease: Lease, namespace: Namespace, count: int) -> Slots:
    """Returns ``count`` slots of tier 1, now MOVING, or as many as the lease may have.

    Evicts as a reservation would.
    """
    arena = namespace.arena
    usable = lease.usable_extents(arena)
    missing = count - arena.free_count
    if missing > 0 and usable == arena.lasting:
        cached = arena.counts[SlotState.CACHED]
        evicted = evict(nominate(arena, min(missing, cached)))
        for counters in (state.counters, lease.counters):
            counters.evicted_page_count += evicted
    targets = array("Q")
    left = sum(len(arena.extents[each].available) for each in usable)
    arena.take(min(count, left), usable, targets, SlotState.MOVING)
    if state.wanted is not None:
        state.wanted.reserved(arena, 0)
    return targets
