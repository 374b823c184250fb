"""A store with one pool of pages, worker processes on it, and what it says of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import NamedTuple, Self

import pytest

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client import connect_admin
from kvstore_client.testing import VARIABLE, RunningStore, running_store, wait_until
from pages.stamped_pages import LAYOUT
from processes.page_worker import LONG_TTL, page_process
from processes.worker_process import WorkerProcess

POOL_SLOTS = 64
ACTIVE = lease_pb2.LeaseInfo.STATE_ACTIVE
EXPIRED = lease_pb2.LeaseInfo.STATE_EXPIRED


def pool_arguments(extent_slots: int = POOL_SLOTS) -> tuple[str, ...]:
    """Returns the server's arguments for a pool of 64 slots in extents of so many."""
    return (
        *("--tier1-bytes", str(POOL_SLOTS * LAYOUT.page_bytes)),
        *("--extent-bytes", str(extent_slots * LAYOUT.page_bytes)),
    )


class Slots(NamedTuple):
    """The number of the pool's slots in each state."""

    free: int = 0
    reserved: int = 0
    cached: int = 0
    detached: int = 0
    quarantined: int = 0


def slots_of(stats: store_pb2.GetStatsResponse) -> Slots:
    """Returns the pool's slots by state, which have to sum to all; none where there is no pool."""
    if not stats.arenas:
        return Slots()
    (arena,) = stats.arenas
    slots = Slots(
        arena.free_slot_count,
        arena.reserved_slot_count,
        arena.cached_slot_count,
        arena.detached_slot_count,
        arena.quarantined_slot_count,
    )
    assert sum(slots) == arena.slot_count, arena
    return slots


class Fleet:
    """Worker processes on one store. One thread uses it, and kills them all by leaving it."""

    def __init__(self, store: RunningStore) -> None:
        self.store = store
        self._processes: list[WorkerProcess] = []

    def spawn(
        self,
        name: str,
        *,
        faults: str = "",
        ttl: float = LONG_TTL,
        barrier: Barrier | None = None,
        join: bytes | None = None,
        contiguous: bool = False,
    ) -> WorkerProcess:
        """Starts a worker, with ``faults`` planned as ``kvstore_client.fault_points`` reads them.

        With ``join`` it is under the lease of the worker that shared it. A ``contiguous`` one finds
        pages by their rows.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, faults)
            process = page_process(
                self.store.runtime_dir,
                name,
                ttl=ttl,
                barrier=barrier,
                join=join,
                contiguous=contiguous,
            )
        self._processes.append(process)
        return process

    def barrier(self, parties: int) -> Barrier:
        """Returns a barrier for workers that are spawned with it."""
        return get_context("spawn").Barrier(parties)

    def stats(self) -> store_pb2.GetStatsResponse:
        """Returns one snapshot of the store."""
        with connect_admin(self.store.runtime_dir) as admin:
            return admin.stats()

    def slots(self) -> Slots:
        """Returns the pool's slots by state."""
        return slots_of(self.stats())

    def leases(self, name: str) -> list[lease_pb2.LeaseInfo]:
        """Returns the leases of a worker, by time of granting."""
        return [each for each in self.stats().leases if each.display_name == name]

    def evict(self, tokens: list[int]) -> tuple[int, int]:
        """Remove a prefix as an operator; return how many pages went, and how many are detached."""
        with connect_admin(self.store.runtime_dir) as admin:
            (namespace,) = admin.namespaces()
            removed = admin.evict_prefix(namespace.namespace_id, tokens)
        return removed.evicted_page_count, removed.detached_page_count

    def settled(self) -> bool:
        """Returns whether nothing is held or missing: every slot is free or cached."""
        stats = self.stats()
        slots = slots_of(stats)
        unsettled = slots.reserved + slots.detached + slots.quarantined
        return (stats.pin_count, stats.reservation_count, unsettled) == (0, 0, 0)

    def left_nothing(self) -> bool:
        """Returns whether all leases come to their end, with all that they held."""
        return wait_until(lambda: not self.stats().leases and self.settled())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()


@contextmanager
def running_fleet(
    *arguments: str, extent_slots: int = POOL_SLOTS, verify_rate: float = 0.0
) -> Iterator[Fleet]:
    """Runs a store of 64 pages, without workers yet, until the block ends.

    It looks at no page unless told to: the workers do, and what they would see is not
    to be hidden from them. At the end all workers are killed, and nothing may be left
    of any.
    """
    looking = ("--verify-rate", str(verify_rate))
    with running_store(*pool_arguments(extent_slots), *looking, *arguments) as store:
        with Fleet(store) as fleet:
            yield fleet
        assert fleet.left_nothing(), fleet.stats()
        assert "Traceback" not in store.log, store.log
