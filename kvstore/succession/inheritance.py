"""The inheritance of a server: all that the one before left with a carrier, or nothing of it.

The descriptors are only evidence. Nothing of them is used before all of it fits together: the
settings, each extent and its table, the journal, a pidfd of each process, and samples of pages.
Until then only generations move, so a server that is killed meanwhile leaves all to the next.
"""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from kvstore.core import PrefixCache
from kvstore.core.journal.rows import ExtentRow, Row, Table
from kvstore.core.recovery.head_start import Declined
from kvstore.core.recovery.recover import Recovered, recover
from kvstore.core.recovery.written import JournalContents
from kvstore.core.values.slots import ExtentSlots, Generations
from kvstore.holder.carrier import CarriedDescriptor, CarrierFailed, DescriptorCarrier
from kvstore.holder.holder_process import DescriptorKind
from kvstore.ring import JournalUnusable
from kvstore.storage.arenas import Arenas
from kvstore.storage.errors import BudgetExhausted, ExtentUnusable, StorageError
from kvstore.storage.extent import ExtentShape
from kvstore.storage.held_memory import (
    DATA_ENDING,
    PROCESS_NAMES,
    data_name,
    process_name,
    table_name,
)
from kvstore.succession.clean_start import CleanStart, require_equal
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.journal_memory import is_of_journal, map_journal
from kvstore.succession.left_memory import LeftMemory, is_left
from kvstore.succession.memory_ahead import MemoryAhead
from kvstore.succession.samples import Read, Samples

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Makes an empty cache of an epoch.
MakeCache = Callable[[int], PrefixCache]


class InheritedProcess(NamedTuple):
    """A process that attached to an earlier server. ``lease_id`` is empty if its lease ended."""

    process_id: int
    pid: int
    lease_id: bytes
    pidfd: int


class Inheritance(NamedTuple):
    """A cache that goes on, with the journal that it was recovered from and its processes."""

    cache: PrefixCache
    journal: DurableJournal
    processes: list[InheritedProcess]
    samples: Samples
    # What the head start came to.
    head_start: str


class Estate:
    """All descriptors that a carrier has at a server's start, which owns them.

    Either ``inherit`` succeeds once, or ``discard`` follows.
    """

    def __init__(
        self,
        carrier: DescriptorCarrier,
        tiers: Sequence[Arenas],
        left: LeftMemory,
        ahead: MemoryAhead | None = None,
    ) -> None:
        """Takes the descriptors. ``tiers`` are the memory tiers, empty so far, tier 1 first.

        ``left`` gets what earlier clean starts left, and what this one leaves. ``ahead`` was read
        while the server before was still at work.
        """
        self._ahead = ahead
        self._head_start = "none"
        self._carrier = carrier
        self._tiers = tiers
        self._left = left
        every = carrier.descriptors()
        left.take(every)
        # Those that belong to nobody else yet.
        self._carried = {name: each for name, each in every.items() if not is_left(name)}
        # Copies of what workers may have mapped, and of their pidfds.
        self._copies = {
            name: CarriedDescriptor(os.dup(each.descriptor), each.identity)
            for name, each in self._carried.items()
            if is_of_workers(name)
        }
        # The journal's come first: without it, what is left of a drop that was cut off is dropped.
        self._names = sorted(self._carried, key=is_of_journal, reverse=True)
        self._generations: dict[int, Generations] = {}

    def inherit(self, settings: Mapping[str, str], make: MakeCache, now: float) -> Inheritance:
        """Returns the cache that the server before left. Raises :class:`CleanStart`.

        ``settings`` are those that have to be equal. Leases' times to live begin at ``now``. Drops
        the descriptors that the cache does not use.
        """
        try:
            # The objects of a large cache are kept, and collections of them take long.
            gc.disable()
            inheritance = self._inherit(settings, make, now)
            gc.freeze()
        finally:
            gc.enable()
        return inheritance

    def _inherit(self, settings: Mapping[str, str], make: MakeCache, now: float) -> Inheritance:
        """Does what ``inherit`` says, without collections of garbage."""
        journal = self._open_journal()
        require_equal(journal.store.settings, settings)
        contents = journal.contents()
        for row in contents.rows[Table.EXTENTS].values():
            assert isinstance(row, ExtentRow)  # the rows of this table
            self._restore_extent(row)
        epoch = journal.store.store_epoch
        try:
            recovered = self._complete(contents, lambda: make(epoch), now)
            if recovered is None:
                recovered = recover(contents, self._generations, lambda: make(epoch), now)
        except ValueError as error:
            raise CleanStart(f"the journal and the memory do not fit together: {error}") from error
        cache = recovered.cache
        processes = list(self._processes(cache))
        samples = self._sample(cache)
        for each in processes:
            del self._carried[process_name(each.process_id)]
        self._go_on(recovered, journal, contents.rows)
        self._drop(self._carried)
        _close(self._copies)
        return Inheritance(cache, journal, processes, samples, self._head_start)

    def discard(self) -> None:
        """Drops all descriptors, except what living processes may have mapped: that is left."""
        self._generations.clear()
        for each in self._tiers:
            each.close()
        with suppress(CarrierFailed):
            self._left.leave(self._copies)
        self._carrier.drop(self._names)
        _close(self._carried)
        # A cache that was recovered in part is a circle, and keeps the memory mapped.
        self._drop_ahead()

    def _open_journal(self) -> DurableJournal:
        named = {name: each for name, each in self._carried.items() if is_of_journal(name)}
        if not named:
            raise CleanStart("no journal is there")
        if self._ahead is not None and not self._ahead.is_of(named):
            self._drop_ahead()
        ahead = self._ahead
        try:
            if ahead is not None:
                return DurableJournal.open(ahead.memories, ahead.journal)
            return DurableJournal.open({name: _mapped(each) for name, each in named.items()})
        except (JournalUnusable, OSError) as error:
            raise CleanStart(f"the journal is unusable: {error}") from error

    def _complete(
        self, contents: JournalContents, make: Callable[[], PrefixCache], now: float
    ) -> Recovered | None:
        """Returns what a head start comes to, or None if there is none or it declines."""
        if self._ahead is None or self._ahead.head_start is None:
            return None
        try:
            recovered = self._ahead.head_start.complete(contents, self._generations, make, now)
        except Declined as declined:
            self._head_start = str(declined)
        except Exception as error:
            # Nothing was written, and a recovery from nothing does not depend on it.
            self._head_start = f"it failed: {error!r}"
            log.exception("head_start_failed", why=repr(error))
        else:
            self._head_start = "completed"
            return recovered
        self._drop_ahead()
        return None

    def _drop_ahead(self) -> None:
        """Frees the trees of a head start, which are circles among what is not collected."""
        self._ahead = None
        gc.unfreeze()
        gc.collect()

    def _restore_extent(self, row: ExtentRow) -> None:
        """Maps an extent and its table. One without descriptors has left, or never was."""
        names = data_name(row.extent_id), table_name(row.extent_id)
        if not all(name in self._carried for name in names):
            return
        if row.tier > len(self._tiers):
            raise CleanStart(f"extent {row.extent_id} is of tier {row.tier}, which is absent")
        shape = ExtentShape(
            row.extent_id,
            row.arena_id,
            row.tier,
            row.slot_count,
            row.page_bytes,
            row.arena_offset,
        )
        # They are the extent's from now on, also if it cannot be restored.
        data, table = (self._carried.pop(name).descriptor for name in names)
        try:
            extent = self._tiers[row.tier - 1].restore(shape, data, table)
        except BudgetExhausted as error:
            raise CleanStart(
                f"the memory that was left does not fit into --tier{row.tier}-bytes, and is freed"
            ) from error
        except (ExtentUnusable, StorageError) as error:
            raise CleanStart(f"extent {row.extent_id}: {error}") from error
        self._generations[row.extent_id] = extent.generation_table.view

    def _processes(self, cache: PrefixCache) -> Iterator[InheritedProcess]:
        """Yields the processes that are attached or have memory mapped; raises CleanStart.

        A process without a pidfd may live, and write to memory that it was given.
        """
        attached, mappings = cache.table.processes, cache.state.mappings
        for process_id in sorted(attached.keys() | mappings.process_ids):
            carried = self._carried.get(process_name(process_id))
            if carried is None or carried.identity.kind != DescriptorKind.PIDFD:
                raise CleanStart(f"the pidfd of process {process_id} is missing")
            known = attached.get(process_id)
            if known is None:
                pid, lease_id = mappings.pid_of(process_id), b""
            else:
                pid, lease_id = known.pid, known.lease.lease_id
            yield InheritedProcess(process_id, pid, lease_id, carried.descriptor)

    def _sample(self, cache: PrefixCache) -> Samples:
        """Returns what samples the extents, and samples some of them; raises CleanStart."""
        tiers = {
            extent.extent_id: self._tiers[extent.tier - 1]
            for arena in cache.arenas.values()
            for extent in arena.extents.values()
        }

        def reader(extent_id: int) -> Read:
            found = tiers[extent_id].reader(extent_id)
            return _closed if found is None else found

        samples = Samples(_extents(cache), reader)
        if not samples.prove_some():
            [extent_id, *_] = samples.wrong
            raise CleanStart(f"a page of extent {extent_id} has other bytes than were written")
        return samples

    def _go_on(
        self,
        recovered: Recovered,
        journal: DurableJournal,
        rows: Mapping[Table, Mapping[object, Row]],
    ) -> None:
        """Writes from now on: first that another server goes on, and what is not there any more."""
        cache, store = recovered.cache, journal.store
        journal.follow(cache)
        recovered.go_on(journal)
        journal.replace_store(store._replace(instance=store.instance + 1))
        there: dict[Table, Iterable[int]] = {
            Table.EXTENTS: self._generations,
            Table.PROCESSES: cache.table.processes,
            Table.MAPPINGS: cache.state.mappings.process_ids,
        }
        for table, kept in there.items():
            for key in rows[table].keys() - set(kept):
                journal.clear(table, key)

    def _drop(self, unused: dict[str, CarriedDescriptor]) -> None:
        """Drops descriptors that nothing is written about, except those of the journal."""
        gone = {name: each for name, each in unused.items() if not is_of_journal(name)}
        self._carrier.drop(gone)
        _close(gone)


def _mapped(carried: CarriedDescriptor) -> memoryview:
    return map_journal(carried.descriptor, carried.identity.size_bytes)


def is_of_workers(name: str) -> bool:
    """Returns whether a name is that of an extent's memory or of a process."""
    return name.endswith(DATA_ENDING) or name.startswith(PROCESS_NAMES)


def _extents(cache: PrefixCache) -> Iterator[ExtentSlots]:
    for arena in cache.arenas.values():
        yield from arena.extents.values()


def _closed(_: int) -> None:
    """Reads nothing: the memory is closed."""


def _close(carried: dict[str, CarriedDescriptor]) -> None:
    for each in carried.values():
        with suppress(OSError):
            os.close(each.descriptor)
    carried.clear()
