"""A server with a fault put in on purpose: ``python broken_store.py FAULT ARGUMENTS``.

Each fault switches one protection of the store off, so that a test can show what
it is there for, and that it would see it fail.
"""

import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore.__main__ import main
from kvstore.core.leases.lease import Lease, LeaseChange
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.requests import Caller, Grant, Match, Sequence
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState
from kvstore.core.verbs.insert import base_of, parent_of, publish_next
from kvstore.core.verbs.lease_lifecycle import Lifecycle
from kvstore.core.verbs.reserve import Reserving
from kvstore.core.verbs.verify import Inspection
from kvstore.service.attached_processes import Process, Processes


def program(fault: str) -> tuple[str, ...]:
    """Returns the program of a store with a fault, for ``running_store``."""
    return (str(Path(__file__)), fault)


def recycle_pinned_slots() -> None:
    """Makes a reserve that lacks slots take all cached ones, even pinned. They stay matchable."""
    take = Reserving._take

    def take_anything(
        reserving: Reserving, lease: Lease, namespace: Namespace, count: int, now: float
    ) -> Slots:
        arena = namespace.arena
        if arena.free_count < count:
            cached = array("Q")
            for extent in arena.extents.values():
                base = extent.extent_id << INDEX_BITS
                states = enumerate(extent.states)
                cached.extend(base | index for index, each in states if each == SlotState.CACHED)
            arena.recycle(cached, SlotState.CACHED)
        return take(reserving, lease, namespace, count, now)

    Reserving._take = take_anything  # type: ignore[method-assign]


def publish_slots_of_the_dead() -> None:
    """Makes a lease's end publish its reserved and uninserted slots, as LMCache's reaper does."""
    acquire, end = Reserving.acquire_with_checks, Lifecycle.end
    asked: dict[int, Sequence] = {}

    def remember(
        reserving: Reserving,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        *rest: Any,  # noqa: ANN401  # as acquire's
        reservation_id: int,
        **named: Any,  # noqa: ANN401  # as acquire's
    ) -> tuple[Match, Grant | None, Inspection | None]:
        asked[reservation_id] = sequence
        return acquire(
            reserving, caller, namespace_id, sequence, *rest, reservation_id=reservation_id, **named
        )

    def publish_and_end(lifecycle: Lifecycle, lease: Lease, now: float) -> list[LeaseChange]:
        for reservation in lease.reservations.values():
            width = reservation.namespace.index.width
            tokens = asked[reservation.hold_id].tokens[: len(reservation.reserved) * width]
            base = base_of(lease, reservation, Sequence(tokens))
            publish_next(reservation, base, parent_of(reservation, base), tokens)
        return end(lifecycle, lease, now)

    Reserving.acquire_with_checks = remember  # type: ignore[method-assign]
    Lifecycle.end = publish_and_end  # type: ignore[method-assign]


def watch_no_deaths() -> None:
    """Makes the store watch itself instead of each process, so that it sees no worker's death."""
    attach = Processes.attach

    def attach_to_self(
        processes: Processes,
        pid: int,
        pidfd: int,
        lease_id: bytes,
        *rest: Any,  # noqa: ANN401
    ) -> Process:
        del pidfd
        own = os.pidfd_open(os.getpid())
        try:
            return attach(processes, pid, own, lease_id, *rest)
        finally:
            os.close(own)

    Processes.attach = attach_to_self  # type: ignore[method-assign]


def end_leases_at_their_ttl() -> None:
    """Makes a lease past its TTL give everything back, even if its processes live."""

    def end_at_once(lifecycle: Lifecycle, lease: Lease, now: float) -> list[LeaseChange]:
        return lifecycle.end(lease, now)

    Lifecycle._expire_lease = end_at_once  # type: ignore[method-assign]


def forget_reservations() -> None:
    """Makes a lease's end leave its reservations' slots as they are."""
    Lease.drop_reservation = lambda *_: None  # type: ignore[method-assign,assignment]


FAULTS: dict[str, Callable[[], None]] = {
    "pinned-slots-recycled": recycle_pinned_slots,
    "slots-of-the-dead-published": publish_slots_of_the_dead,
    "deaths-not-watched": watch_no_deaths,
    "leases-end-at-their-ttl": end_leases_at_their_ttl,
    "reservations-forgotten": forget_reservations,
}


if __name__ == "__main__":
    fault, *arguments = sys.argv[1:]
    FAULTS[fault]()
    sys.exit(main(arguments))
