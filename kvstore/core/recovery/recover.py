"""Recovery: the cache that a store had, from its journal and the generations of its slots.

The generations decide. A page is there if the slot of one of its copies still has the generation
that the journal names, and if its parent is there. All other slots become FREE, and their
generations move once more, since nobody knows who had them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.memory import JournalMemory
from kvstore.core.journal.records import ReserveRecord
from kvstore.core.journal.rows import PIN_SCOPE, HoldRow, LeaseRow, NamespaceRow, Table
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
from kvstore.core.recovery.late_writes import LateWrites
from kvstore.core.recovery.pages import LivePages, runs_of_pages
from kvstore.core.recovery.tree import TreeRecovery
from kvstore.core.recovery.written import JournalContents, NamespaceRecords, Sorted
from kvstore.core.values.requests import Caller, Identity
from kvstore.core.values.slots import (
    CACHED,
    FREE,
    INDEX_BITS,
    INDEX_MASK,
    ExtentSlots,
    Generations,
    SlotState,
    mark,
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
    from_nothing = written._replace(known_count=0)
    recovery = Recovery(Sorted(from_nothing, generations), make(), now)
    recovery.run()
    return recovery.result()


class Recovered:
    """A cache that was recovered, and where its journal goes on."""

    def __init__(self, cache: PrefixCache, written: Sorted, late: LateWrites) -> None:
        self.cache = cache
        self._written = written
        self._late = late

    def go_on(self, memory: JournalMemory) -> None:
        """Writes what changes from now on to the memory that the cache was recovered from."""
        journal = Journal(memory, self._written.next_id)
        journal.next_number = self._written.next_number
        self.cache.state.journal_to(journal)
        for key in self._written.hold_keys - {each.key for each in self._written.holds}:
            journal.clear(Table.HOLDS, key)
        self._late.write_to(memory)


class Recovery:
    """One recovery, step by step. ``run`` takes all steps; a head start takes some before.

    ``written`` is what the steps read, and ``extents`` are those that are still there. The cache
    gets ``disk`` at the end.
    """

    def __init__(self, written: Sorted, cache: PrefixCache, now: float) -> None:
        self.cache = cache
        self.late = LateWrites()
        self.written = written
        self.now = now
        generations = written.live.generations
        self.extents = {
            each.extent_id: ExtentSlots(
                *(each.extent_id, each.slot_count, generations[each.extent_id]),
                *(each.tier, each.arena_offset),
            )
            for each in written.extents
            if each.extent_id in generations
        }
        # It has no use for removals that were settled, and hears of the others at the end.
        self.disk, cache.state.disk = cache.state.disk, None
        self._leases: dict[int, Lease] = {}
        self._holds: dict[int, list[HoldRow]] = defaultdict(list)
        self._reserved: dict[int, list[ReserveRecord]] = defaultdict(list)

    def run(self) -> None:
        """Recovers everything."""
        self.restore_leases()
        pages = {row.number: self.pages_of(row) for row in self.written.namespaces}
        self.mark_pages(chain.from_iterable(pages.values()))
        self.mark_reservations()
        self.restore_memory()
        for row in self.written.namespaces:
            tree = self.restore_namespace(row)
            self.restore_holds(tree, row)
            self.build(tree, row, pages[row.number])
        self.restore_uses()
        self.use_pins()
        self.finish()

    def result(self) -> "Recovered":
        """Returns the cache, once all steps were taken."""
        return Recovered(self.cache, self.written, self.late)

    def restore_leases(self) -> None:
        """Makes the leases, without their holds."""
        for lease in self.written.leases:
            self._restore_lease(lease)
        granted = max([self.written.lease_numbers, *self._leases])
        self.cache.state.table.granted_count = granted
        for hold in self.written.holds:
            self._holds[hold.namespace].append(hold)

    def pages_of(self, row: NamespaceRow) -> list[LivePages]:
        """Returns the pages of a namespace that are there, by id."""
        return runs_of_pages(
            self._records(row).pages,
            self.written.live,
            row.layout.page_tokens * TOKEN_BYTES,
            one_by_one=len(row.arena_ids) > 1,
        )

    def finish(self) -> None:
        """Makes all that is left, once the trees are whole."""
        self._restore_processes()
        state = self.cache.state
        with self._writing():
            for extent in self.written.extents:
                if extent.retiring and extent.extent_id in self.extents:
                    self.cache.retire_extent(extent.arena_id, extent.extent_id)
        self._restore_tombstones()
        if self.disk is not None:
            state.disk = self.disk
            self._restore_removals()
        # Watchers saw all of it before.
        state.events.recent.clear()
        state.events.count = 0

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Writes down what is done within, once the memory may be written.

        The process that began it may have ended before it wrote all of it.
        """
        state = self.cache.state
        state.journal_to(Journal(self.late, self.written.next_id))
        yield
        state.journal_to(None)

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
            now=self.now,
        )
        lease.ttl, lease.features = row.ttl, frozenset(row.features)
        lease.suspended = True
        if row.expired:
            lease.state, lease.expired_at = LeaseState.EXPIRED, self.now
        self.cache.table.add(lease)
        self._leases[row.number] = lease

    def mark_pages(self, pages: Iterable[LivePages]) -> None:
        """Marks the slots of pages, and gives them their checksums."""
        for each in pages:
            mark(self.extents, each.slots, CACHED)
            mark(self.extents, each.lower, CACHED)
        for slots, checksums in self.written.live.checksums:
            for slot, checksum in zip(slots, checksums, strict=True):
                self.extents[slot >> INDEX_BITS].checksums[slot & INDEX_MASK] = checksum

    def mark_reservations(self) -> None:
        """Marks the slots of each reservation. A later record has a slot, and not an earlier."""
        inserts = self.written.inserts
        records = [
            caught_up(each, inserts[each.lease, each.reservation_id])
            for each in self.written.reservations
        ]
        for record in sorted(records, key=lambda each: -each.number):
            own = without(record, set(self._lost(record)))
            mark(self.extents, own_slots(own), SlotState.QUARANTINED)
            self._reserved[own.namespace].append(own)

    def _lost(self, record: ReserveRecord) -> Iterator[int]:
        """Yields the slots of a reservation that moved on, or that somebody else has."""
        for slot, generation in zip(record.slots, record.generations, strict=True):
            if not self.written.live.has(slot, generation) or self._is_taken(slot):
                yield slot
        yield from filter(self._is_taken, record.duplicates)

    def _is_taken(self, slot: int) -> bool:
        """Returns True if somebody has a slot, or if its memory is gone."""
        extent = self.extents.get(slot >> INDEX_BITS)
        return extent is None or extent.states[slot & INDEX_MASK] != FREE

    def restore_memory(self) -> None:
        """Adds the extents to their arenas. Slots that nobody has become FREE."""
        for row in self.written.extents:
            owner = self._tenant(row.tenant)
            key = ArenaKey(row.tenant, row.page_bytes, row.tensor_parallel_size, row.tier)
            arena = self.cache.restore_arena(row.arena_id, key, owner)
            extent = self.extents.get(row.extent_id)
            if extent is None:
                continue
            free_the_rest(extent)
            arena.restore_extent(extent)

    def restore_namespace(self, row: NamespaceRow) -> TreeRecovery:
        """Makes a namespace without pages, and returns what builds its tree."""
        tenant = self._tenant(row.tenant)
        return TreeRecovery(self.cache.restore_namespace(row, tenant, self.now))

    def restore_holds(self, tree: TreeRecovery, row: NamespaceRow) -> None:
        """Makes the holds of a namespace, which wait for their pages."""
        namespace = tree.namespace
        for hold in self._holds[row.number]:
            restore_pin(tree, self._leases[hold.lease], namespace, hold, self.now)
        for record in self._reserved[row.number]:
            lease = self._leases[record.lease]
            restore_reservation(tree, lease, namespace, record, self.now)
        for pin in self.written.named_pins:
            if pin.namespace == row.number:
                restore_named_pin(tree, self.cache.state.named_pins, namespace, pin, self.now)

    def build(self, tree: TreeRecovery, row: NamespaceRow, pages: Iterable[LivePages]) -> None:
        """Builds the tree of a namespace. Raises ValueError if a held page is lost."""
        records = self._records(row)
        tree.build(pages, records.pages, records.detached)
        tree.finish(records.ends)
        if row.deleted:
            with self._writing():
                self.cache.delete_namespace(Identity(row.tenant), row.namespace_id)

    def restore_uses(self) -> None:
        """Makes pages the more recently used the later they were published.

        The journal has no uses. So a policy first evicts what was published first.
        """
        state, namespaces = self.cache.state, self.cache.namespaces.values()
        nodes = [
            (Position(node, len(node.slots)).page_id, node, namespace)
            for namespace in namespaces
            for node in namespace.index.nodes.values()
        ]
        nodes.sort(key=itemgetter(0))
        for use, (_, node, _) in enumerate(nodes, 1):
            node.last_use = use
        state.use_count = len(nodes)
        for _, node, namespace in nodes:
            namespace.leaf_changed(node)

    def use_pins(self) -> None:
        """Makes the pages of pins the most recently used."""
        state = self.cache.state
        for lease in self._leases.values():
            for pin in lease.pins.values():
                for anchor in pin.anchors:
                    state.touch(Position(anchor.node, anchor.pages))
                    pin.namespace.leaf_changed(anchor.node)

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
        for mapping in self.written.mappings:
            there = self.extents.keys() & set(mapping.extent_ids)
            mappings.give(mapping.process_id, mapping.pid, there)

    def _restore_tombstones(self) -> None:
        # Every pin that ended lately has one.
        ended: dict[tuple[int, int], list[int]] = defaultdict(list)
        for lease_number, kind, hold_id in self.written.tombstones:
            ended[lease_number, kind].append(hold_id)
        for (lease_number, kind), hold_ids in ended.items():
            lease = self._leases.get(lease_number)
            if lease is None:
                continue
            is_pin = kind == PIN_SCOPE
            # An id may come again once its tombstone is no more.
            again = lease.pins.keys() if is_pin else lease.reservations.keys()
            tombstones = lease.pin_tombstones if is_pin else lease.reservation_tombstones
            tombstones.leave_all([each for each in hold_ids if each not in again], self.now)
        for tenant, lease_id in self.written.ended:
            # Its tombstone may have been dropped, and the id granted anew.
            if (tenant, lease_id) not in self.cache.table.leases:
                self._tenant(tenant).lease_tombstones.leave(lease_id, self.now)

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


def free_the_rest(extent: ExtentSlots) -> None:
    """Makes all slots of an extent free that nobody has. Their generations move once."""
    states, generations = extent.states, extent.generations
    extent.available = [n for n in range(extent.slot_count - 1, -1, -1) if states[n] == FREE]
    for index in extent.available:
        generations[index] += 1
