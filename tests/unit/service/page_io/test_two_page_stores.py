"""Two page stores of one store: neither waits for the other."""

import pytest
from page_stores.memory_page_store import FACTS, MemoryPageStore

from kvstore.core.values.requests import MatchOptions
from kvstore.service.page_io.slow_tier import SlowTier, TierKind, TierState
from kvstore.storage.page_store import StoreState
from kvstore.storage.write_admission import FirstTouch
from stores.store_world import PAGE_BYTES, Worlds
from stores.tiered_store import PAGES, Tiered
from wire.own_logs import own_logs

SHARED = FACTS._replace(shared=True, loses_silently=True)


class TwoPageStores(Tiered):
    """A store with a slab's place taken by one page store in memory, and a remote one."""

    def __init__(self, worlds: Worlds, *, slots: int = 8, **remote: object) -> None:
        self.near = MemoryPageStore()
        self.far = MemoryPageStore(facts=SHARED, **remote)  # type: ignore[arg-type]
        self.tiers_of_3 = (
            SlowTier(self.near, admission=FirstTouch()),
            SlowTier(self.far, number=1, admission=FirstTouch()),
        )
        near, far = self.tiers_of_3
        super().__init__(worlds(slots=slots, extent_slots=slots, slow_tier=near, remote_tier=far))

    def keep(self) -> None:
        """Writes what was touched to both."""
        for keeper in self.world.store.tier3.keepers:
            keeper.step()

    def touch(self, number: int) -> None:
        """Matches a sequence."""
        pin_id = next(self._ids)
        sequence = self.sequence(number)
        self.world.store.match(self.caller, self.namespace_id, sequence, MatchOptions(pin_id))
        self.world.store.release(self.caller, [pin_id])

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of pages that both have."""
        return len(self.near.medium.pages), len(self.far.medium.pages)

    def evict(self, number: int = 0) -> None:
        """Has an operator remove a sequence, whole."""
        tokens = self.sequence(number).tokens[: 4 * self.world.layout.page_tokens]
        self.world.store.evict_prefix(self.caller.identity, self.namespace_id, tokens)


@pytest.fixture
def store(worlds: Worlds) -> TwoPageStores:
    """Provides a store with two page stores."""
    return TwoPageStores(worlds)


def test_a_page_store_that_hangs_keeps_no_page_from_the_other(worlds: Worlds) -> None:
    """Its own pages wait for it, and are written once it goes on."""
    store = TwoPageStores(worlds, slots=16, queue_bytes=PAGES * PAGE_BYTES)
    cache = store.world.cache
    store.far.held = True
    for number in range(3):
        store.publish(number)
        store.keep()
    assert store.counts() == (3 * PAGES, 0)
    assert store.far.writing_room == 0
    assert cache.writes_wanted(1)
    assert not cache.writes_wanted(0)
    store.far.let_go()
    store.keep()
    assert store.counts() == (3 * PAGES, 3 * PAGES)
    assert not cache.disk_writes


def test_both_hold_a_quarter_of_memory_at_the_most(worlds: Worlds) -> None:
    """Each has an eighth, however much its queue could take."""
    store = TwoPageStores(worlds, slots=32)
    store.near.held = store.far.held = True
    for number in range(6):
        store.publish(number)
        store.keep()
    cache = store.world.cache
    assert [cache.bytes_under_way(number) // PAGE_BYTES for number in (0, 1)] == [4, 4]
    store.near.let_go()
    store.far.let_go()
    store.keep()
    assert store.counts() == (6 * PAGES, 6 * PAGES)


def test_a_loss_is_noted_for_the_page_store_that_has_it(store: TwoPageStores) -> None:
    """Only that one gets the page again."""
    store.publish(0)
    store.keep()
    *_, last = store.far.medium.pages
    store.far.evict(last)
    store.touch(0)
    store.keep()
    assert last in store.far.medium.pages
    written = [each.use().counters.written_pages for each in (store.near, store.far)]
    assert written == [PAGES, PAGES + 1]
    assert store.near.use().counters.refused_writes == 0


def test_each_page_store_has_a_thread_with_a_name(store: TwoPageStores) -> None:
    """And a kind, by which operators know it."""
    assert [each.name for each in store.world.store.tier3.keepers] == ["keeper", "keeper_of_remote"]
    assert [each.may_wait for each in store.world.store.tier3.keepers] == [False, True]
    assert [each.kind for each in store.tiers_of_3] == [TierKind.SLAB, TierKind.REMOTE]


def test_a_page_store_that_is_only_read_is_not_written(worlds: Worlds) -> None:
    """It has no thread, and no touches wait for one."""
    far = MemoryPageStore(facts=SHARED)
    tier = SlowTier(far, number=1, is_written=False)
    world = worlds(slots=8, extent_slots=8, slow_tier=SlowTier(MemoryPageStore()), remote_tier=tier)
    store = Tiered(world)
    store.publish(0)
    assert [each.name for each in world.store.tier3.keepers] == ["keeper"]
    assert [world.cache.writes_wanted(number) for number in (0, 1)] == [True, False]


def test_pages_are_removed_from_both(store: TwoPageStores) -> None:
    """Writes that were accepted before do not bring them back."""
    store.publish(0)
    store.far.held = True
    store.keep()
    assert store.counts() == (PAGES, 0)
    store.evict()
    store.far.let_go()
    assert store.counts() == (0, 0)
    assert store.world.cache.namespaces[store.namespace_id].removing == (0, 0)


def test_a_page_store_that_is_away_keeps_the_other_working(
    store: TwoPageStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen to be away, answers the removal late, and loads and keeps of the other go on."""
    monkeypatch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", 0.01)
    store.publish(0)
    store.keep()
    store.far.held = True
    with own_logs() as logs:
        store.evict()
        store.far.state = StoreState.AWAY
        assert not store.world.store.tier3.removals.settle()
    assert [(each["event"], each["store"]) for each in logs] == [("tier3_removal_failed", "remote")]
    assert [each.state for each in store.tiers_of_3] == [TierState.OPEN, TierState.AWAY]
    store.publish(0)
    store.keep()
    assert store.counts() == (PAGES, 0)
    store.far.come_back()
    assert store.tiers_of_3[1].state is TierState.FAILED
    store.far.let_go()
    assert [each.state for each in store.tiers_of_3] == [TierState.OPEN, TierState.OPEN]
    assert store.world.store.tier3.removals.settle()


def test_a_removal_not_reported_yet_stops_one_page_store(store: TwoPageStores) -> None:
    """Its loads and keeps wait. Those of the other go on."""
    store.publish(0)
    store.keep()
    cache = store.world.cache
    tokens = store.sequence(0).tokens[: 4 * store.world.layout.page_tokens]
    cache.evict_prefix(store.caller.identity, store.namespace_id, tokens)
    cache.finish_removed(cache.take_removed(0), 0)
    assert cache.namespaces[store.namespace_id].removing == (0, 1)
    store.near.medium.pages.clear()
    store.publish(1)
    assert [bool(cache.plan_writes(9, number=number)) for number in (1, 0)] == [False, True]


def test_a_match_does_not_wait_for_a_remote_engine_to_remove(store: TwoPageStores) -> None:
    """A corrupt page leaves it in its own time; the disk of this host is waited for."""
    store.far.held = True
    store.publish(0)
    store.keep()
    store.world.cache.evict_prefix(store.caller.identity, store.namespace_id, b"")
    assert store.world.store.tier3.removals.settle(waits_for_shared=False)
    assert store.counts() == (0, 0)
