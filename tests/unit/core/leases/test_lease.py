"""A lease by itself; the table of leases is in test_lease_table.py."""

import pytest

from core.core_builders import EPOCH, OWNER, make_arena, make_namespace, make_tenant, plant
from kvstore.core.leases.holds import Pin, Reservation
from kvstore.core.leases.lease import Lease, LeaseChange, LeaseState, Process
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import (
    LeaseExpired,
    NotAttached,
    PinNotFound,
    QuotaExceeded,
    ReservationNotFound,
    Tombstoned,
)

CALLER = Caller(OWNER, b"lease id 16 byte", b"the secret", EPOCH)


def make_lease(limits: Limits | None = None) -> Lease:
    """Returns a lease granted at 100 seconds."""
    holdings = make_tenant()
    return Lease(1, CALLER, "worker one", holdings, limits=limits or Limits(), now=100.0)


def attach(lease: Lease, process_id: int, *mapped: int) -> Process:
    """Puts a process under a lease that has mapped these extents."""
    process = Process(process_id, 4000 + process_id, 1000, lease)
    process.mapped.update(mapped)
    lease.processes[process_id] = process
    return process


def test_a_new_lease_owns_nothing() -> None:
    """A lease just granted is active and has no processes, holds or counts."""
    lease = make_lease()
    assert lease.state is LeaseState.ACTIVE
    assert [lease.processes, lease.pins, lease.reservations, lease.arenas] == [{}, {}, {}, {}]
    assert lease.unpublished_count() == 0
    assert lease.counters.is_zero()
    assert lease.granted_at == lease.renewed_at == 100.0


@pytest.mark.parametrize(
    ("tenant", "secret", "known"),
    [
        (OWNER.tenant, b"the secret", True),
        (OWNER.tenant, b"the secreT", False),
        (OWNER.tenant, b"", False),
        ("tenant-b", b"the secret", False),
    ],
)
def test_a_lease_knows_its_owner(tenant: str, secret: bytes, *, known: bool) -> None:
    """Both tenant and secret have to be the lease's."""
    assert make_lease().knows(Caller(Identity(tenant), b"", secret, None)) is known


def test_past_its_ttl_a_lease_is_refused_by_name() -> None:
    """An active lease passes; an expired one is named in the error."""
    lease = make_lease()
    lease.require_active()
    lease.state = LeaseState.EXPIRED
    with pytest.raises(LeaseExpired) as error:
        lease.require_active()
    assert error.value.metadata == {"lease_id": CALLER.lease_id.hex()}


def test_a_lease_needs_a_process() -> None:
    """Without an attached process a lease takes no part, with one it does."""
    lease = make_lease()
    with pytest.raises(NotAttached) as error:
        lease.require_attached()
    assert error.value.metadata == {"lease_id": CALLER.lease_id.hex()}
    attach(lease, 1)
    lease.require_attached()


def test_a_recovered_lease_that_nobody_resumed_is_forsaken() -> None:
    """It may have memory, but holds nothing. One that holds something is not."""
    namespace = make_namespace()
    lease = make_lease()
    attach(lease, 1)
    lease.arenas[namespace.arena.arena_id] = namespace.arena
    process = lease.processes[1]
    process.connected = False
    assert not lease.forsaken
    lease.suspended = True
    assert lease.forsaken
    process.connected = True
    assert not lease.forsaken
    process.connected = False
    lease.pins[1] = Pin(1, namespace, plant(namespace, "a"), None, 100.0)
    assert not lease.forsaken
    lease.pins.clear()
    lease.reservations[1] = Reservation(1, namespace, 0, 100.0)
    assert not lease.forsaken


def test_pins_and_reservations_share_a_quota() -> None:
    """Holds of both kinds together are bounded; up to the bound there is room."""
    namespace = make_namespace()
    lease = make_lease(Limits(max_holds_per_lease=3))
    lease.require_room(3)
    lease.pins[1] = Pin(1, namespace, plant(namespace, "a"), None, 100.0)
    lease.reservations[1] = Reservation(1, namespace, 0, 100.0)
    lease.require_room(1)
    with pytest.raises(QuotaExceeded) as error:
        lease.require_room(2)
    assert error.value.metadata == {"quota": "holds_per_lease", "maximum": "3"}


def test_a_pin_is_found_or_named() -> None:
    """A lease's own pin is found; another id is in the error."""
    namespace = make_namespace()
    lease = make_lease()
    lease.pins[5] = pin = Pin(5, namespace, plant(namespace, "a"), None, 100.0)
    assert lease.pin(5) is pin
    with pytest.raises(PinNotFound) as error:
        lease.pin(6)
    assert error.value.metadata == {"pin_id": "6"}


def test_a_reservation_is_found_or_named() -> None:
    """A lease's own reservation is found; one never made differs from one ended."""
    lease = make_lease()
    lease.reservations[5] = reservation = Reservation(5, make_namespace(), 0, 100.0)
    assert lease.reservation(5) is reservation
    with pytest.raises(ReservationNotFound) as error:
        lease.reservation(6)
    assert error.value.metadata == {"reservation_id": "6"}
    lease.reservation_tombstones.leave(6, 100.0)
    with pytest.raises(Tombstoned):
        lease.reservation(6)


def test_tombstones_of_pins_and_reservations_are_apart() -> None:
    """A released pin's number does not tombstone a reservation's."""
    lease = make_lease()
    lease.pin_tombstones.leave(6, 100.0)
    with pytest.raises(ReservationNotFound):
        lease.reservation(6)


def test_extents_are_usable_that_all_processes_mapped() -> None:
    """One process that has not mapped an extent keeps it from the whole lease."""
    arena, lease = make_arena(1, 1, 1), make_lease()
    assert lease.usable_extents(arena) == {1, 2, 3}
    attach(lease, 1, 1, 2, 99)
    assert lease.usable_extents(arena) == {1, 2}
    attach(lease, 2, 2, 3)
    assert lease.usable_extents(arena) == {2}
    attach(lease, 3)
    assert lease.usable_extents(arena) == set()


def test_unpublished_slots_are_counted_over_all_reservations() -> None:
    """Reserved slots that no insert published are summed."""
    namespace, lease = make_namespace(), make_lease()
    for number, slots in ((1, [1, 2]), (2, [3, 4, 5])):
        lease.reservations[number] = Reservation(number, namespace, 0, 100.0)
        lease.reservations[number].grow(slots)
    lease.reservations[2].record([True, False], plant(namespace, "ab"))
    assert lease.unpublished_count() == 4


def test_a_change_says_what_was_held() -> None:
    """A line for the log has the lease, the change, and what it held then."""
    namespace, lease = make_namespace(), make_lease()
    lease.pins[5] = Pin(5, namespace, plant(namespace, "a"), None, 100.0)
    lease.reservations[1] = Reservation(1, namespace, 0, 100.0)
    lease.reservations[1].grow([7, 8])
    assert lease.change("ended") == LeaseChange(CALLER.lease_id, "worker one", "ended", 1, 2, 0)


def test_a_new_process_is_connected_and_has_mapped_nothing() -> None:
    """An attached process has acknowledged no extent yet."""
    process = Process(3, 4003, 1000, make_lease())
    assert process.connected
    assert process.mapped == set()
