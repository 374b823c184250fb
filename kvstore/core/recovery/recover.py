"""Recovery: the cache that a store had, from its journal and the generations of its slots.

The generations decide. A page is there if the slot of one of its copies still has the generation
that the journal names, and if its parent is there. All other slots become FREE, and their
generations move once more, since nobody knows who had them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.memory import JournalMemory
from kvstore.core.journal.records import ReserveRecord
from kvstore.core.journal.rows import HoldRow, IdScope, LeaseRow, NamespaceRow, Table
from kvstore.core.leases.lease import Lease, LeaseState, Process
from kvstore.core.pool.arena import ArenaKey
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.pool.tenant import Tenant
from kvstore.core.recovery.holds import (
    caught_up,
    own_slots,
    restore_named_pin,
    restore_pin,
    restore_reservation,
    without,
)
from kvstore.core.recovery.pages import LiveCopies, LivePages, runs_of_pages
from kvstore.core.recovery.tree import TreeRecovery
from kvstore.core.recovery.written import JournalContents, NamespaceRecords, Sorted
from kvstore.core.values.requests import Caller, Identity
from kvstore.core.values.slots import (
    FREE,
    INDEX_BITS,
    INDEX_MASK,
    NO_CHECKSUM,
    ExtentSlots,
    Generations,
    SlotState,
)
from kvstore.core.values.tokens import TOKEN_BYTES

MakeCache = Callable[[], PrefixCache]


def recover(
    written: JournalContents, generations: Mapping[int, Generations], make: MakeCache, now: float
) -> "Recovered":
    """Returns the cache that wrote something, with all that an answer promised.

    ``generations`` are the tables of all extents that are still there, by extent. Moves those of
    slots without a live page or reservation, and writes nothing else, so it may be cut off and
    begun anew. ``make`` makes an empty cache of the same limits, tiers and epoch, without a
    journal. Leases keep their ids, and their TTL begins anew at ``now``. Their slots stay in
    quarantine until a process attaches. Raises ValueError if the state is not whole: then nothing
    of it can be used.
    """
    recovery = _Recovery(Sorted(written), generations, make(), now)
    recovery.run()
    return Recovered(recovery.cache, recovery.written)


class Recovered:
    """A cache that was recovered, and where its journal goes on."""

    def __init__(self, cache: PrefixCache, written: Sorted) -> None:
        self.cache = cache
        self._written = written

    def go_on(self, memory: JournalMemory) -> None:
        """Writes what changes from now on to the memory that the cache was recovered from."""
        journal = Journal(memory, self._written.next_id)
        journal.next_number = self._written.next_number
        self.cache.state.journal_to(journal)
        for key in self._written.hold_keys - {each.key for each in self._written.holds}:
            journal.clear(Table.HOLDS, key)


class _Recovery:
    """One recovery, step by step."""

    def __init__(
        self,
        written: Sorted,
        generations: Mapping[int, Generations],
        cache: PrefixCache,
        now: float,
    ) -> None:
        self.written = written
        self.cache = cache
        self._generations = generations
        self._now = now
        self._live = LiveCopies(generations)
        self._leases: dict[int, Lease] = {}
        self._holds: dict[int, list[HoldRow]] = defaultdict(list)
        self._reserved: dict[tuple[int, int], ReserveRecord] = {}

    def run(self) -> None:
        """Recovers everything."""
        state = self.cache.state
        # It has no use for removals that were settled, and hears of the others at the end.
        disk, state.disk = state.disk, None
        for lease in self.written.leases:
            self._restore_lease(lease)
        state.table.granted_count = max([self.written.lease_numbers, *self._leases])
        for hold in self.written.holds:
            self._holds[hold.namespace].append(hold)
        pages = {
            row.number: runs_of_pages(
                self._records(row).pages,
                self._live,
                row.layout.page_tokens * TOKEN_BYTES,
                one_by_one=len(row.arena_ids) > 1,
            )
            for row in self.written.namespaces
        }
        self._find_reservations(pages)
        self._restore_memory(pages)
        for row in self.written.namespaces:
            self._restore_namespace(row, pages[row.number])
        self._restore_processes()
        for extent in self.written.extents:
            if extent.retiring and extent.extent_id in self._generations:
                self.cache.retire_extent(extent.arena_id, extent.extent_id)
        self._restore_tombstones()
        if disk is not None:
            state.disk = disk
            self._restore_removals()
        # Watchers saw all of it before.
        state.events.recent.clear()
        state.events.count = 0

    def _records(self, row: NamespaceRow) -> NamespaceRecords:
        return self.written.of_namespace[row.number]

    def _tenant(self, name: str) -> Tenant:
        table = self.cache.table
        return table.tenants.setdefault(name, table.tenant_of(Identity(name)))

    def _restore_lease(self, row: LeaseRow) -> None:
        caller = Caller(Identity(row.tenant), row.lease_id, row.secret_digest, None)
        lease = Lease(
            row.number,
            caller,
            row.display_name,
            self._tenant(row.tenant),
            limits=self.cache.limits,
            now=self._now,
        )
        lease.ttl, lease.features = row.ttl, frozenset(row.features)
        lease.suspended = True
        if row.expired:
            lease.state, lease.expired_at = LeaseState.EXPIRED, self._now
        self.cache.table.add(lease)
        self._leases[row.number] = lease

    def _find_reservations(self, pages: Mapping[int, list[LivePages]]) -> None:
        """Finds the slots of each reservation. A later record has a slot, and not an earlier."""
        kept = [hold for hold in self.written.holds if hold.kind == IdScope.RESERVATION]
        keys = [(hold.lease, hold.hold_id) for hold in kept]
        records = [caught_up(self.written.reserved[key], self.written.inserts[key]) for key in keys]
        every = (each for found in pages.values() for each in found)
        taken = {slot for each in every for slot in (*each.slots, *each.lower)}
        for record in sorted(records, key=lambda each: -each.number):
            pairs = zip(record.slots, record.generations, strict=True)
            moved = {slot for slot, generation in pairs if not self._live.has(slot, generation)}
            own = without(record, taken | moved)
            taken.update(own_slots(own))
            self._reserved[own.lease, own.reservation_id] = own

    def _restore_memory(self, pages: Mapping[int, list[LivePages]]) -> None:
        """Makes arenas and extents. Slots that nobody has become FREE."""
        states: dict[int, SlotState] = {}
        for found in pages.values():
            for each in found:
                states.update(dict.fromkeys((*each.slots, *each.lower), SlotState.CACHED))
        for record in self._reserved.values():
            states.update(dict.fromkeys(own_slots(record), SlotState.QUARANTINED))
        by_extent: dict[int, list[int]] = defaultdict(list)
        for slot in states:
            by_extent[slot >> INDEX_BITS].append(slot)
        for row in self.written.extents:
            owner = self._tenant(row.tenant)
            key = ArenaKey(row.tenant, row.page_bytes, row.tensor_parallel_size, row.tier)
            arena = self.cache.restore_arena(row.arena_id, key, owner)
            table = self._generations.get(row.extent_id)
            if table is None:
                continue
            extent = ExtentSlots(row.extent_id, row.slot_count, table, row.tier, row.arena_offset)
            for slot in by_extent[row.extent_id]:
                extent.states[slot & INDEX_MASK] = states[slot]
                extent.checksums[slot & INDEX_MASK] = self._live.checksums.get(slot, NO_CHECKSUM)
            extent.available = [n for n in extent.available if extent.states[n] == FREE]
            for index in extent.available:
                table[index] += 1
            arena.restore_extent(extent)

    def _restore_namespace(self, row: NamespaceRow, pages: list[LivePages]) -> None:
        namespace = self.cache.restore_namespace(row, self._tenant(row.tenant), self._now)
        tree, records = TreeRecovery(namespace), self._records(row)
        for hold in self._holds[row.number]:
            lease = self._leases[hold.lease]
            if hold.kind == IdScope.RESERVATION:
                record = self._reserved[hold.lease, hold.hold_id]
                restore_reservation(tree, lease, namespace, record, self._now)
            else:
                restore_pin(tree, lease, namespace, hold, self._now)
        for pin in self.written.named_pins:
            if pin.namespace == row.number:
                restore_named_pin(tree, self.cache.state.named_pins, namespace, pin, self._now)
        tree.build(pages, records.pages, records.detached)
        tree.finish(records.ends)
        if row.deleted:
            self.cache.delete_namespace(Identity(row.tenant), row.namespace_id)

    def _restore_processes(self) -> None:
        table, mappings = self.cache.table, self.cache.state.mappings
        for lease_row in self.written.leases:
            lease = self._leases[lease_row.number]
            known = self.cache.arenas
            lease.arenas = {each: known[each] for each in lease_row.arena_ids if each in known}
        for row in self.written.processes:
            owner = self._leases.get(row.lease)
            if owner is not None:
                process = Process(row.process_id, row.pid, row.uid, owner)
                process.connected = False
                table.bind(owner, process)
        there = self._generations.keys() & {each.extent_id for each in self.written.extents}
        for mapping in self.written.mappings:
            mappings.give(mapping.process_id, mapping.pid, there & set(mapping.extent_ids))

    def _restore_tombstones(self) -> None:
        for lease_number, kind, hold_id in self.written.tombstones:
            lease = self._leases.get(lease_number)
            if lease is None:
                continue
            is_pin = kind == IdScope.PIN
            tombstones = lease.pin_tombstones if is_pin else lease.reservation_tombstones
            tombstones.leave(hold_id, self._now)

    def _restore_removals(self) -> None:
        disk = self.cache.state.disk
        assert disk is not None  # the caller knows
        for namespace in self.cache.namespaces.values():
            disk.open(namespace)
        for row in self.written.removals:
            removed = RemovedPrefix(
                row.namespace_id, row.namespace_digest, row.page_digest, row.number
            )
            disk.owe(removed)
            disk.last_number = row.number
