"""Disk reads: from the disk to tier 1, published once they are read.

The core decides under its owner's mutex; others read outside it, and finish under it.
"""

from array import array
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import takewhile
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import PageName, PathHashes, hashes_to, kept_end, remember
from kvstore.core.journal.records import INSERTED, NO_PAGE, PagesRecord, parts_of_pages
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.journaling import generations_of
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import begun, publish, release
from kvstore.core.pool.placement import FIRST, nearest
from kvstore.core.tiers.disk_writes import UNBOUNDED
from kvstore.core.tiers.read_slots import EvictionBound, take_targets
from kvstore.core.values.event_log import Cause
from kvstore.core.values.group_pages import path_bytes
from kvstore.core.values.requests import NO_HINT, Caller, Identity, MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.core.verbs.lookup import cached_end, matchable_pages

# Of no page.
NO_HASHES = PathHashes(0, b"", b"", 1)


class ReadPage(NamedTuple):
    """A page to read into a slot, from page store ``number``.

    ``end`` counts pages from the beginning through it.
    """

    end: int
    digest: bytes
    slot: int
    segment: bytes
    number: int = 0


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

    def page_names(self, start: int = 0) -> Iterator[PageName]:
        """Yields the names of the pages that could be read, from page ``start`` of the path on.

        They are computed on demand.
        """
        first = max(start, self.end)
        for end in range(first + 1, self.end + self.page_count + 1):
            yield self.digests.name(end)


class ReadSource(NamedTuple):
    """The pages of a read through page ``end`` of its path come from page store ``number``."""

    end: int
    number: int


class DiskRead(Hold):
    """A hold on the path above pages that are to be published in tier 1, from ``start`` on.

    It brings pages through ``planned_end``, which no other read brings meanwhile. ``targets`` are
    the MOVING slots of the first of them. The other pages have no slots yet. As pages are
    published, ``start`` goes down the path. ``sources`` say where all of its pages come from.
    ``bounded_count`` of the targets were taken under a bound. ``callers`` counts the callers that
    asked for it; all but the first wait. Slots are taken as its ``lease`` may, or without a lease.
    """

    __slots__ = (
        "bounded_count",
        "callers",
        "digests",
        "lease",
        "losses",
        "planned_end",
        "removals",
        "sources",
        "start",
        "targets",
    )

    def __init__(self, at: Position, digests: PathHashes, lease: Lease | None = None) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.start = self.planned_end = at.depth
        self.targets: Slots = array("Q")
        self.bounded_count = 0
        self.digests = digests
        self.lease = lease
        self.removals = namespace.removals
        self.losses = namespace.losses
        self.sources: list[ReadSource] = []
        self.callers = 1
        if at.depth:
            self.stand_at(at)

    @property
    def end(self) -> int:
        """Pages from the beginning through the last one that has a slot."""
        return self.start + len(self.targets)

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def pages(self) -> list[ReadPage]:
        """The pages that have slots, in prefix order."""
        return self.pages_between(self.start, self.end)

    def pages_between(self, start: int, end: int) -> list[ReadPage]:
        """Returns the pages of the path from page ``start`` through ``end``, which have slots."""
        ends = range(start + 1, end + 1)
        names = map(self.digests.name, ends)
        slots = self.targets[start - self.start : end - self.start]
        return [
            ReadPage(end, name.digest, slot, name.segment, self.number_at(end))
            for end, name, slot in zip(ends, names, slots, strict=True)
        ]

    @property
    def planned_digests(self) -> list[bytes]:
        """The digests of the pages that it is to bring."""
        return self.digests.between(self.start, self.planned_end)

    def number_at(self, end: int) -> int:
        """Returns the page store of the page that ends at ``end``, which is planned."""
        return next(each.number for each in self.sources if end <= each.end)

    @property
    def is_stale(self) -> bool:
        """True if its path left the index, or if pages of the namespace were removed since."""
        left = bool(self.anchors) and has_left(self.anchors[0].node)
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
        """Returns the reads under way in a namespace, by the digests of the pages they plan."""
        return self._by_digest.get(namespace, {})

    def locate(
        self,
        caller: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions | None = None,
    ) -> Located:
        """Returns the end of a sequence's cached pages, and the pages after it that could be read.

        Has no effect at all. Raises the errors of a match. If a match with ``options`` was answered
        before, nothing is to be read for it, since it gets that answer again. An identity needs no
        lease, and its sequence has no base.
        """
        lease, namespace = self._asker(caller, namespace_id)
        length = self._state.length(sequence.tokens, sequence.position)
        page_tokens, width = namespace.layout.page_tokens, namespace.index.width
        at = cached_end(lease, namespace, sequence, length // page_tokens)
        begin = at.depth * width - sequence.position * TOKEN_BYTES
        # If the base's path was removed, nothing after it can be read.
        count = matchable_pages(length, page_tokens) - at.depth if begin >= 0 else 0
        if options is not None and lease is not None:
            lease.require_pins_alive(options)
            count = 0 if options.pin_id in lease.pins else count
        if count <= 0:
            return Located(namespace.digest, at.depth, 0, NO_HASHES)
        wanted = sequence.tokens[begin : begin + count * width]
        count = path_bytes(wanted, width) // width
        digests = hashes_to(at, wanted[: count * width])
        return Located(namespace.digest, at.depth, count, digests)

    def _asker(
        self, caller: Caller | Identity, namespace_id: bytes
    ) -> tuple[Lease | None, Namespace]:
        """Returns the lease that a read is for, if any, and the namespace. Raises their errors."""
        if isinstance(caller, Identity):
            return None, self._state.namespace(caller, namespace_id)
        lease = self._state.member(caller)
        return lease, self._state.own(lease, namespace_id)

    def begin_read(
        self,
        caller: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        page_count: int,
        located: Located,
        number: int = 0,
        *,
        run_pages: int = UNBOUNDED,
        bound: EvictionBound | None = None,
    ) -> DiskRead | None:
        """Plans the first ``page_count`` pages that were located, from page store ``number``.

        Takes slots for the first ``run_pages`` of them; FREE to MOVING. Evicts as a reservation
        would, or less with a ``bound``. If there are fewer slots than that, it plans only the
        pages that have one, unless the bound lets it evict more later. It plans no page that
        another read brings. If another read brings the first of them, returns that read, with
        more than one of ``callers``. Returns None if there is nothing left to read, no slot, or a
        removal that the page store has not heard of. The only caller of a read has to finish it.
        Raises the errors of a match.
        """
        lease, namespace = self._asker(caller, namespace_id)
        end = located.end + min(page_count, located.page_count)
        if end <= located.end or namespace.removing[number]:
            return None
        at = cached_end(lease, namespace, sequence, end)
        if not located.end <= at.depth < end:
            return None
        reads_in = self.reads_in(namespace)
        under_way = reads_in.get(located.digests.through(at.depth + 1))
        if under_way is not None:
            under_way.callers += 1
            return under_way
        wanted = located.digests.between(at.depth, end)
        fresh = list(takewhile(lambda digest: digest not in reads_in, wanted))
        read = DiskRead(at, located.digests, lease)
        asked = min(run_pages, len(fresh))
        taken = self._take(read, asked, bound)
        if not taken:
            release(read.anchors)
            return None
        may_go_on = taken == asked or (bound is not None and bound.share > 0)
        self._plan(read, fresh if may_go_on else fresh[:taken], number)
        self.under_way[read] = None
        return read

    def extend_read(self, read: DiskRead, page_count: int, number: int) -> int:
        """Plans more pages of a read, from page store ``number``, which follow its others.

        Returns how many: none of a page that another read brings or after one, and none of a stale
        read or a page store that has not heard of a removal.
        """
        namespace = read.namespace
        if read.is_stale or namespace.removing[number]:
            return 0
        reads_in = self.reads_in(namespace)
        wanted = read.digests.between(read.planned_end, read.planned_end + page_count)
        fresh = list(takewhile(lambda digest: digest not in reads_in, wanted))
        if fresh:
            self._plan(read, fresh, number)
        return len(fresh)

    def take_run(self, read: DiskRead, page_count: int, bound: EvictionBound | None = None) -> int:
        """Takes slots for the next ``page_count`` planned pages of a read, as ``begin_read`` does.

        Returns for how many. A stale read gets none, and neither does one whose lease ended.
        """
        count = min(page_count, read.planned_end - read.end)
        lease = read.lease
        if lease is not None:
            key = lease.tenant, lease.lease_id
            count = count if self._state.table.leases.get(key) is lease else 0
        return 0 if count <= 0 or read.is_stale else self._take(read, count, bound)

    def publish_run(self, read: DiskRead, good_count: int, checksums: Items[int] = ()) -> bool:
        """Publishes the first ``good_count`` pages of a read that have slots. The read goes on.

        Returns False if fewer of them can be published. Then no page after them can be either,
        and the caller finishes the read once nobody writes into its slots any more. ``checksums``
        are those of the good pages, or empty. Raises nothing.
        """
        at, count, _ = self._advance(read, good_count, checksums)
        if at is not None:
            held, read.anchors = read.anchors, []
            read.tiers = nearest(at)
            read.stand_at(at)
            release(held)
        return count == good_count

    def finish_read(self, read: DiskRead, good_count: int, checksums: Items[int] = ()) -> int:
        """Publishes the first ``good_count`` pages of a read; returns how many were new.

        MOVING to CACHED, or to FREE. Publishes nothing if the path above left the index, or if
        pages of the namespace were removed. ``checksums`` are those of the good pages, or empty.
        Raises nothing.
        """
        published = self._advance(read, good_count, checksums)[2]
        del self.under_way[read]
        self._forget(read, read.planned_digests)
        read.namespace.arena.recycle(read.targets, SlotState.MOVING)
        self._drop_targets(read, len(read.targets))
        release(read.anchors)
        return published

    def _take(self, read: DiskRead, count: int, bound: EvictionBound | None) -> int:
        """Takes slots for the next ``count`` pages of a read; returns for how many."""
        taken = take_targets(self._state, read.lease, read.namespace, count, bound)
        read.targets.extend(taken)
        if bound is not None:
            read.bounded_count += len(taken)
        return len(taken)

    def _plan(self, read: DiskRead, digests: list[bytes], number: int) -> None:
        """Notes that a read is to bring more pages, from page store ``number``."""
        read.planned_end += len(digests)
        read.sources.append(ReadSource(read.planned_end, number))
        self._by_digest.setdefault(read.namespace, {}).update(dict.fromkeys(digests, read))

    def _forget(self, read: DiskRead, digests: list[bytes]) -> None:
        """Notes that a read is not to bring some pages any more."""
        if digests:
            reads_in = self._by_digest[read.namespace]
            for digest in digests:
                del reads_in[digest]
            if not reads_in:
                del self._by_digest[read.namespace]

    def _advance(
        self, read: DiskRead, good_count: int, checksums: Items[int]
    ) -> tuple[Position | None, int, int]:
        """Publishes the first pages of a read that have slots; ``start`` goes after them.

        Returns the place after the last of them, their number, and how many were new.
        """
        namespace, arena = read.namespace, read.namespace.arena
        lasting = arena.lasting
        good = read.targets[: 0 if read.is_stale else good_count]
        good = array("Q", takewhile(lambda slot: slot >> INDEX_BITS in lasting, good))
        if not good:
            return None, 0, 0
        arena.keep_checksums(zip(good, checksums, strict=False))
        at, fresh = self._publish(read, good)
        # The last of the good pages were new.
        arena.recycle(good[: len(good) - fresh], SlotState.MOVING)
        self._forget(read, read.digests.between(read.start, read.start + len(good)))
        self._drop_targets(read, len(good))
        read.start += len(good)
        for counters in (self._state.counters, namespace.counters):
            counters.loaded_page_count += fresh
        return at, len(good), fresh

    def _drop_targets(self, read: DiskRead, count: int) -> None:
        """Drops the first slots of a read, which are no longer its own."""
        read.targets = read.targets[count:]
        # Those that were taken under a bound are the last ones.
        left = min(read.bounded_count, len(read.targets))
        read.namespace.arena.bounded_count -= read.bounded_count - left
        read.bounded_count = left

    def _publish(self, read: DiskRead, good: Slots) -> tuple[Position, int]:
        """Publishes pages that were read below a read's path.

        Returns the place after the last of them, and how many were new.
        """
        namespace, end = read.namespace, read.start + len(good)
        tokens = read.digests.tokens(read.start, end)
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
        self._remember_kept(read, at, end)
        return at, len(fresh)

    def _remember_kept(self, read: DiskRead, at: Position, end: int) -> None:
        """Records which of the pages through ``at`` their page stores are known to have.

        Pages are known to be kept only if all pages before them are.
        """
        begin = read.start
        for source in read.sources:
            stop, number = min(source.end, end), source.number
            if stop <= begin:
                continue
            follows = kept_end(at, number) >= begin
            follows = follows and read.losses[number] == read.namespace.losses[number]
            remember(at, read.digests, stop if follows else 0, number)
            begin = stop


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
