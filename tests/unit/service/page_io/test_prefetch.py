"""Prefetches: loads from tier 3 that no call waits for, into free slots."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Prefetched, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.errors import NamespaceNotFound, PinNotFound, StoreDraining
from kvstore.service.serving_turn import ServingTurn
from kvstore_client.testing import wait_until
from stores.disk_store import LIMIT, PAGES, DiskStore, DiskStores, in_background, page_count
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, Worlds, sequence_of

TOKENS = PAGES * PAGE_TOKENS
IN_MEMORY, LOADING = Prefetched(TOKENS), Prefetched(0, TOKENS)
DECLINED = Prefetched(0, 0, TOKENS)
# One sequence at a time.
BOUND = Limits(max_prefetch_bytes=PAGES * PAGE_BYTES)


def prefetch(store: DiskStore, number: int, who: Caller | Identity | None = None) -> Prefetched:
    """Prefetches a sequence, by default under the worker's lease."""
    sequence = store.sequence(number)
    return store.world.store.prefetch(who or store.caller, store.namespace_id, sequence)


def gated(stores: DiskStores, count: int = 1, **settings: object) -> DiskStore:
    """Returns a store with so many sequences on its disk alone, whose reads wait."""
    store = stores.open(slots=max(count, 4) * PAGES)
    for number in range(count):
        store.write(number)
    later = stores.reopen(store, **settings)
    later.slab.closed = True
    return later


def let_go(store: DiskStore) -> None:
    """Ends all reads, and waits until a match of the last sequence finds it in memory."""
    assert store.slab.asked.wait(LIMIT)
    store.slab.let_go()


def moving(store: DiskStore) -> int:
    """Returns the number of slots that pages are read into."""
    return store.world.cache.namespaces[store.namespace_id].arena.counts[SlotState.MOVING]


def test_a_match_joins_the_load_of_a_prefetch(stores: DiskStores) -> None:
    """The pages are read once, and the next match finds them in memory."""
    later = gated(stores)
    assert prefetch(later, 0) == LOADING
    assert moving(later) == PAGES
    waiting, found = in_background(later, 0)
    let_go(later)
    waiting.join(LIMIT)
    assert [page_count(each) for each in found] == [PAGES]
    assert later.slab.use().counters.read_pages == PAGES
    assert later.ask(0).tier_3_loaded_token_count == 0
    assert later.tiers(0) == [1]
    assert prefetch(later, 0) == IN_MEMORY


def test_others_serve_while_a_prefetch_waits_for_the_disk_s_tables(stores: DiskStores) -> None:
    """Another thread may have the tables for long, so it passes the turn on before it reads."""
    later, turn = gated(stores), ServingTurn()
    later.slab.closed = False

    def in_turn() -> Prefetched:
        with turn:
            return prefetch(later, 0)

    def have_turn() -> bool:
        with turn:
            return turn.is_mine

    with ThreadPoolExecutor(2) as threads:
        with later.slab._tables.mutex:
            begun = threads.submit(in_turn)
            assert wait_until(lambda: moving(later) == PAGES)
            assert threads.submit(have_turn).result(LIMIT)
        assert begun.result(LIMIT) == LOADING


def test_a_prefetch_pins_and_counts_nothing(stores: DiskStores) -> None:
    """It leaves neither a hold nor a lookup, and it may be repeated."""
    later = gated(stores)
    before = replace(later.world.cache.counters)
    assert [prefetch(later, 0) for _ in range(3)] == [LOADING] * 3
    assert later.world.cache.counters == before
    [lease] = later.world.cache.table.leases.values()
    assert (lease.pins, lease.reservations) == ({}, {})
    let_go(later)
    assert page_count(later.ask(0)) == PAGES
    assert later.slab.use().counters.read_pages == PAGES


def test_only_free_slots_are_taken(stores: DiskStores) -> None:
    """Cached pages stay, and what has no slot is declined."""
    later = gated(stores, count=2, slots=3 * PAGES)
    for number in (10, 11):
        later.publish(number)
    assert prefetch(later, 0) == LOADING
    assert prefetch(later, 1) == DECLINED
    let_go(later)
    assert page_count(later.ask(0)) == PAGES
    assert later.world.cache.counters.evicted_page_count == 0
    assert [later.tiers(number) for number in (10, 11)] == [[1], [1]]


def test_a_prefetch_loads_as_many_pages_as_there_are_slots(stores: DiskStores) -> None:
    """The first pages come, and the rest is declined."""
    later = gated(stores, slots=PAGES + 1)
    later.publish(10)
    assert prefetch(later, 0) == Prefetched(0, PAGE_TOKENS, TOKENS - PAGE_TOKENS)
    let_go(later)
    assert later.world.cache.counters.evicted_page_count == 0


def test_loads_under_way_are_bounded_for_a_lease(stores: DiskStores) -> None:
    """Beyond the bound nothing is loaded, and another lease has a bound of its own."""
    later = gated(stores, count=3, limits=BOUND)
    assert prefetch(later, 0) == LOADING
    assert prefetch(later, 1) == DECLINED
    other = later.world.worker()
    later.world.open_namespace(other)
    assert prefetch(later, 1, other) == LOADING
    assert prefetch(later, 2, other) == DECLINED
    let_go(later)
    assert page_count(later.ask(0)) == page_count(later.ask(1)) == PAGES
    assert prefetch(later, 2) == LOADING


def test_an_operator_needs_no_lease(stores: DiskStores) -> None:
    """Such calls of a tenant share one bound. Another tenant finds no such namespace."""
    later = gated(stores, count=2, limits=BOUND)
    with pytest.raises(NamespaceNotFound):
        prefetch(later, 0, Identity("other"))
    assert moving(later) == 0
    assert prefetch(later, 0, later.caller.identity) == LOADING
    assert prefetch(later, 1, later.caller.identity) == DECLINED
    assert prefetch(later, 1, Identity("other", admin=True)) == LOADING
    let_go(later)
    assert page_count(later.ask(0)) == PAGES


def test_a_sequence_may_follow_a_base(stores: DiskStores) -> None:
    """The answer counts from the sequence's beginning, and needs the base."""
    store = stores.open()
    store.write(0)
    whole, ask = store.sequence(0), (store.caller, store.namespace_id)
    store.world.store.match(*ask, whole, MatchOptions(101))
    on = Sequence(whole.tokens[4 * PAGE_TOKENS :], position=PAGE_TOKENS, base_pin_id=101)
    assert store.world.store.prefetch(*ask, on) == IN_MEMORY
    store.world.store.release(store.caller, [101])
    with pytest.raises(PinNotFound):
        store.world.store.prefetch(*ask, on)


def test_without_tier_3_nothing_is_loaded(worlds: Worlds) -> None:
    """The answer says what is in memory."""
    world = worlds()
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    found = world.store.prefetch(caller, namespace_id, sequence_of(PAGES))
    assert found == Prefetched()


def test_a_draining_store_prefetches_nothing(stores: DiskStores) -> None:
    """Its workers leave."""
    later = gated(stores)
    later.world.store.begin_draining()
    with pytest.raises(StoreDraining):
        prefetch(later, 0)
    assert moving(later) == 0


def test_a_namespace_of_another_tenant_is_not_there(stores: DiskStores) -> None:
    """A lease prefetches in namespaces of its tenant only."""
    later = gated(stores)
    stranger = later.world.worker(tenant="uid-2")
    with pytest.raises(NamespaceNotFound):
        prefetch(later, 0, stranger)
