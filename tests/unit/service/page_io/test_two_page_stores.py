"""Two page stores of one store: neither waits for the other."""

from page_stores.memory_page_store import MemoryPageStore

from kvstore.core.values.requests import MatchOptions
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.page_io.tier3 import Tier3
from kvstore.storage.write_admission import FirstTouch
from stores.store_world import PAGE_BYTES, World, Worlds
from stores.tiered_store import PAGES, Tiered


def second_tier(world: World, page_store: MemoryPageStore) -> Tier3:
    """Returns a tier over another page store of the same cache."""
    store = world.store
    return Tier3(
        world.cache,
        store._mutex,
        memory=store._memory,
        tier=SlowTier(page_store, number=1),
        clock=world.clock,
        took=store._took,
        admission=FirstTouch(),
    )


def test_a_page_store_that_hangs_keeps_no_page_from_the_other(worlds: Worlds) -> None:
    """Its own pages wait for it, and are written once it goes on."""
    first, second = MemoryPageStore(), MemoryPageStore(queue_bytes=PAGES * PAGE_BYTES)
    tier = SlowTier(first)
    world = worlds(slots=8, extent_slots=8, slow_tier=tier, page_stores=2, admission=FirstTouch())
    store, other = Tiered(world), second_tier(world, second)
    second.held = True
    for number in range(3):
        store.publish(number)
        for keeper in (world.store.tier3.keeper, other.keeper):
            keeper.step()
    assert (len(first.medium.pages), len(second.medium.pages)) == (3 * PAGES, 0)
    assert second.writing_room == 0
    assert world.cache.writes_wanted(1)
    assert not world.cache.writes_wanted(0)
    second.let_go()
    other.keeper.step()
    assert len(second.medium.pages) == 3 * PAGES
    assert not world.cache.disk_writes


def test_a_loss_is_noted_for_the_page_store_that_has_it(worlds: Worlds) -> None:
    """Only that one gets the page again."""
    first, second = MemoryPageStore(), MemoryPageStore()
    tier = SlowTier(first)
    world = worlds(slots=8, extent_slots=8, slow_tier=tier, page_stores=2, admission=FirstTouch())
    store, other = Tiered(world), second_tier(world, second)
    store.publish(0)
    keepers = world.store.tier3.keeper, other.keeper
    for keeper in keepers:
        keeper.step()
    *_, last = second.medium.pages
    second.evict(last)
    pin_id = 900
    world.store.match(store.caller, store.namespace_id, store.sequence(0), MatchOptions(pin_id))
    world.store.release(store.caller, [pin_id])
    for keeper in keepers:
        keeper.step()
    assert last in second.medium.pages
    written = [each.use().counters.written_pages for each in (first, second)]
    assert written == [PAGES, PAGES + 1]
    assert first.use().counters.refused_writes == 0
