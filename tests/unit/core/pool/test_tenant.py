"""The counts of a tenant's leases, holds and memory, and the quotas that bound them."""

import pytest

from core.core_builders import ADMIN, EPOCH, NAMESPACE_ID, OWNER, CoreWorld, make_layout
from kvstore.core import PrefixCache
from kvstore.core.pool.tenant import Tenant, no_key
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits, Quotas
from kvstore.core.values.page_hash import namespace_digest
from kvstore.core.values.requests import Caller, Identity
from kvstore.errors import NamespaceNotFound, PoolExhausted, QuotaExceeded, Tombstoned

OTHER = Identity("tenant-b")


def tenant_in(world: CoreWorld) -> Tenant:
    """Returns what the world's tenant has."""
    return world.cache.table.tenants[OWNER.tenant]


def join_other(world: CoreWorld, name: str = "first") -> Caller:
    """Adds another tenant's worker, under a lease id that tenant-a may have too."""
    caller = Caller(OTHER, name.ljust(16).encode(), b"another secret!!", EPOCH)
    world.cache.grant(caller, ttl=None, display_name=name, features=(), now=world.now)
    return caller


def test_pins_of_all_leases_together_are_bounded() -> None:
    """The quota is the tenant's: what one lease holds, another cannot; what goes makes room."""
    world = CoreWorld(quotas=Quotas(pins=2))
    world.worker.publish("ab")
    second = world.join("second")
    world.worker.match("ab", 1)
    second.reserve(2, 1)
    for over in (lambda: second.match("ab", 3), lambda: world.worker.reserve(4, 1)):
        with pytest.raises(QuotaExceeded) as error:
            over()
        assert error.value.metadata == {"quota": "pins", "maximum": "2"}
    world.laws.check()
    world.worker.release(1)
    assert second.match("ab", 3).matched_token_count == 4
    world.laws.check()


def test_what_an_ended_lease_held_counts_no_more() -> None:
    """All that a lease owned goes from its tenant's counts with it."""
    world = CoreWorld(quotas=Quotas(pins=2))
    second = world.join("second")
    second.reserve(1, 1)
    second.reserve(2, 1)
    world.cache.revoke(second.caller, world.now)
    assert tenant_in(world).hold_count == 0
    world.worker.reserve(1, 1)
    world.laws.check()


def test_leases_are_bounded() -> None:
    """One lease more than the quota is refused; another tenant's do not count."""
    world = CoreWorld(quotas=Quotas(leases=2))
    join_other(world)
    world.join("second")
    with pytest.raises(QuotaExceeded) as error:
        world.join("third")
    assert error.value.metadata == {"quota": "leases", "maximum": "2"}
    world.laws.check()


@pytest.mark.parametrize("verb", ["release", "abort"])
def test_tombstones_are_bounded(verb: str) -> None:
    """Ids, made up or used, take no memory beyond a bound of the tenant's; the oldest go."""
    world = CoreWorld(limits=Limits(max_tombstones=3))
    give_back = getattr(world.worker, verb)
    give_back(11, 12, 13, 14)
    for number in range(1, 6):
        world.worker.reserve(number, 1)
        world.worker.abort(number)
    assert len(tenant_in(world).tombstones) == 3
    world.worker.reserve(1, 1)
    with pytest.raises(Tombstoned):
        world.worker.reserve(5, 1)
    world.cache.expire(world.now + Limits().tombstone_ttl)
    assert len(tenant_in(world).tombstones) == 0
    world.laws.check()


def test_tombstones_of_leases_are_bounded() -> None:
    """The same holds for leases; and who is gone leaves nothing behind for ever."""
    world = CoreWorld(limits=Limits(max_tombstones=2))
    callers = [join_other(world, name) for name in ("a", "b", "c")]
    for each in callers:
        world.cache.revoke(each, world.now)
        world.cache.revoke(each, world.now)
    assert len(world.cache.table.tenants[OTHER.tenant].tombstones) == 2
    with pytest.raises(Tombstoned):
        join_other(world, "c")
    world.laws.check()
    world.cache.expire(world.now + Limits().tombstone_ttl)
    assert OTHER.tenant not in world.cache.table.tenants


def test_a_page_larger_than_the_quota_opens_nothing() -> None:
    """A page that could never have a slot is refused before its namespace exists."""
    world = CoreWorld(quotas=Quotas(tier1_bytes=1000))
    with pytest.raises(QuotaExceeded) as error:
        world.cache.open_namespace(
            world.worker.caller,
            NamespaceIdentity(b"large"),
            make_layout(page_bytes=1001),
            b"x",
            world.now,
        )
    assert error.value.metadata == {"quota": "tier1_bytes", "maximum": "1000", "value": "1001"}
    assert len(world.cache.namespaces) == len(world.cache.arenas) == 1


def test_bytes_are_those_of_all_arenas() -> None:
    """The rest of the quota goes down with each extent of any arena."""
    world = CoreWorld(quotas=Quotas(tier1_bytes=1000))
    assert tenant_in(world).bytes_left == 1000 - 8 * 64
    large = NamespaceIdentity(b"large")
    layout = make_layout(page_bytes=100)
    opened = world.cache.open_namespace(world.worker.caller, large, layout, b"x", world.now)
    world.cache.add_extent(opened.arena.arena_id, 2, 4)
    assert tenant_in(world).bytes_left == 1000 - 8 * 64 - 4 * 100
    assert Tenant("b", Quotas(), Limits()).bytes_left is None


def test_an_id_that_another_tenant_uses_is_unknown() -> None:
    """Granting, renewing, binding and revoking it are as if nobody had it."""
    world = CoreWorld()
    theirs = join_other(world, "first")
    assert world.cache.table.find(theirs) is not world.worker.lease
    world.cache.bind(theirs, process_id=50, pid=50, uid=2)
    world.cache.revoke(theirs, world.now)
    with pytest.raises(Tombstoned):
        join_other(world, "first")
    world.cache.renew(world.worker.caller, world.now)
    unknown = Caller(OTHER, b"second          ", b"no secret of it", EPOCH)
    world.join("second")
    assert world.cache.revoke(unknown, world.now) == []
    assert len(world.cache.table.leases) == 2
    world.laws.check()


def test_an_admins_revoke_is_for_all_that_chose_the_id() -> None:
    """Tenants choose ids by themselves: the admin's word goes to each of them."""
    world = CoreWorld()
    theirs = join_other(world, "first")
    admin = Caller(ADMIN, theirs.lease_id, b"", None)
    changes = world.cache.revoke(admin, world.now)
    assert sorted(each.change for each in changes) == ["ended", "expired"]


def test_a_tenants_pool_is_its_own() -> None:
    """The numbers of a refusal are the caller's arena's, whatever others have."""
    world = CoreWorld(slots=4)
    theirs = join_other(world)
    world.cache.bind(theirs, process_id=50, pid=50, uid=2)
    opened = world.cache.open_namespace(
        theirs, NamespaceIdentity(b"model"), world.layout, b"theirs", world.now
    )
    world.cache.add_extent(opened.arena.arena_id, 2, 100)
    with pytest.raises(PoolExhausted) as error:
        world.worker.reserve(1, 5)
    assert error.value.metadata == {"requested": "5", "available": "4"}
    with pytest.raises(NamespaceNotFound) as other:
        world.cache.peek(OTHER, NAMESPACE_ID, b"", world.now)
    with pytest.raises(NamespaceNotFound) as unknown:
        world.cache.peek(OTHER, b"unknown", b"", world.now)
    assert other.value.metadata == {"namespace_id": NAMESPACE_ID.hex()}
    assert unknown.value.metadata == {"namespace_id": b"unknown".hex()}


def test_tenants_with_other_keys_name_their_pages_apart() -> None:
    """The key is asked for by the tenant's name; without one the digest is that of the name."""
    keys = {"a": b"one", "b": b"other"}
    digests = []
    keyed = PrefixCache(EPOCH, Limits(), tenant_key=lambda name: keys.get(name, b""))
    for cache in (keyed, PrefixCache(EPOCH, Limits())):
        for name in ("a", "b", "c"):
            caller = Caller(Identity(name), b"lease".ljust(16), b"secret", EPOCH)
            cache.grant(caller, ttl=None, display_name="", features=(), now=0.0)
            cache.bind(caller, process_id=ord(name), pid=1, uid=1)
            identity, layout = NamespaceIdentity(b"model"), make_layout()
            opened = cache.open_namespace(caller, identity, layout, name.encode(), 0.0)
            key = keys.get(name, b"") if cache is keyed else no_key(name)
            assert opened.digest == namespace_digest(name, identity, layout, key)
            digests.append(opened.digest)
    # Of three tenants in two stores the one without a key is the same in both.
    assert (len(set(digests)), digests[2]) == (5, digests[5])
