"""Counts of copies between tiers."""

from stores.store_world import Worlds
from stores.tiered_store import PAGES, tiered


def test_what_goes_down_and_comes_back_is_counted(worlds: Worlds) -> None:
    """Pages, bytes and time by direction."""
    store = tiered(worlds)
    for number in range(4):
        store.write(number)
    for _ in range(2):
        assert store.tiers(0) == [2]
    store.tiers(0)
    world = store.world
    counters, counts = world.cache.counters, world.store.mover.ledger.read()
    page_bytes = world.layout.page_bytes
    assert counts[1, 2].pages == counters.demoted_page_count >= PAGES
    assert counts[2, 1].pages == counters.promoted_page_count > 0
    for each in counts.values():
        assert each.bytes == each.pages * page_bytes
        assert each.failed_pages == 0
