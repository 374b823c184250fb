"""An arena: the slots of one tenant and page size in one tier, in extents."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kvstore.core.eviction.protocol import EvictionPolicy
from kvstore.core.journal.rows import ExtentRow
from kvstore.core.pool.tenant import Tenant
from kvstore.core.values.slots import (
    FREE,
    INDEX_BITS,
    INDEX_MASK,
    RESERVED,
    ExtentSlots,
    Slots,
    SlotState,
    mark,
    recycle,
)
from kvstore.errors import PoolExhausted

Recycled = Callable[[Slots], None]


class ArenaKey(NamedTuple):
    """The key of an arena: a tenant's pages of one size, on one set of devices, in one tier."""

    tenant: str
    page_bytes: int
    tensor_parallel_size: int
    tier: int = 1


class Arena:
    """The slots of one tenant, page size, number of ranks and tier. Grows by extents.

    Not thread-safe. ``owner`` is its tenant, and ``slot_bytes`` the size of a slot.
    ``counts[state]`` is the number of slots in a state. The extents in ``retiring`` give out no
    slots any more. Those in ``emptying`` are retiring and may still have pages in the index.
    ``bounded_count`` is the number of MOVING slots that were taken under an eviction bound.
    ``recycled`` receives slots that became FREE, before anybody can reserve
    them again.
    """

    def __init__(
        self,
        arena_id: int,
        key: ArenaKey,
        policy: EvictionPolicy,
        owner: Tenant,
        recycled: Recycled | None = None,
    ) -> None:
        self.arena_id = arena_id
        self.key = key
        self.tenant = key.tenant
        self.slot_bytes = key.page_bytes
        self.tier = key.tier
        self.owner = owner
        self.policy = policy
        self.extents: dict[int, ExtentSlots] = {}
        self.retiring: set[int] = set()
        self.emptying: set[int] = set()
        self.counts = [0] * len(SlotState)
        self.slot_count = 0
        self.bounded_count = 0
        self._recycled = recycled

    @property
    def free_count(self) -> int:
        """The number of slots that can be reserved at once."""
        if not self.retiring:
            return self.counts[FREE]
        withdrawn = sum(len(self.extents[each].available) for each in self.retiring)
        return self.counts[FREE] - withdrawn

    @property
    def lasting(self) -> set[int]:
        """The extents that are not retiring."""
        return self.extents.keys() - self.retiring

    @property
    def indexed(self) -> set[int]:
        """The extents that may have pages in the index."""
        return self.lasting | self.emptying

    @property
    def lasting_bytes(self) -> int:
        """The size of the slots of all extents that are not retiring."""
        return sum(self.extents[each].slot_count for each in self.lasting) * self.slot_bytes

    @property
    def quota_slots(self) -> int | None:
        """The number of slots by which the tenant's quota lets it grow, or None without a quota.

        A quota is of bytes in tier 1.
        """
        left = self.owner.bytes_left if self.tier == 1 else None
        return None if left is None else left // self.slot_bytes

    def add_extent(self, extent: ExtentSlots) -> None:
        """Adds an extent whose slots are all FREE."""
        self.extents[extent.extent_id] = extent
        self.slot_count += extent.slot_count
        self.counts[FREE] += extent.slot_count
        self._count_bytes(extent.slot_count)

    def withdraw(self, extent_id: int) -> None:
        """Gives out no slot of an extent any more."""
        self.retiring.add(extent_id)
        self.emptying.add(extent_id)

    def remove_extent(self, extent_id: int) -> None:
        """Drops an extent that retired. All its slots MUST be FREE."""
        extent = self.extents.pop(extent_id)
        self.retiring.remove(extent_id)
        self.emptying.discard(extent_id)
        self.slot_count -= extent.slot_count
        self.counts[FREE] -= extent.slot_count
        self._count_bytes(-extent.slot_count)

    def _count_bytes(self, slot_count: int) -> None:
        if self.tier == 1:
            self.owner.tier1_bytes += slot_count * self.slot_bytes

    def take(
        self,
        count: int,
        extent_ids: Collection[int],
        into: Slots,
        state: SlotState = RESERVED,
    ) -> None:
        """Takes ``count`` slots of the given extents, earlier extents first. FREE to ``state``.

        None of the extents may be retiring. Raises :class:`PoolExhausted` and changes nothing if
        they have too few slots.
        """
        usable = [extent for each, extent in self.extents.items() if each in extent_ids]
        available = sum(len(extent.available) for extent in usable)
        if available < count:
            raise PoolExhausted(requested=count, available=available)
        self.counts[FREE] -= count
        self.counts[state] += count
        for extent in usable:
            part = min(count, len(extent.available))
            if part:
                into.extend(extent.take(part, state))
                count -= part

    def change(self, slots: Slots, before: SlotState, after: SlotState) -> None:
        """Changes ``slots`` from one state to another, neither of them FREE."""
        self.counts[before] -= len(slots)
        self.counts[after] += len(slots)
        mark(self.extents, slots, after)

    def keep_checksums(self, checksums: Iterable[tuple[int, int]]) -> None:
        """Stores the checksums of pages that are published in some slots."""
        for slot, checksum in checksums:
            self.extents[slot >> INDEX_BITS].checksums[slot & INDEX_MASK] = checksum

    def restore_extent(self, extent: ExtentSlots) -> None:
        """Adds an extent whose slots have their states already."""
        self.extents[extent.extent_id] = extent
        self.slot_count += extent.slot_count
        for state in SlotState:
            self.counts[state] += extent.states.count(state)
        self._count_bytes(extent.slot_count)

    def count_anew(self) -> None:
        """Counts the slots by their states, after these changed by themselves."""
        for state in SlotState:
            self.counts[state] = sum(e.states.count(state) for e in self.extents.values())

    def recycle(self, slots: Slots, before: SlotState) -> None:
        """Gives ``slots`` back: generation + 1, FREE."""
        self.counts[before] -= len(slots)
        self.counts[FREE] += len(slots)
        recycle(self.extents, slots)
        if self._recycled is not None:
            self._recycled(slots)


def extent_row(arena: Arena, extent: ExtentSlots, *, retiring: bool = False) -> ExtentRow:
    """Returns the row of an arena's extent."""
    return ExtentRow(
        extent.extent_id,
        arena.arena_id,
        *arena.key,
        extent.slot_count,
        extent.arena_offset,
        retiring,
    )
