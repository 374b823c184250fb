"""Snapshots of a store, and listings of a namespace's tree."""

from dataclasses import asdict

from core.core_builders import ADMIN, EPOCH, NAMESPACE_ID, OWNER, CoreWorld, make_layout, paged
from kvstore.core.stats import PrefixStats, ProcessStats, later_nodes, prefix_stats, snapshot
from kvstore.core.values.event_log import Cause
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Caller, Identity, MatchOptions, NamedPinRequest
from kvstore.core.values.slots import SlotState

OTHER = Identity("tenant-b")


def listed(world: CoreWorld, after: int, count: int, max_tokens: int) -> list[PrefixStats]:
    """Returns up to ``count`` nodes of the world's namespace above a number."""
    numbers = later_nodes(world.namespace, after, count)
    return prefix_stats(world.namespace, numbers, max_tokens)


def busy() -> CoreWorld:
    """Returns a world with pages in every state that they can be in, but quarantine."""
    world = CoreWorld(slots=16)
    world.worker.publish("abcd", "abxy")
    world.worker.match("abc", 1)
    world.evict_prefix("abc")
    world.now += 2
    world.worker.reserve(5, 3)
    return world


def join_other_tenant(world: CoreWorld) -> Caller:
    """Adds a worker of another tenant, with a namespace, an extent and a lookup."""
    caller = Caller(OTHER, b"theirs", b"secret", EPOCH)
    world.cache.grant(caller, ttl=None, display_name="theirs", features=(), now=world.now)
    world.cache.bind(caller, process_id=90, pid=4090, uid=7)
    identity = NamespaceIdentity(b"model")
    world.cache.open_namespace(caller, identity, make_layout(), b"their id", world.now)
    world.cache.add_extent(2, 9, 4)
    world.cache.match(caller, b"their id", world.worker.sequence("q"), MatchOptions(1), world.now)
    return caller


def test_a_snapshot_counts_slots_by_state() -> None:
    """An arena's slots are shown by state, and the states sum to its slots."""
    (arena,) = snapshot(busy().cache, OWNER, 102.0).arenas
    assert (arena.arena_id, arena.tenant, arena.tier) == (1, OWNER.tenant, 1)
    assert (arena.slot_bytes, arena.extent_count, arena.slot_count) == (64, 1, 16)
    assert arena.slots == {
        SlotState.FREE: 8,
        SlotState.RESERVED: 3,
        SlotState.CACHED: 4,
        SlotState.DETACHED: 1,
        SlotState.MOVING: 0,
        SlotState.QUARANTINED: 0,
    }
    assert sum(arena.slots.values()) == arena.slot_count


def test_an_admin_is_shown_why_pages_were_removed() -> None:
    """Only an admin sees the removals of all tenants together."""
    world = busy()
    assert snapshot(world.cache, ADMIN, 102.0).removed_pages == {Cause.REMOVED: 2}
    assert snapshot(world.cache, OWNER, 102.0).removed_pages == {}


def test_a_snapshot_shows_a_namespace() -> None:
    """Pages cached and detached, nodes, pins and counts stand beside what the namespace is."""
    world = busy()
    (namespace,) = snapshot(world.cache, OWNER, 105.0).namespaces
    assert (namespace.namespace_id, namespace.number) == (NAMESPACE_ID, 1)
    assert (namespace.tenant, namespace.arena_id) == (OWNER.tenant, 1)
    assert (namespace.identity, namespace.layout) == (NamespaceIdentity(b"model"), make_layout())
    assert (namespace.cached_page_count, namespace.node_count) == (4, 2)
    assert (namespace.detached_page_count, namespace.pin_count) == (1, 1)
    assert namespace.age == 5.0
    assert namespace.counters == world.namespace.counters


def test_a_snapshot_shows_a_lease() -> None:
    """A row names the lease, counts its holds, and has their ages as of now."""
    world = busy()
    (lease,) = snapshot(world.cache, OWNER, 105.0).leases
    assert (lease.number, lease.lease_id) == (1, world.worker.caller.lease_id)
    assert (lease.display_name, lease.tenant, lease.expired) == ("first", OWNER.tenant, False)
    assert (lease.age, lease.since_renewal, lease.oldest_hold_age) == (5.0, 5.0, 5.0)
    assert (lease.pin_count, lease.pinned_page_count, lease.reservation_count) == (1, 3, 1)
    assert (lease.reserved_slot_count, lease.quarantined_slot_count) == (3, 0)
    assert lease.processes == (ProcessStats(1001, 1, connected=True, mapped_extent_count=1),)
    assert lease.counters == world.worker.lease.counters


def test_the_oldest_hold_is_of_either_kind() -> None:
    """A reservation can be the oldest hold; without holds there is none."""
    world = CoreWorld()
    assert snapshot(world.cache, OWNER, 105.0).leases[0].oldest_hold_age is None
    world.now = 103.0
    world.worker.reserve(1, 1)
    world.now = 104.0
    world.worker.insert(1, "a")
    world.worker.match("a", 1)
    assert snapshot(world.cache, OWNER, 105.0).leases[0].oldest_hold_age == 2.0


def test_an_expired_leases_slots_are_in_quarantine() -> None:
    """Slots that an expired lease had reserved are in quarantine, here and in the arena."""
    world = busy()
    world.cache.expire(world.now + 10)
    stats = snapshot(world.cache, OWNER, 112.0)
    assert (stats.leases[0].expired, stats.expired_lease_count) == (True, 1)
    assert stats.leases[0].reserved_slot_count == 0
    assert stats.leases[0].quarantined_slot_count == 3
    assert stats.arenas[0].slots[SlotState.QUARANTINED] == 3


def test_renewal_is_told_apart_from_granting() -> None:
    """A lease's age goes on when it is renewed; the time since its renewal begins again."""
    world = CoreWorld()
    world.cache.renew(world.worker.caller, 104.0)
    (lease,) = snapshot(world.cache, OWNER, 105.0).leases
    assert (lease.age, lease.since_renewal) == (5.0, 1.0)


def test_totals_are_those_of_the_leases_shown() -> None:
    """Pins and reservations are summed over the leases that are listed."""
    world = busy()
    world.join("other").match("ab", 1)
    stats = snapshot(world.cache, OWNER, 105.0)
    assert (stats.epoch, len(stats.leases)) == (EPOCH, 2)
    assert (stats.pin_count, stats.reservation_count, stats.expired_lease_count) == (2, 1, 0)
    assert [each.pin_count for each in stats.namespaces] == [2]


def test_a_tenant_sees_its_own_alone() -> None:
    """Nothing of another tenant is listed, and totals are sums over one's own namespaces."""
    world = busy()
    join_other_tenant(world)
    mine, theirs = (snapshot(world.cache, each, 105.0) for each in (OWNER, OTHER))
    for stats, tenant in ((mine, OWNER.tenant), (theirs, OTHER.tenant)):
        assert [each.tenant for each in stats.arenas] == [tenant]
        assert [each.tenant for each in stats.namespaces] == [tenant]
        assert [each.tenant for each in stats.leases] == [tenant]
    assert mine.counters == world.namespace.counters
    assert (theirs.counters.lookup_count, theirs.counters.miss_count) == (1, 1)
    assert theirs.pin_count == 0


def test_named_pins_are_counted_apart_from_those_of_leases() -> None:
    """By namespace and in total, of what the identity may see; the tree shows both kinds."""
    world = busy()
    join_other_tenant(world)
    for name in ("p", "q"):
        request = NamedPinRequest(name, paged("ab"))
        assert world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now) == 4
    mine, theirs, all_of_it = (snapshot(world.cache, each, 105.0) for each in (OWNER, OTHER, ADMIN))
    assert [stats.named_pin_count for stats in (mine, theirs, all_of_it)] == [2, 0, 2]
    assert (mine.namespaces[0].named_pin_count, mine.namespaces[0].pin_count) == (2, 1)
    nodes = listed(world, 0, 10, 0)
    # The lease's pin on what is left of its removed path is the third.
    assert max(node.pin_count for node in nodes) == 3


def test_an_admin_sees_everything() -> None:
    """All tenants are listed, and totals are the store's, ended leases included."""
    world = busy()
    caller = join_other_tenant(world)
    world.cache.revoke(caller, world.now)
    stats = snapshot(world.cache, ADMIN, 105.0)
    assert len(stats.arenas) == len(stats.namespaces) == 2
    assert len(stats.leases) == 1
    assert stats.counters == world.cache.counters
    assert stats.counters.lookup_count == world.namespace.counters.lookup_count + 1


def test_a_snapshot_is_a_copy() -> None:
    """Later calls do not change a snapshot."""
    world = busy()
    stats = snapshot(world.cache, ADMIN, 105.0)
    before = asdict(stats)
    world.worker.publish("zzz")
    world.worker.abort(5)
    world.cache.disconnected(world.worker.process_id)
    world.cache.expire(1e6)
    assert asdict(stats) == before


def test_prefixes_show_the_tree() -> None:
    """Each node is listed with its parent, place, size, children, pins and hits."""
    world = CoreWorld()
    world.worker.publish("abcd", "abxy")
    world.worker.match("abx", 1)
    assert listed(world, 0, 10, 100) == [
        PrefixStats(1, 2, 2, 2, 4, 0, 0, 0, paged("cd")),
        PrefixStats(2, 0, 0, 2, 4, 2, 0, 1, paged("ab")),
        PrefixStats(3, 2, 2, 2, 4, 0, 1, 1, paged("xy")),
    ]


def test_prefixes_show_the_first_tokens_only() -> None:
    """No more tokens than wanted are shown of each node."""
    world = CoreWorld()
    world.worker.publish("abcd")
    for count in (0, 1, 5):
        (node,) = listed(world, 0, 10, count)
        assert node.tokens == paged("abcd")[: 4 * count]


def test_prefixes_come_in_pages() -> None:
    """Asked for again after the last number, the listing goes on, through changes in between."""
    world = CoreWorld(slots=16)
    world.worker.publish("a", "b", "c", "d", "e")
    first = listed(world, 0, 2, 0)
    world.evict_prefix("b")
    world.evict_prefix("d")
    world.worker.publish("f")
    rest = listed(world, first[-1].node_id, 10, 0)
    assert [each.node_id for each in first] == [1, 2]
    assert [each.node_id for each in rest] == [3, 5, 6]
    assert listed(world, 6, 10, 0) == []
    # A node that left since its number was read is left out.
    assert [each.node_id for each in prefix_stats(world.namespace, [1, 2, 3], 0)] == [1, 3]
