"""Lists are read a part at a time, while calls change what is in them."""

from collections.abc import Callable

import pytest

from kvstore.core.stats import snapshot
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Caller, Identity, MatchOptions, ReservationRequest
from kvstore.service import administration
from stores.store_world import World, make_world, sequence_of

ADMIN = Identity("root", admin=True)


@pytest.fixture
def leases(world: World) -> list[Caller]:
    """Provides five leases of one tenant, by time of granting."""
    return [grant(world) for _ in range(5)]


def grant(world: World, tenant: str = "uid-1") -> Caller:
    """Returns a lease's caller."""
    caller = world.caller(tenant=tenant)
    world.store.grant(caller, ttl=10.0, display_name="w", features=())
    return caller


def between(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Makes every part one row, and runs an action after each."""
    monkeypatch.setattr(administration, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(administration, "HOLDERS_AT_ONCE", 1)
    monkeypatch.setattr(administration, "sleep", lambda _: happens())


def test_pages_of_leases_follow_each_other(world: World, leases: list[Caller]) -> None:
    """By number, each once; a tenant's own, and an admin's all."""
    grant(world, "uid-2")
    found: list[bytes] = []
    last, sizes = 0, []
    while True:
        page = world.store.listing.leases(leases[0].identity, after=last, count=2)
        found += [each.lease_id for each in page.rows]
        sizes.append(len(page.rows))
        last = page.last
        if not last:
            break
    assert found == [each.lease_id for each in leases]
    assert sizes == [2, 2, 1]
    assert len(world.store.listing.leases(ADMIN, after=0, count=9).rows) == 6
    assert world.store.listing.leases(ADMIN, after=99, count=9) == ([], 0)


def test_calls_go_on_while_leases_are_listed(
    world: World, leases: list[Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ends meanwhile is not in it, unless it was read; nor what comes meanwhile."""
    ends = iter((leases[0], leases[3]))
    between(
        monkeypatch,
        lambda: world.store.revoke(each) if (each := next(ends, None)) else grant(world),
    )
    page = world.store.listing.leases(ADMIN, after=0, count=9)
    assert [each.lease_id for each in page.rows] == [
        leases[number].lease_id for number in (0, 1, 2, 4)
    ]
    assert page.last == 0


def test_namespaces_are_listed_with_their_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a snapshot has them; one that is deleted meanwhile is not in it."""
    world = make_world(slots=256, extent_slots=256)
    callers = [world.worker(), world.worker()]
    spaces = []
    for number, caller in enumerate((*callers, callers[0])):
        identity = NamespaceIdentity(b"model digest 16+", adapter_digest=bytes([number] * 16))
        opened = world.store.open_namespace(caller, identity, world.layout)
        world.map_extents(caller)
        spaces.append(opened.namespace_id)
        request = ReservationRequest(number * 10 + 1, start_page=0, page_count=2)
        world.store.reserve(caller, opened.namespace_id, [request])
        world.store.insert(caller, number * 10 + 1, sequence_of(2, rest=0))
        world.store.match(
            caller, opened.namespace_id, sequence_of(2), MatchOptions(number * 10 + 2)
        )
    snapshot = world.store.stats(ADMIN).namespaces
    assert [each.pin_count for each in snapshot] == [1, 1, 1]
    between(monkeypatch, lambda: None)
    first = world.store.listing.namespaces(ADMIN, after=0, count=2)
    assert (tuple(first.rows), first.last) == (snapshot[:2], snapshot[1].number)
    rest = world.store.listing.namespaces(ADMIN, after=first.last, count=2)
    assert (tuple(rest.rows), rest.last) == (snapshot[2:], 0)
    between(monkeypatch, lambda: world.store.delete_namespace(ADMIN, spaces[1]))
    left = world.store.listing.namespaces(ADMIN, after=0, count=9).rows
    assert [each.namespace_id for each in left] == [spaces[0], spaces[2]]
    world.close()


def test_a_view_in_parts_is_the_snapshot(
    world: World, leases: list[Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing changes it has what GetStats has, in as many parts as there are leases."""
    namespace_id = world.open_namespace(world.worker())
    parts: list[int] = []
    monkeypatch.setattr(administration, "HOLDS_AT_ONCE", 1)
    monkeypatch.setattr(administration, "sleep", lambda _: parts.append(1))
    assert namespace_id
    for identity in (ADMIN, leases[0].identity):
        assert world.store.stats_in_parts(identity) == snapshot(
            world.cache, identity, world.clock.now
        )
    assert len(parts) == 2 * (len(leases) + 1)
    monkeypatch.setattr(administration, "HOLDS_AT_ONCE", 10_000)
    parts.clear()
    assert world.store.stats_in_parts(ADMIN) == world.store.stats(ADMIN)
    assert len(parts) == 1


@pytest.mark.parametrize("bound", ["HOLDS_AT_ONCE", "ROWS_AT_ONCE"])
def test_a_large_snapshot_is_made_in_parts(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """GetStats of many leases or namespaces allows calls in between. Its sums are its rows'."""
    world = make_world(slots=256, extent_slots=256)
    worker, _ = world.worker(), world.worker()
    spaces = []
    for number in range(3):
        identity = NamespaceIdentity(b"model digest 16+", adapter_digest=bytes([number] * 16))
        spaces.append(world.store.open_namespace(worker, identity, world.layout).namespace_id)
    whole = world.store.stats(worker.identity)
    parts: list[int] = []
    monkeypatch.setattr(administration, "sleep", lambda _: parts.append(1))
    assert world.store.stats(worker.identity) == whole
    assert parts == []
    monkeypatch.setattr(administration, bound, 1)
    assert world.store.stats(worker.identity) == whole
    assert parts
    ends = iter(spaces[1:2])

    def delete() -> None:
        if namespace_id := next(ends, None):
            world.store.delete_namespace(ADMIN, namespace_id)

    monkeypatch.setattr(administration, "sleep", lambda _: delete())
    left = world.store.stats(ADMIN)
    assert [each.namespace_id for each in left.namespaces] == [spaces[0], spaces[2]]
    assert left.counters == world.cache.counters
    world.close()


def test_calls_go_on_while_prefixes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that leaves meanwhile is not in the list, and others take its place."""
    world = make_world(slots=256, extent_slots=256)
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    for number in range(1, 6):
        tokens = sequence_of(1, rest=0, salt=1000 * number)
        world.store.reserve(caller, namespace_id, [ReservationRequest(number, 0, 1)])
        world.store.insert(caller, number, tokens)
    gone = iter([sequence_of(1, rest=0, salt=3000).tokens])

    def remove() -> None:
        if tokens := next(gone, None):
            world.cache.evict_prefix(caller.identity, namespace_id, tokens)

    between(monkeypatch, remove)
    listed = world.store.prefixes(caller.identity, namespace_id, after=1, count=3, max_tokens=1)
    assert [each.node_id for each in listed] == [2, 4, 5]
    rest = world.store.prefixes(caller.identity, namespace_id, after=5, count=3, max_tokens=1)
    assert rest == []
    world.close()


def test_calls_go_on_while_a_view_is_made(
    world: World, leases: list[Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that ends meanwhile is not in it, unless it was read."""
    monkeypatch.setattr(administration, "HOLDS_AT_ONCE", 1)
    ends = iter((leases[0], leases[3]))
    monkeypatch.setattr(
        administration,
        "sleep",
        lambda _: world.store.revoke(each) if (each := next(ends, None)) else None,
    )
    found = world.store.stats_in_parts(ADMIN)
    assert [each.lease_id for each in found.leases] == [
        each.lease_id for number, each in enumerate(leases) if number != 3
    ]
