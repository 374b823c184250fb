"""An arena's slots: extents, counts by state, and the policy that makes room."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kvstore.core.eviction.policy import EvictionPolicy
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
    """What makes an arena: a tenant's pages of one size, on one set of devices."""

    tenant: str
    page_bytes: int
    tensor_parallel_size: int
    tier: int = 1


class Arena:
    """The slots of one (tenant, bytes per page, ranks); grows by extents.

    Not thread-safe. ``holdings`` are its ``tenant``'s. A slot has ``slot_bytes``;
    ``counts[state]`` is the number of slots in a state. Of the extents ``retiring`` are
    on their way out: their slots are handed out no more. ``recycled`` is told of slots
    that became FREE, before anybody can reserve them.
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
        self.counts = [0] * len(SlotState)
        self.slot_count = 0
        self._recycled = recycled

    @property
    def free_count(self) -> int:
        """Number of slots that can be reserved at once."""
        if not self.retiring:
            return self.counts[FREE]
        withdrawn = sum(len(self.extents[each].available) for each in self.retiring)
        return self.counts[FREE] - withdrawn

    @property
    def lasting(self) -> set[int]:
        """The extents that are not retiring."""
        return self.extents.keys() - self.retiring

    @property
    def lasting_bytes(self) -> int:
        """Bytes of the slots of all extents that are not retiring."""
        return sum(self.extents[each].slot_count for each in self.lasting) * self.slot_bytes

    @property
    def quota_slots(self) -> int | None:
        """Number of slots that its tenant's quota still lets it grow by; None: no quota.

        A quota is of bytes in tier 1.
        """
        left = self.owner.bytes_left if self.tier == 1 else None
        return None if left is None else left // self.slot_bytes

    def add_extent(self, extent: ExtentSlots) -> None:
        """Add an extent whose slots are all FREE."""
        self.extents[extent.extent_id] = extent
        self.slot_count += extent.slot_count
        self.counts[FREE] += extent.slot_count
        self._count_bytes(extent.slot_count)

    def withdraw(self, extent_id: int) -> None:
        """Hand out no slot of an extent any more."""
        self.retiring.add(extent_id)

    def remove_extent(self, extent_id: int) -> None:
        """Drop an extent that retired; all its slots MUST be FREE."""
        extent = self.extents.pop(extent_id)
        self.retiring.remove(extent_id)
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
        """Take ``count`` slots of the given extents, earlier extents first.

        None of them may be retiring. FREE to ``state``. Raises :class:`PoolExhausted`
        and changes nothing where they are not available.
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
        """Move ``slots`` from one state to another, neither of them FREE."""
        self.counts[before] -= len(slots)
        self.counts[after] += len(slots)
        mark(self.extents, slots, after)

    def keep_checksums(self, checksums: Iterable[tuple[int, int]]) -> None:
        """Note of slots that are published what their pages' bytes come to."""
        for slot, checksum in checksums:
            self.extents[slot >> INDEX_BITS].checksums[slot & INDEX_MASK] = checksum

    def recycle(self, slots: Slots, before: SlotState) -> None:
        """Give ``slots`` back: generation + 1, FREE."""
        self.counts[before] -= len(slots)
        self.counts[FREE] += len(slots)
        recycle(self.extents, slots)
        if self._recycled is not None:
            self._recycled(slots)
