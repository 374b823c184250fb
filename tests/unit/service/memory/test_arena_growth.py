"""The growth of arenas."""

from pathlib import Path

import pytest

from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.core.values.requests import Caller, MatchOptions, ReservationRequest
from kvstore.errors import PoolExhausted
from kvstore.service.memory.arena_growth import PACE
from kvstore.storage.extent import ExtentDescription
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, World, Worlds, sequence_of
from wire.own_logs import own_logs


def steps(world: World) -> int:
    """Grows the arenas for as long as that is due, and returns the number of steps."""
    count = 0
    while world.store.growth.due.is_set():
        world.store.growth.due.clear()
        world.store.growth.step()
        count += 1
    return count


def caching(world: World, pages: int) -> tuple[Caller, bytes]:
    """Caches some pages that nobody holds; returns their caller and namespace."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, pages)])
    world.store.insert(caller, 1, sequence_of(pages, rest=0))
    world.store.abort(caller, [1])
    return caller, namespace_id


def slot_count(world: World) -> int:
    """Returns how many slots all arenas have."""
    return sum(each.slot_count for each in world.cache.arenas.values())


def test_an_arena_that_runs_low_gets_an_extent(world: World) -> None:
    """When less than a quarter of an extent is left, and only then, another one is added."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 3)])
    assert steps(world) == 0
    world.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 1)])
    with own_logs() as lines:
        assert steps(world) == 2
    assert [(line["event"], line["slot_count"]) for line in lines] == [("extent_added", 4)]
    assert slot_count(world) == 8


def test_an_allocation_may_take_its_time_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that does not come within a minute is a driver that hangs, and so a silence."""
    growth, allocate = world.store.growth, world.arenas.allocate
    seen: list[bool] = []

    def slow(*args: int, **options: int | None) -> ExtentDescription:
        for seconds in (0.0, 59.0, 2.0):
            world.clock.now += seconds
            seen.append(growth.takes_its_time)
        return allocate(*args, **options)

    monkeypatch.setattr(world.arenas, "allocate", slow)
    assert not growth.takes_its_time
    world.open_namespace(world.worker())
    assert seen == [True, True, False]
    assert not growth.takes_its_time


def test_slots_of_a_new_extent_are_used_once_it_is_mapped(world: World) -> None:
    """Growth is announced, and what it brings goes to leases that acknowledged it."""
    woken: list[int] = []
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 4)])
    world.store.announcer.subscribe(lambda: woken.append(1))
    steps(world)
    assert woken == [1]
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 1)])
    world.map_extents(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(3, 0, 1)])


def test_a_request_larger_than_the_arena_makes_it_grow_to_fit(worlds: Worlds) -> None:
    """After a reserve that could not be had, the arena grows until it can be."""
    world = worlds(slots=100, extent_slots=4)
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 30)])
    steps(world)
    assert slot_count(world) == 32
    world.map_extents(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 30)])


def test_an_acquire_that_gets_no_slots_makes_the_arena_grow(worlds: Worlds) -> None:
    """A match without its reservation counts as a want too."""
    world = worlds(slots=100, extent_slots=4)
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    _, grant = world.store.acquire(
        caller, namespace_id, sequence_of(9), MatchOptions(1), reservation_id=2, total_page_count=10
    )
    assert grant is None
    steps(world)
    assert slot_count(world) == 12


def test_what_is_cached_may_go_for_a_request_that_growing_alone_would_not_satisfy(
    worlds: Worlds,
) -> None:
    """It grows by all that it may, and the rest is evicted."""
    world = worlds(slots=8, extent_slots=4)
    caller, namespace_id = caching(world, 2)
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 8)])
    steps(world)
    assert slot_count(world) == 8
    world.map_extents(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(3, 0, 8)])


def test_what_a_request_matched_does_not_go_for_it(worlds: Worlds) -> None:
    """A prompt longer than the budget takes none of it, however much of it is cached."""
    world = worlds(slots=8, extent_slots=4)
    caller, namespace_id = caching(world, 3)
    for total, expected in ((9, 4), (8, 8)):
        match, grant = world.store.acquire(
            caller,
            namespace_id,
            sequence_of(total),
            MatchOptions(total),
            reservation_id=total,
            total_page_count=total,
        )
        assert (match.matched_token_count, grant) == (3 * PAGE_TOKENS, None)
        steps(world)
        assert slot_count(world) == expected


def test_who_has_all_that_can_be_had_asks_for_no_more(worlds: Worlds) -> None:
    """Pages to be evicted for a request are not demanded from the budget."""
    world = worlds(slots=8, extent_slots=4)
    caller, namespace_id = caching(world, 2)
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 8)])
    steps(world)
    world.clock.now += PACE
    world.store.reserve(caller, namespace_id, [ReservationRequest(3, 0, 1)])
    assert steps(world) == 0


def test_what_can_never_be_had_takes_no_memory(world: World) -> None:
    """A reservation larger than the whole budget leaves the rest of it to others."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 11)])
    steps(world)
    assert slot_count(world) == 4


def test_growth_ends_at_the_budget(world: World) -> None:
    """Demand for the whole budget makes the arena grow to it, and then nothing is due."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 10)])
    steps(world)
    assert slot_count(world) == 10
    assert world.arenas.allocated_bytes == world.arenas.budget_bytes


def test_a_machine_without_memory_is_asked_again_later(tmp_path: Path, worlds: Worlds) -> None:
    """A refusal is logged once, ends the growing for a second, and the cache goes on."""
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    world = worlds(memory_root=tmp_path)
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    meminfo.write_text("MemAvailable: 0 kB\n", encoding="utf-8")
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 4)])
    with own_logs() as lines:
        for _ in range(3):
            world.store.growth.step()
            world.clock.now += 2
    assert [(line["event"], line["log_level"]) for line in lines] == [("extent_refused", "warning")]
    world.clock.now -= 1.5
    meminfo.unlink()
    world.store.growth.step()
    assert slot_count(world) == 4
    world.clock.now += 1
    world.store.growth.step()
    assert slot_count(world) == 8


def test_an_arena_that_could_not_begin_grows_when_it_can(tmp_path: Path, worlds: Worlds) -> None:
    """A namespace opened without memory gets its first extent in the background."""
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text("MemAvailable: 0 kB\n", encoding="utf-8")
    world = worlds(memory_root=tmp_path)
    caller = world.worker()
    with pytest.raises(PoolExhausted):
        world.open_namespace(caller)
    meminfo.unlink()
    world.store.growth.step()
    assert slot_count(world) == 4


def quotas_of_bytes(**bytes_: int) -> QuotaTable:
    """Returns quotas of bytes by tenant."""
    return QuotaTable(by_tenant={name: Quotas(tier1_bytes=most) for name, most in bytes_.items()})


def test_an_arena_does_not_grow_beyond_the_quota(worlds: Worlds) -> None:
    """With room in the budget, a tenant grows by what its quota leaves, and then evicts its own."""
    world = worlds(slots=100, extent_slots=4, quotas=quotas_of_bytes(a=6 * PAGE_BYTES + 1))
    caller, other = world.worker(tenant="a"), world.worker(tenant="b")
    namespace_id = world.open_namespace(caller)
    world.open_namespace(other)
    arena = world.cache.namespaces[namespace_id].arena
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 4)])
    steps(world)
    world.map_extents(caller)
    assert arena.slot_count == 6
    world.store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 2)])
    with pytest.raises(PoolExhausted):
        world.store.reserve(caller, namespace_id, [ReservationRequest(3, 0, 1)])
    assert steps(world) == 0
    assert arena.slot_count == 6


def test_another_arena_of_a_spent_quota_gets_no_memory(worlds: Worlds) -> None:
    """The quota is over all arenas of a tenant: a second layout finds what the first left."""
    world = worlds(slots=100, extent_slots=4, quotas=quotas_of_bytes(a=5 * PAGE_BYTES))
    caller = world.worker(tenant="a")
    world.open_namespace(caller)
    large = PageLayout(PAGE_TOKENS, 2 * PAGE_BYTES, 1, OpaqueContent(b"large"))
    with pytest.raises(PoolExhausted) as error:
        world.store.open_namespace(caller, NamespaceIdentity(b"large"), large)
    assert error.value.metadata == {"requested_bytes": str(2 * PAGE_BYTES)}
    small = PageLayout(PAGE_TOKENS, PAGE_BYTES // 2, 1, OpaqueContent(b"small"))
    opened = world.store.open_namespace(caller, NamespaceIdentity(b"small"), small)
    assert opened.arena.slot_count == 2
