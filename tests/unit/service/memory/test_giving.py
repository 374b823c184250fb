"""Memory that moves between tenants: extents retire, are unmapped, destroyed, and made anew."""

from collections.abc import Callable
from threading import Lock

import pytest

from kvstore.core.invariants.check import Invariants
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.requests import (
    Caller,
    Identity,
    MatchOptions,
    NamedPinRequest,
    ReservationRequest,
)
from kvstore.errors import PoolExhausted
from kvstore.service.event_watches import ChangePublisher
from kvstore.service.memory.arena_growth import Growth
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, World, Worlds, sequence_of
from wire.own_logs import own_logs

BUDGET = 16


class Tenant:
    """A worker that fills whatever memory it gets."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.caller: Caller = world.worker(tenant=name)
        self.process_id = world.process_id(self.caller)
        self.identity = Identity(name)
        self.namespace_id = b""
        self._salt = 1000 * self.process_id

    def open(self) -> bool:
        """Opens the namespace; returns whether there is memory."""
        try:
            self.namespace_id = self.world.open_namespace(self.caller)
        except PoolExhausted:
            return False
        return True

    @property
    def slot_count(self) -> int:
        """Slots of its extents that do not retire."""
        arenas = self.world.cache.arenas.values()
        mine = [each for each in arenas if each.tenant == self.identity.tenant]
        return sum(each.lasting_bytes for each in mine) // PAGE_BYTES

    def obey(self) -> list[int]:
        """Unmaps what is to be unmapped, map what there is; returns what was unmapped."""
        gone = self.world.store.extents_to_unmap(self.process_id)
        self.world.store.unmapped(self.process_id, gone)
        self.world.map_extents(self.caller)
        return gone

    def write(self, pages: int = 2) -> bool:
        """Caches another sequence and hold nothing of it; returns whether there was room."""
        if not self.namespace_id:
            return False
        self._salt += 100
        number = self._salt
        try:
            self.world.store.reserve(
                self.caller, self.namespace_id, [ReservationRequest(number, 0, pages)]
            )
        except PoolExhausted:
            return False
        sequence = sequence_of(pages, rest=0, salt=number)
        self.world.store.insert(self.caller, number, sequence)
        self.world.store.abort(self.caller, [number])
        return True


@pytest.fixture
def world(worlds: Worlds) -> World:
    """Provides a store of sixteen slots in extents of two."""
    return worlds(slots=BUDGET, extent_slots=2)


def run(world: World, rounds: int, *works: Callable[[], object]) -> list[str]:
    """Does some works in turns while memory moves; returns the events that were logged.

    After each step the laws hold, and the budget's bytes are where they are counted.
    """
    laws = Invariants(world.cache)
    with own_logs() as lines:
        for _ in range(rounds):
            for work in works:
                work()
            world.store.growth.step()
            laws.check()
            arenas = world.cache.arenas.values()
            there = sum(each.slot_count * each.slot_bytes for each in arenas)
            assert there == world.arenas.allocated_bytes <= world.arenas.budget_bytes
            world.clock.now += 1
    return [line["event"] for line in lines]


def filled(world: World, tenant: Tenant) -> Tenant:
    """Gives all memory to one tenant."""
    assert tenant.open()
    run(world, 40, tenant.write, tenant.obey)
    assert tenant.slot_count == BUDGET
    return tenant


def test_a_tenant_that_comes_late_is_given_memory(world: World) -> None:
    """Opening is refused when all is given out, and goes through once somebody gave."""
    first = filled(world, Tenant(world, "a"))
    second = Tenant(world, "b")
    assert not second.open()
    assert run(world, 1) == ["extent_retiring"]
    assert not second.open()
    assert first.slot_count == BUDGET - 2
    assert run(world, 2, first.obey) == ["extent_destroyed", "extent_added"]
    assert second.open()
    assert second.slot_count == 2


def test_an_extent_that_retires_is_destroyed_by_the_next_server(world: World) -> None:
    """The next server knows the cache, and asks for what still has to be unmapped."""
    first = filled(world, Tenant(world, "a"))
    assert not Tenant(world, "b").open()
    assert run(world, 1) == ["extent_retiring"]
    growth = Growth(
        world.cache,
        Lock(),
        arenas=world.arenas,
        announcer=ChangePublisher(),
        clock=world.clock,
    )
    with own_logs() as lines:
        growth.step()
        assert lines == []
        assert first.obey()
        growth.step()
    assert lines[0]["event"] == "extent_destroyed"


def test_fresh_memory_has_no_bytes_of_another(world: World) -> None:
    """A tenant gets a new extent of zeros, under a number of its own."""
    first = filled(world, Tenant(world, "a"))
    before = {each.shape.extent_id for each in world.store.extents(first.identity)}
    for extent_id in before:
        world.arenas.poison([extent_id << 32, extent_id << 32 | 1])
    second = Tenant(world, "b")
    run(world, 4, first.obey, second.open)
    (extent,) = world.store.extents(second.identity)
    assert extent.shape.extent_id not in before
    assert bytes(world.arenas.read(extent.shape.extent_id << 32) or b"x") == bytes(PAGE_BYTES)


def test_an_extent_that_is_empty_is_announced(world: World) -> None:
    """The thread that asks processes to unmap looks at once, without waiting for another event."""
    filled(world, Tenant(world, "a"))
    assert not Tenant(world, "b").open()
    woken: list[bool] = []
    world.store.announcer.subscribe(lambda: woken.append(True))
    assert run(world, 1) == ["extent_retiring"]
    assert run(world, 1) == []
    assert woken == [True]


def test_two_that_want_everything_end_with_their_shares(world: World) -> None:
    """Memory moves until both have half, and then no more, however much both ask."""
    first = filled(world, Tenant(world, "a"))
    second = Tenant(world, "b")
    works = (first.write, first.obey, second.open, second.write, second.obey)
    run(world, 40, *works)
    assert (first.slot_count, second.slot_count) == (BUDGET // 2, BUDGET // 2)
    assert run(world, 100, *works) == []


def test_three_tenants_share_coarsely(world: World) -> None:
    """Eight extents among three: nobody has none, and moving ends."""
    tenants = [filled(world, Tenant(world, "a")), Tenant(world, "b"), Tenant(world, "c")]
    works = [work for each in tenants for work in (each.open, each.write, each.obey)]
    run(world, 80, *works)
    assert sorted(each.slot_count for each in tenants) == [4, 6, 6]
    assert run(world, 50, *works) == []


def test_nothing_is_taken_that_nobody_asks_for(world: World) -> None:
    """A tenant below its share that needs no more gets no more."""
    first = filled(world, Tenant(world, "a"))
    second = Tenant(world, "b")
    run(world, 6, first.obey, second.open)
    assert second.slot_count == 2
    assert run(world, 20, first.write, first.obey, second.obey) == []


def test_an_ask_is_forgotten(world: World) -> None:
    """A tenant that asked and went away takes nothing from anybody."""
    first = filled(world, Tenant(world, "a"))
    assert not Tenant(world, "b").open()
    world.clock.now += 60
    assert run(world, 5, first.obey) == []
    assert first.slot_count == BUDGET


def test_pages_in_use_stay_and_are_waited_for(world: World) -> None:
    """Pinned pages are where they were until their holder is done; then the extent goes."""
    first = filled(world, Tenant(world, "a"))
    world.store.evict_prefix(first.identity, first.namespace_id, b"")
    world.store.reserve(first.caller, first.namespace_id, [ReservationRequest(1, 0, 16)])
    world.store.insert(first.caller, 1, sequence_of(16, rest=0, salt=5))
    second = Tenant(world, "b")
    second.open()
    assert run(world, 3, first.obey) == ["extent_retiring"]
    whole, options = sequence_of(16, salt=5), MatchOptions(7)
    match = world.store.match(first.caller, first.namespace_id, whole, options)
    assert match.matched_token_count == 14 * PAGE_TOKENS
    assert not second.open()
    assert run(world, 3, first.obey) == []
    second.open()
    world.store.abort(first.caller, [1])
    assert run(world, 3, first.obey) == ["extent_destroyed", "extent_added"]


def test_a_process_that_does_not_unmap_keeps_the_bytes(world: World) -> None:
    """It is named in the log after a while, another extent is asked for, and death releases it."""
    first = filled(world, Tenant(world, "a"))
    stopped = Tenant(world, "a")
    assert stopped.open()
    second = Tenant(world, "b")
    second.open()
    assert run(world, 5, first.obey, second.open) == ["extent_retiring"]
    with own_logs() as lines:
        for _ in range(8):
            second.open()
            world.store.growth.step()
            world.clock.now += 1
    assert [line["event"] for line in lines] == ["extent_retiring", "extent_still_mapped"]
    assert lines[1]["pids"] == [stopped.process_id]
    world.store.process_died(stopped.process_id)
    first.obey()
    events = run(world, 3, first.obey, second.open)
    assert events.count("extent_destroyed") == 2
    assert second.slot_count > 0


def test_an_operators_pin_keeps_its_extent(world: World) -> None:
    """Pages under a named pin are not taken for another tenant's sake; without others none are."""
    first = filled(world, Tenant(world, "a"))
    world.store.evict_prefix(first.identity, first.namespace_id, b"")
    assert first.write(16)
    tokens = sequence_of(16, rest=0, salt=first._salt).tokens
    request = NamedPinRequest("pin", tokens)
    assert world.store.named_pins.pin(first.identity, first.namespace_id, request) == 64
    second = Tenant(world, "b")
    second.open()
    assert run(world, 3, first.obey, second.open) == []
    world.store.named_pins.unpin(first.identity, first.namespace_id, "pin")
    assert "extent_retiring" in run(world, 3, first.obey, second.open)


def test_a_new_model_of_the_same_tenant_gets_memory(world: World) -> None:
    """Pages of another size begin with an extent of the tenant's largest arena."""
    first = filled(world, Tenant(world, "a"))
    larger = PageLayout(4, 3 * PAGE_BYTES, 1, OpaqueContent(b"another"))
    identity = NamespaceIdentity(b"another model 16")
    for _ in range(6):
        with pytest.raises(PoolExhausted):
            world.store.open_namespace(first.caller, identity, larger)
        if "extent_added" in run(world, 1, first.obey):
            break
    opened = world.store.open_namespace(first.caller, identity, larger)
    assert opened.arena.slot_count == 1
    assert first.slot_count == BUDGET - 4 + 3


def test_what_one_gave_is_not_taken_back_before_the_asker_has_it(world: World) -> None:
    """The giver, which wants all there is, does not grow into what it gave."""
    first = filled(world, Tenant(world, "a"))
    second = Tenant(world, "b")
    second.open()
    run(world, 1)
    first.obey()
    with own_logs() as lines:
        first.write()
        world.store.growth.step()
    added = [line for line in lines if line["event"] == "extent_added"]
    assert [world.cache.arenas[line["arena_id"]].tenant for line in added] == ["b"]
