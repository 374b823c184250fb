"""The holds of a lease, as a whole and one by one."""

import pytest

from core.core_builders import ADMIN, NAMESPACE_ID, OWNER, CoreWorld
from kvstore.core.stats import HoldKind, HoldStats, LeaseStats, hold_stats, lease_stats
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import InvalidField, LeaseNotFound


@pytest.fixture
def world() -> CoreWorld:
    """A cache of 32 slots with one worker."""
    return CoreWorld(slots=32)


def holds(world: CoreWorld) -> list[HoldStats]:
    """Returns the worker's holds, five seconds on."""
    return hold_stats(world.worker.lease, world.now + 5)


def whole(world: CoreWorld) -> LeaseStats:
    """Returns the worker's lease, five seconds on."""
    return lease_stats(world.worker.lease, world.now + 5)


def test_each_hold_is_listed_in_the_order_of_taking(world: CoreWorld) -> None:
    """A pin and a reservation: pages, tokens, slots and age of each."""
    world.worker.publish("abcd")
    world.worker.match("abc", 9)
    world.now += 2
    world.worker.reserve(5, 3)
    pin, reservation = holds(world)
    assert (pin.number < reservation.number, pin.kind, pin.hold_id) == (True, HoldKind.PIN, 9)
    assert (pin.namespace_id, pin.page_count, pin.token_count) == (NAMESPACE_ID, 3, 6)
    assert (pin.detached_page_count, pin.slot_count, pin.age) == (0, 0, 7.0)
    assert (reservation.kind, reservation.hold_id) == (HoldKind.RESERVATION, 5)
    assert (reservation.page_count, reservation.token_count, reservation.slot_count) == (0, 0, 3)
    assert reservation.age == 5.0


def test_detached_pages_are_those_that_are_out_of_the_index(world: CoreWorld) -> None:
    """After a removal in the middle of a held path, what is below counts; each hold by itself."""
    world.worker.publish("abcd")
    world.worker.match("abcd", 1)
    world.worker.match("ab", 2)
    assert whole(world).detached_page_count == 0
    world.evict_prefix("abc")
    assert [each.detached_page_count for each in holds(world)] == [2, 0]
    world.evict_prefix("a")
    assert [each.detached_page_count for each in holds(world)] == [4, 2]
    assert whole(world).detached_page_count == 6
    assert world.namespace.detached_page_count == 4
    world.worker.release(1, 2)
    assert whole(world).detached_page_count == 0


def test_a_quarantine_has_an_age(world: CoreWorld) -> None:
    """Slots of an expired lease are in quarantine since it expired, and not reserved."""
    world.worker.reserve(5, 3)
    assert (whole(world).reserved_slot_count, whole(world).oldest_quarantine_age) == (3, None)
    world.now += world.worker.lease.ttl
    world.cache.expire(world.now)
    found = whole(world)
    assert (found.reserved_slot_count, found.quarantined_slot_count) == (0, 3)
    assert found.oldest_quarantine_age == 5.0
    (change,) = world.cache.abort(world.worker.caller, [5], world.now)
    assert (change.change, change.quarantined_slot_count) == ("returned", 3)
    found = whole(world)
    assert (found.quarantined_slot_count, found.oldest_quarantine_age) == (0, None)


def test_an_abort_within_the_ttl_ends_no_quarantine(world: CoreWorld) -> None:
    """There is none; and of two reservations in quarantine the first ends nothing."""
    for reservation_id in (5, 6, 7):
        world.worker.reserve(reservation_id, 1)
    assert world.cache.abort(world.worker.caller, [5], world.now) == []
    world.cache.expire(world.now + world.worker.lease.ttl)
    assert world.cache.abort(world.worker.caller, [6], world.now) == []
    assert len(world.cache.abort(world.worker.caller, [7], world.now)) == 1
    assert world.cache.abort(world.worker.caller, [7], world.now) == []


def test_a_lease_is_listed_to_its_tenant_and_to_admins(world: CoreWorld) -> None:
    """To another tenant it is an unknown one; where two chose the id an admin has to say whose."""
    lease, table = world.worker.lease, world.cache.table
    other = Identity("tenant-b")
    assert table.listed(OWNER, lease.lease_id, "") is lease
    assert table.listed(ADMIN, lease.lease_id, "") is lease
    for identity, tenant in ((other, ""), (other, OWNER.tenant), (OWNER, "tenant-b")):
        with pytest.raises(LeaseNotFound):
            table.listed(identity, lease.lease_id, tenant)
    theirs = Caller(other, lease.lease_id, b"secret", world.worker.caller.epoch)
    world.cache.grant(theirs, ttl=None, display_name="b", features=(), now=world.now)
    assert table.listed(OWNER, lease.lease_id, "") is lease
    assert table.listed(ADMIN, lease.lease_id, "tenant-b").tenant == "tenant-b"
    with pytest.raises(InvalidField):
        table.listed(ADMIN, lease.lease_id, "")
