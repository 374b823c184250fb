"""Pages that page stores lose without a word: a share of the namespaces is forgotten at a time."""

from dataclasses import replace

import pytest
from page_stores.memory_page_store import FACTS, MemoryPageStore

from kvstore.service.page_io.slow_tier import SlowTier
from stores.store_world import IDENTITY, World, Worlds

COUNT = 4


@pytest.fixture
def far() -> MemoryPageStore:
    """Provides a page store that loses pages silently."""
    return MemoryPageStore(facts=FACTS._replace(shared=True, loses_silently=True))


@pytest.fixture
def world(worlds: Worlds, far: MemoryPageStore) -> World:
    """Provides a store with it, beside one that says what it loses, and some namespaces."""
    near = SlowTier(MemoryPageStore())
    world = worlds(slots=8, extent_slots=8, slow_tier=near, remote_tier=SlowTier(far, number=1))
    caller = world.worker()
    for number in range(COUNT):
        identity = replace(IDENTITY, salt=bytes([number]))
        world.store.open_namespace(caller, identity, world.layout)
    return world


def losses(world: World) -> list[tuple[int, ...]]:
    """Returns the losses of each namespace, by page store."""
    return [each.losses for each in world.cache.namespaces.values()]


def test_each_namespace_is_forgotten_once_a_minute(world: World) -> None:
    """A share at each step, and nothing of the other page store."""
    step = world.store.tier3.silent_losses.step
    step()
    assert losses(world) == [(0, 0)] * COUNT
    for count in range(1, COUNT + 1):
        world.clock.now += 15.0
        step()
        assert sum(each[1] for each in losses(world)) == count
    assert losses(world) == [(0, 1)] * COUNT
    world.clock.now += 600.0
    step()
    assert losses(world) == [(0, 2)] * COUNT


def test_all_is_forgotten_of_one_that_comes_back(world: World, far: MemoryPageStore) -> None:
    """It may have lost everything meanwhile."""
    step = world.store.tier3.silent_losses.step
    far.go_away()
    step()
    assert losses(world) == [(0, 0)] * COUNT
    far.come_back()
    step()
    assert losses(world) == [(0, 1)] * COUNT
    step()
    assert losses(world) == [(0, 1)] * COUNT
