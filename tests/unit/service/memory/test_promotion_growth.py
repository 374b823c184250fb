"""The growth of tier 1 for pages of tier 2 that are asked for again."""

from typing import NoReturn

import pytest

from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.requests import MatchOptions
from kvstore.service.memory.arena_growth import PATIENCE
from kvstore.storage.errors import NotEnoughMemory
from stores.store_world import Worlds
from stores.tiered_store import PAGES, Tiered


def refuse(*_: object, **__: object) -> NoReturn:
    """Stand in for an allocation that the machine refuses."""
    raise NotEnoughMemory("refused", requested_bytes=1, available_bytes=0)


@pytest.mark.parametrize("acquires", [False, True])
def test_tier_1_grows_for_hits_alone(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, *, acquires: bool
) -> None:
    """A hit wants no slot of its own, and to be promoted wants some."""
    policy = TierPolicy(low=0.3, high=0.6, promote=True)
    store = Tiered(worlds(slots=8, extent_slots=4, lower_slots=20, tier_policy=policy))
    world = store.world
    with monkeypatch.context() as patched:
        # The machine has no memory until all is written.
        patched.setattr(world.arenas, "allocate", refuse)
        for number in range(4):
            store.write(number)
    world.clock.now += PATIENCE
    growth = world.store.growth
    growth.due.clear()
    sequence, options = store.sequence(0), MatchOptions(9_001)
    if acquires:
        world.store.acquire(
            store.caller,
            store.namespace_id,
            sequence,
            options,
            reservation_id=9_001,
            total_page_count=PAGES,
        )
    else:
        world.store.match(store.caller, store.namespace_id, sequence, options)
    assert growth.due.is_set()
    growth.step()
    assert [each.slot_count for each in world.cache.arenas.values() if each.tier == 1] == [8]
