"""The changes of a store's blocks, for a publisher that follows them on a thread of its own."""

from threading import Event, Lock
from typing import NamedTuple

from kvstore.core import PrefixCache
from kvstore.core.pool.copy_changes import CopySweep
from kvstore.core.values.change_log import (
    NOTHING_TAKEN,
    ChangeLog,
    CopiesStored,
    PageSpace,
    TakenChanges,
)

# Bytes of changes that wait for each tenant: those of about 100,000 blocks of 16 tokens.
ROOM_BYTES = 32 << 20
# Nodes of a sweep under the mutex at a time: a quarter of a millisecond.
NODES_AT_ONCE = 128


class SweepPart(NamedTuple):
    """A part of a sweep: the changes since the part before, then the blocks that it lists."""

    taken: TakenChanges
    listed: list[CopiesStored]


class KvEventUse(NamedTuple):
    """Counts of the KV events of one tenant since the start.

    ``last_number`` is the number of the latest batch. ``lost_change_count`` counts changes that
    did not fit, in place of which a snapshot was published.
    """

    tenant: str
    endpoint: str
    replay_endpoint: str
    last_number: int
    batch_count: int
    stored_block_count: int
    removed_block_count: int
    lost_change_count: int
    snapshot_count: int
    replay_count: int


class BlockFeed:
    """The changes of all tenants' blocks. Each method is for the publisher's thread.

    ``mutex`` is the store's; it guards ``cache``, which MUST have no page yet, or a journal.
    ``due`` is set once changes wait.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, *, room_bytes: int = ROOM_BYTES) -> None:
        self.due = Event()
        self._cache = cache
        self._mutex = mutex
        self._log = ChangeLog(room_bytes=room_bytes, wake=self.due.set)
        with mutex:
            cache.events.changes = self._log
            self._first = {each.tenant for each in cache.namespaces.values()}

    def tenants(self) -> set[str]:
        """Returns the tenants that had blocks at the beginning, or changes since."""
        return self._first.union(self._log.tenants())

    def take(self, tenant: str) -> TakenChanges:
        """Returns the changes of a tenant's blocks since the last call."""
        if not self._log.has_changes(tenant):
            return NOTHING_TAKEN
        with self._mutex:
            return self._log.take(tenant)

    def begin_sweep(self, tenant: str) -> tuple[CopySweep, list[PageSpace]]:
        """Returns a sweep over all blocks that a tenant has, and its namespaces, oldest first."""
        with self._mutex:
            spaces = list(self._cache.state.namespaces_of.of(tenant).values())
            return CopySweep(spaces), list(spaces)

    def go_on(self, tenant: str, sweep: CopySweep) -> SweepPart:
        """Returns the next part of a sweep."""
        with self._mutex:
            return SweepPart(self._log.take(tenant), sweep.take(NODES_AT_ONCE))
