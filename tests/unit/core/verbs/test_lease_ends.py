"""The end of a lease with many holds, which go back in parts."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, Worker
from core.prefill_calls import acquire, in_flight
from kvstore.core.cache_state import HOLDS_AT_ONCE
from kvstore.core.leases.lease import Lease, LeaseChange
from kvstore.core.values.limits import Limits
from kvstore.errors import LeaseNotFound, Tombstoned
from recoveries.world import JournaledWorld


def hold(worker: Worker, pins: int, reservations: int) -> None:
    """Takes pins on a page, and reservations of one page each."""
    worker.publish("a")
    for number in range(1, pins + 1):
        worker.match("a", number)
    for number in range(1, reservations + 1):
        worker.reserve(number, 1)


def return_all(world: CoreWorld) -> list[list[LeaseChange]]:
    """Gives back all that ended leases held; returns the changes of each part."""
    parts = []
    while world.cache.table.ending:
        world.laws.check()
        parts.append(world.cache.return_holds())
    world.laws.check()
    return parts


@pytest.mark.parametrize("how", ["dies", "revokes", "expires"])
def test_no_step_gives_back_many_holds(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The first step does not either, however many holds there are and however the lease ends."""
    world = CoreWorld(slots=8)
    hold(world.worker, 3 * HOLDS_AT_ONCE, 0)
    dropped: list[object] = []
    drop_pin = Lease.drop_pin

    def count(lease: Lease, pin: object) -> None:
        dropped.append(pin)
        drop_pin(lease, pin)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(Lease, "drop_pin", count)
    changes: list[LeaseChange] = []
    if how == "dies":
        changes = world.cache.process_died(world.worker.process_id, world.now)
    elif how == "revokes":
        changes = world.cache.revoke(world.worker.caller, world.now)
    else:
        world.cache.table.unbind(world.worker.process_id)
        changes = world.cache.expire(world.now + 10)
    assert changes == []
    assert len(dropped) == HOLDS_AT_ONCE
    parts = return_all(world)
    assert [len(each) for each in parts] == [0, 1]
    assert parts[-1][0][2:] == ("ended", 3 * HOLDS_AT_ONCE, 0, 0)
    assert len(dropped) == 3 * HOLDS_AT_ONCE
    assert world.states() == {"FREE": 7, "CACHED": 1}


def test_reservations_go_back_first() -> None:
    """Others may lack their slots. The change has the counts of the whole."""
    world = CoreWorld(slots=8)
    hold(world.worker, 2, 3)
    world.cache.state.holds_at_once = 4
    assert world.cache.process_died(world.worker.process_id, world.now) == []
    assert world.states() == {"FREE": 6, "RESERVED": 1, "CACHED": 1}
    [*parts, [change]] = return_all(world)
    assert parts == []
    assert change[2:] == ("ended", 2, 3, 0)
    assert world.states() == {"FREE": 7, "CACHED": 1}


def test_slots_count_beside_their_hold() -> None:
    """A reservation of many slots takes a part of its own."""
    world = CoreWorld(slots=300)
    for number in range(1, 4):
        world.worker.reserve(number, 64)
    world.cache.state.holds_at_once = 4
    world.cache.process_died(world.worker.process_id, world.now)
    assert world.states() == {"FREE": 172, "RESERVED": 128}
    assert [len(each) for each in return_all(world)] == [0, 1]


def test_nobody_finds_a_lease_that_ends() -> None:
    """It has ended for every call. Its pins keep their pages until they go back."""
    world = CoreWorld(slots=8)
    other = world.join("other")
    hold(world.worker, 2, 1)
    world.cache.state.holds_at_once = 1
    world.cache.revoke(world.worker.caller, world.now)
    with pytest.raises(LeaseNotFound):
        world.worker.release(1)
    with pytest.raises(Tombstoned):
        world.cache.grant(
            world.worker.caller, ttl=None, display_name="again", features=(), now=world.now
        )
    assert world.cache.revoke(world.worker.caller, world.now) == []
    other.publish("bcdefgh")
    assert world.shape() == {"a": {}, "bcdefgh": {}}
    world.cache.evict_prefix(OWNER, NAMESPACE_ID, b"")
    assert world.states() == {"FREE": 7, "DETACHED": 1}
    return_all(world)
    assert world.states() == {"FREE": 8}


def test_leases_end_one_after_the_other() -> None:
    """The change of each comes with its last hold."""
    world = CoreWorld(slots=8)
    hold(world.worker, 3, 0)
    other = world.join("other")
    other.match("a", 1)
    world.cache.state.holds_at_once = 2
    assert world.cache.revoke(world.worker.caller, world.now) == []
    [change, another] = world.cache.revoke(other.caller, world.now)
    assert (change.lease_id, change.pin_count) == (world.worker.caller.lease_id, 3)
    assert (another.lease_id, another.pin_count) == (other.caller.lease_id, 1)
    assert return_all(world) == []


def test_quarantined_slots_stay_so_until_they_go_back() -> None:
    """The end of a lease past its TTL does not change the states of its slots."""
    world = CoreWorld(slots=8)
    hold(world.worker, 0, 3)
    world.cache.state.holds_at_once = 1
    world.cache.expire(world.now + 10)
    world.cache.process_died(world.worker.process_id, world.now + 11)
    assert world.states() == {"FREE": 5, "CACHED": 1, "QUARANTINED": 2}
    assert return_all(world)[-1][0][2:] == ("ended", 0, 0, 3)


def test_a_tenant_stays_as_long_as_it_holds_something() -> None:
    """Its counts are those of its holds, also of leases that ended."""
    world = CoreWorld(slots=8)
    hold(world.worker, 3, 0)
    world.cache.state.holds_at_once = 1
    tenant, table = world.arena.owner, world.cache.table
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    world.cache.revoke(world.worker.caller, world.now)
    # An arena of other pages would keep it too.
    arenas, tenant.arena_count = tenant.arena_count, 0
    table.expire_tombstones(world.now + 2 * Limits().tombstone_ttl)
    assert table.tenants[OWNER.tenant] is tenant
    while table.ending:
        world.cache.return_holds()
    table.expire_tombstones(world.now + 2 * Limits().tombstone_ttl)
    assert OWNER.tenant not in table.tenants
    tenant.arena_count = arenas


def test_a_namespace_is_deleted_meanwhile() -> None:
    """Announcements of reservations are dropped, and their slots go back."""
    world = CoreWorld(slots=8)
    for number, letters in enumerate(("ab", "cd"), start=1):
        acquire(world.worker, letters, (10 + number, number))
    other = world.join("other")
    world.cache.state.holds_at_once = 1
    world.cache.process_died(world.worker.process_id, world.now)
    assert in_flight(world, "ab") == (2, 0)
    arena = world.arena
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    assert arena.owner.announced_bytes == 0
    return_all(world)
    assert arena.free_count == 8
    assert other.lease.pins == {}


def test_a_crash_between_two_parts_ends_the_lease() -> None:
    """Its first write ended it: a recovery has nothing of it, and all of its slots are free."""
    world = JournaledWorld(slots=8)
    hold(world.worker, 3, 3)
    world.cache.state.holds_at_once = 1
    other = world.join("other")
    other.match("a", 1)
    world.cache.process_died(world.worker.process_id, world.now)
    assert len(world.cache.table.ending) == 1
    before = world.cache
    recovered = world.restart()
    assert list(recovered.cache.table.leases) == [(OWNER.tenant, other.caller.lease_id)]
    assert world.states() == {"FREE": 7, "CACHED": 1}
    world.laws.check()
    with pytest.raises(Tombstoned):
        world.cache.grant(
            world.worker.caller, ttl=None, display_name="again", features=(), now=world.now
        )
    while before.table.ending:
        before.return_holds()
