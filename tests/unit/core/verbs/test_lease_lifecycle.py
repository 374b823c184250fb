"""Granting, renewing, expiring and ending leases, and what goes back when they do."""

import pytest

from core.core_builders import ADMIN, EPOCH, OWNER, CoreWorld
from kvstore.core.cache import PrefixCache
from kvstore.core.leases.lease import LeaseState
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import (
    LeaseExpired,
    LeaseNotFound,
    NotAttached,
    StaleEpoch,
    Tombstoned,
)

LIMITS = Limits(min_ttl=1.0, default_ttl=10.0, max_ttl=60.0, tombstone_ttl=100.0)
CALLER = Caller(OWNER, b"lease", b"secret", EPOCH)


def grant(members: PrefixCache, ttl: float | None = None, now: float = 100.0) -> float:
    """Grants the caller's lease."""
    return members.grant(CALLER, ttl=ttl, display_name="one", features=("a", "b"), now=now)


def make_members(*, attached: bool = True) -> PrefixCache:
    """Returns a membership with one lease."""
    members = PrefixCache(EPOCH, LIMITS)
    grant(members)
    if attached:
        members.bind(CALLER, process_id=1, pid=4001, uid=1000)
    return members


@pytest.mark.parametrize(
    ("asked", "given"), [(None, 10.0), (5.0, 5.0), (0.0, 1.0), (1.0, 1.0), (1e9, 60.0)]
)
def test_the_store_decides_the_ttl(asked: float | None, given: float) -> None:
    """The TTL asked for is advice: the answer lies within the limits, and is what counts."""
    members = PrefixCache(EPOCH, LIMITS)
    assert grant(members, asked) == given
    assert members.expire(100.0 + given - 0.1) == []
    assert [each.change for each in members.expire(100.0 + given)] == ["ended"]


def test_a_repeated_grant_renews() -> None:
    """A grant that was sent twice counts from the second, under what that one asked for."""
    members = make_members()
    assert grant(members, ttl=20.0, now=105.0) == 20.0
    assert members.expire(124.0) == []
    assert len(members.expire(125.0)) == 1


def test_a_lease_has_the_features_it_declared() -> None:
    """Features are those of the latest grant."""
    members = make_members()
    assert members.table.find(CALLER).features == {"a", "b"}
    members.grant(CALLER, ttl=None, display_name="one", features=("c",), now=101.0)
    assert members.table.find(CALLER).features == {"c"}


@pytest.mark.parametrize("epoch", [None, EPOCH + 1, EPOCH - 1])
def test_another_epoch_changes_nothing(epoch: int | None) -> None:
    """A caller of another epoch is refused before its lease is even looked for."""
    members = make_members()
    stale = CALLER._replace(epoch=epoch)
    for verb in (members.state.lease_of, members.state.member):
        with pytest.raises(StaleEpoch) as error:
            verb(stale)
        assert error.value.metadata == {"store_epoch": str(EPOCH), "request_epoch": str(epoch)}
    with pytest.raises(StaleEpoch):
        members.renew(stale, 105.0)
    with pytest.raises(StaleEpoch):
        members.revoke(stale, 105.0)
    assert members.table.find(CALLER).renewed_at == 100.0


def test_a_member_is_active_and_attached() -> None:
    """The request path needs a lease within its TTL, with a process; release needs neither."""
    members = make_members(attached=False)
    with pytest.raises(NotAttached):
        members.state.member(CALLER)
    members.bind(CALLER, process_id=1, pid=4001, uid=1000)
    lease = members.state.member(CALLER)
    members.expire(110.0)
    with pytest.raises(LeaseExpired):
        members.state.member(CALLER)
    assert members.state.lease_of(CALLER) is lease


def test_renewal_keeps_a_lease() -> None:
    """A lease renewed in time does not expire; one that expired can't be renewed."""
    members = make_members()
    assert members.renew(CALLER, 109.0) == 10.0
    assert members.expire(118.0) == []
    assert [each.change for each in members.expire(119.0)] == ["expired"]
    with pytest.raises(LeaseExpired):
        members.renew(CALLER, 119.0)


def test_a_lease_ends_by_its_owner() -> None:
    """Revoking one's own ends it at once; the id can't be granted again."""
    members = make_members()
    (change,) = members.revoke(CALLER, 101.0)
    assert (change.change, change.display_name) == ("ended", "one")
    assert not members.table.leases
    with pytest.raises(Tombstoned):
        grant(members, now=102.0)


def test_a_revoke_overtakes_its_grant() -> None:
    """A grant that arrives after the revoke that undid it makes no lease."""
    members = PrefixCache(EPOCH, LIMITS)
    assert members.revoke(CALLER, 100.0) == []
    with pytest.raises(Tombstoned):
        grant(members, now=101.0)


def test_a_repeated_revoke_succeeds() -> None:
    """Revoking what ended already changes nothing."""
    members = make_members()
    members.revoke(CALLER, 101.0)
    assert members.revoke(CALLER, 102.0) == []


def test_no_one_else_ends_a_lease() -> None:
    """Another secret is told that there is no such lease; another tenant as of an unknown one."""
    members = make_members()
    with pytest.raises(LeaseNotFound):
        members.revoke(CALLER._replace(secret_digest=b"guess"), 101.0)
    assert members.revoke(CALLER._replace(identity=Identity("b")), 101.0) == []
    assert members.table.find(CALLER).state is LeaseState.ACTIVE


def test_an_admins_revoke_is_an_expiry() -> None:
    """Without the secret, and without an epoch, an admin makes a living lease expire, once."""
    members = make_members()
    admin = Caller(ADMIN, CALLER.lease_id, b"", None)
    assert [each.change for each in members.revoke(admin, 101.0)] == ["expired"]
    assert members.table.find(CALLER).state is LeaseState.EXPIRED
    assert members.revoke(admin, 102.0) == []


def test_an_admins_revoke_overtakes_a_grant_of_its_own() -> None:
    """The tombstone is the admin's own tenant's if nobody has a lease of that id."""
    members = PrefixCache(EPOCH, LIMITS)
    admin = Caller(ADMIN, CALLER.lease_id, b"secret of an admin", None)
    assert members.revoke(admin, 100.0) == []
    with pytest.raises(Tombstoned):
        members.grant(admin, ttl=10.0, display_name="late", features=(), now=101.0)
    assert grant(members, now=101.0) == LIMITS.default_ttl


def test_an_admins_epoch_is_checked_where_it_is_given() -> None:
    """An admin that names another epoch is refused."""
    members = make_members()
    with pytest.raises(StaleEpoch):
        members.revoke(Caller(ADMIN, CALLER.lease_id, b"", EPOCH + 1), 101.0)


def test_a_lease_without_processes_ends_at_its_ttl() -> None:
    """Expiry ends a lease at once if no process could still write."""
    members = make_members(attached=False)
    assert [each.change for each in members.expire(110.0)] == ["ended"]
    assert not members.table.leases


def test_a_lease_with_processes_expires_once() -> None:
    """A living holder past its TTL is reported one time, and stays until it is dead."""
    members = make_members()
    assert [each.change for each in members.expire(110.0)] == ["expired"]
    assert members.expire(1e6) == []
    assert [each.change for each in members.process_died(1, 1e6)] == ["ended"]
    assert not members.table.leases


def test_a_lease_that_was_left_before_its_use_ends_at_its_ttl() -> None:
    """A process that gave up attaching, and lives, keeps no lease: its revoke may be lost."""
    members = make_members()
    members.disconnected(1)
    assert [each.change for each in members.expire(110.0)] == ["ended"]
    assert not members.table.leases


def test_a_lease_that_expired_before_its_use_ends_once_it_is_left() -> None:
    """One that an admin expired while its process attached ends when that hung up."""
    members = make_members()
    members.revoke(Caller(ADMIN, CALLER.lease_id, b"", None), 101.0)
    assert members.expire(102.0) == []
    members.disconnected(1)
    assert [each.change for each in members.expire(102.0)] == ["ended"]


def test_a_lease_that_was_given_memory_outlives_its_connection() -> None:
    """A process that was given extents and is not connected any more may still write."""
    world = CoreWorld()
    world.cache.disconnected(world.worker.process_id)
    assert [each.change for each in world.cache.expire(world.now + 10)] == ["expired"]


def test_expiry_drops_old_tombstones() -> None:
    """Tombstones of leases, pins and reservations go when their time is over, not before."""
    members = make_members()
    lease = members.table.find(CALLER)
    members.revoke(CALLER._replace(lease_id=b"other"), 100.0)
    lease.pin_tombstones.leave(1, 100.0)
    lease.reservation_tombstones.leave(1, 100.0)
    members.expire(199.0)
    assert len(lease.owner.tombstones) == 3
    members.expire(200.0)
    assert len(lease.owner.tombstones) == 0


def test_quarantine_is_the_expiry_of_a_living_holder() -> None:
    """Reserved slots of an expired lease are in quarantine until it aborts; its pins stay."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.worker.reserve(2, 3, start=2)
    world.worker.reserve(3, 1)
    (change,) = world.cache.expire(world.now + 10)
    assert (change.change, change.pin_count, change.quarantined_slot_count) == ("expired", 1, 4)
    assert world.states() == {"FREE": 2, "CACHED": 2, "QUARANTINED": 4}
    world.laws.check()
    world.worker.abort(2)
    assert world.states() == {"FREE": 5, "CACHED": 2, "QUARANTINED": 1}
    assert list(world.worker.lease.pins) == [1]
    world.worker.release(1)
    world.laws.check()


def test_all_goes_back_when_a_lease_ends() -> None:
    """The end releases pins, gives reserved slots back, keeps published pages cached."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.worker.reserve(2, 3)
    world.worker.insert(2, "ab")
    (change,) = world.cache.revoke(world.worker.caller, world.now)
    assert (change.change, change.pin_count, change.reserved_slot_count) == ("ended", 1, 3)
    assert world.states() == {"FREE": 6, "CACHED": 2}
    assert not any(node.anchors for node in world.namespace.index.nodes.values())
    world.laws.check()


def test_quarantine_ends_with_proven_death() -> None:
    """When the last process of an expired lease died, its slots are FREE."""
    world = CoreWorld()
    world.worker.reserve(2, 3)
    world.cache.expire(world.now + 10)
    world.cache.process_died(world.worker.process_id, world.now + 11)
    assert world.states() == {"FREE": 8}
    world.laws.check()


def test_sums_survive_the_end_of_a_lease() -> None:
    """The counts of an ended lease are kept, so that sums stay equal to the totals."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.cache.revoke(world.worker.caller, world.now)
    assert world.cache.state.ended == world.cache.counters
    assert world.cache.state.ended.inserted_page_count == 2


def test_rates_can_change_and_nothing_else() -> None:
    """New quotas do not change what a tenant may have, except for its rates."""
    members = make_members()
    members.change_rates(QuotaTable(Quotas(leases=0, requests_per_second=2.0)))
    found = members.table.tenant_of(OWNER).quotas
    assert found == members.state.quotas.default == Quotas(requests_per_second=2.0)
