"""The store: the core's verbs under one mutex, with memory behind them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.core.values.requests import (
    Caller,
    Identity,
    MatchOptions,
    ReservationRequest,
    Sequence,
)
from kvstore.core.values.slots import SlotState
from kvstore.errors import (
    LeaseNotFound,
    NamespaceNotFound,
    NotAttached,
    PoolExhausted,
    StoreDraining,
)
from kvstore.service.tenancy.rate_limit import TooManyRequests
from stores.store_world import World, Worlds, sequence_of
from wire.own_logs import own_logs

ADMIN = Identity("uid-0", admin=True)


def publish(
    world: World, caller: Caller, namespace_id: bytes, sequence: Sequence, number: int
) -> list[int]:
    """Reserves, insert and abort the whole pages of a sequence; returns their slots."""
    pages = len(sequence.tokens) // 4 // world.layout.page_tokens
    request = ReservationRequest(number, 0, pages)
    world.store.reserve(caller, namespace_id, [request])
    whole = Sequence(sequence.tokens[: pages * world.layout.page_tokens * 4])
    inserted = world.store.insert(caller, number, whole)
    world.store.abort(caller, [number])
    return [index for run in inserted.runs for index in run.indexes]


def test_one_worker_matches_what_another_inserted(world: World) -> None:
    """Pages that one lease published are handed to another, in place, and go back whole."""
    one, two = world.worker(), world.worker()
    namespace_id = world.open_namespace(one)
    assert world.open_namespace(two) == namespace_id
    slots = publish(world, one, namespace_id, sequence_of(3), MatchOptions(1))
    match = world.store.match(two, namespace_id, sequence_of(3), MatchOptions(1))
    assert match.matched_token_count == 12
    assert [index for run in match.runs for index in run.indexes] == slots
    held = world.store.stats(ADMIN)
    world.store.release(two, [1])
    world.check()
    assert (held.pin_count, world.store.stats(ADMIN).pin_count) == (1, 0)


def test_an_acquire_matches_and_reserves_the_rest(world: World) -> None:
    """Match and reservation come in one call, the reservation beginning where the match ends."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    publish(world, caller, namespace_id, sequence_of(2), 1)
    match, grant = world.store.acquire(
        caller, namespace_id, sequence_of(4), MatchOptions(2), reservation_id=3, total_page_count=4
    )
    assert grant is not None
    assert match.matched_token_count == 8
    assert (grant.start_page, sum(len(run.indexes) for run in grant.runs)) == (2, 2)


def test_a_lease_without_a_process_is_refused(world: World) -> None:
    """A caller that did not attach opens nothing."""
    caller = world.caller()
    world.store.grant(caller, ttl=None, display_name="remote", features=())
    with pytest.raises(NotAttached):
        world.open_namespace(caller)


def test_opening_makes_the_first_extent_and_has_it_announced(world: World) -> None:
    """A new namespace has memory, and whoever hands out extents is woken after that."""
    owed_when_woken: list[int] = []
    caller = world.worker()
    world.store.announcer.subscribe(lambda: owed_when_woken.append(world.arenas.allocated_bytes))
    world.open_namespace(caller)
    world.open_namespace(caller)
    assert world.arenas.allocated_bytes == 4 * 256
    assert owed_when_woken[-1] == 4 * 256
    assert [each.shape.slot_count for each in world.store.extents(ADMIN)] == [4]


def test_extents_are_owed_until_they_are_acknowledged(world: World) -> None:
    """A process is owed its arenas' extents, with descriptors, and then no more."""
    caller = world.worker()
    world.store.open_namespace(caller, NamespaceIdentity(b"model"), world.layout)
    (owed,) = world.store.hand_out(world.process_id(caller))
    assert owed.export.size_bytes == owed.shape.size_bytes
    world.map_extents(caller)
    assert world.store.hand_out(world.process_id(caller)) == []


def test_without_memory_a_namespace_cannot_be_used_yet(worlds: Worlds) -> None:
    """An open that finds no memory is refused with the numbers, and succeeds once there is some."""
    world = worlds(slots=4, extent_slots=4)
    first, second = world.worker(tenant="uid-1"), world.worker(tenant="uid-2")
    world.open_namespace(first)
    with pytest.raises(PoolExhausted) as refused:
        world.open_namespace(second)
    assert refused.value.metadata == {"requested_bytes": "256"}
    world.arenas.budget_bytes += 1024
    namespace_id = world.open_namespace(second)
    assert (
        world.store.match(second, namespace_id, sequence_of(1), MatchOptions(1)).matched_token_count
        == 0
    )


def test_tenants_have_arenas_of_their_own(world: World) -> None:
    """No extent serves two tenants, and each sees its own alone."""
    one, two = world.worker(tenant="uid-1"), world.worker(tenant="uid-2")
    namespace_id = world.open_namespace(one)
    assert world.open_namespace(two) != namespace_id
    mine = {each.shape.extent_id for each in world.store.extents(one.identity)}
    others = {each.shape.extent_id for each in world.store.extents(two.identity)}
    assert mine.isdisjoint(others)
    assert {each.shape.extent_id for each in world.store.extents(ADMIN)} == mine | others
    with pytest.raises(NamespaceNotFound):
        world.store.peek(two.identity, namespace_id, b"")


def test_administration_goes_to_the_core(world: World) -> None:
    """Peek, list, evict and statistics answer for what was inserted."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    publish(world, caller, namespace_id, sequence_of(2), 1)
    identity = caller.identity
    assert world.store.peek(identity, namespace_id, sequence_of(2).tokens).matched_token_count == 8
    (prefix,) = world.store.prefixes(identity, namespace_id, after=0, count=9, max_tokens=4)
    assert (prefix.page_count, prefix.tokens) == (2, sequence_of(2).tokens[:16])
    assert world.store.evict_prefix(identity, namespace_id, b"").evicted_page_count == 2
    assert world.store.stats(identity).counters.removed_page_count == 2


def test_leases_are_counted_by_the_stores_clock(world: World) -> None:
    """A lease expires at its TTL after the last renewal, and not before."""
    caller = world.worker(name="worker-a")
    world.clock.now += 9
    assert world.store.renew(caller) == 10.0
    world.clock.now += 9
    with own_logs() as early:
        world.store.expire()
    world.clock.now += 2
    with own_logs() as late:
        world.store.expire()
    assert early == []
    assert [(line["event"], line["display_name"]) for line in late] == [
        ("lease_expired", "worker-a")
    ]
    assert world.store.stats(ADMIN).expired_lease_count == 1


def test_a_quarantine_is_logged_as_it_begins_and_as_it_ends(world: World) -> None:
    """With the slots that are in it: when its lease expires, and when it gives them back."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 3)])
    world.clock.now += 11
    with own_logs() as lines:
        world.store.expire()
        world.store.abort(caller, [1])
        world.store.abort(caller, [1])
    assert [
        (line["event"], line["reserved_slot_count"], line["quarantined_slot_count"])
        for line in lines
    ] == [("lease_expired", 0, 3), ("quarantine_returned", 0, 3)]


def test_the_death_of_the_last_process_ends_a_lease(world: World) -> None:
    """A dead worker's holds end at once, and the log names them."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 3)])
    with own_logs() as lines:
        world.store.process_died(world.process_id(caller))
        world.store.process_died(world.process_id(caller))
    assert [(line["event"], line["reserved_slot_count"]) for line in lines] == [("lease_ended", 3)]
    assert world.store.attached_process_ids() == set()
    (arena,) = world.store.stats(ADMIN).arenas
    assert arena.slots[SlotState.FREE] == arena.slot_count
    with pytest.raises(LeaseNotFound):
        world.store.match(caller, namespace_id, sequence_of(1), MatchOptions(1))


def test_revoking_wakes_whoever_watches_processes(world: World) -> None:
    """After a lease ended its processes are attached no more, and listeners hear of it."""
    woken = threading.Event()
    caller = world.worker()
    world.store.announcer.subscribe(woken.set)
    world.store.disconnected(world.process_id(caller))
    assert world.store.attached_process_ids() == {world.process_id(caller)}
    world.store.revoke(caller)
    assert woken.is_set()
    assert world.store.attached_process_ids() == set()


def test_a_draining_store_lets_leases_go_on_and_end(world: World) -> None:
    """Nothing new is begun any more, what is held is finished, and the last end is the end."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    store, now = world.store, sequence_of(1, rest=0)
    store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 1)])
    store.begin_draining()
    begun: list[Callable[[], object]] = [
        lambda: store.grant(world.caller(), ttl=None, display_name="late", features=()),
        lambda: store.renew(caller),
        lambda: world.open_namespace(caller),
        lambda: store.match(caller, namespace_id, now, MatchOptions(1)),
        lambda: store.acquire(
            caller, namespace_id, now, MatchOptions(1), reservation_id=2, total_page_count=1
        ),
    ]
    for begin in begun:
        with pytest.raises(StoreDraining):
            begin()
    assert store.insert(caller, 1, now).published_page_count == 1
    store.abort(caller, [1])
    assert world.store.wait_drained(0) == 1
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(world.store.wait_drained, 30)
        world.store.revoke(caller)
        assert left.result() == 0


def test_threads_take_turns(world: World) -> None:
    """Whatever many threads do at once, the core's laws hold and nothing is lost."""
    callers = [world.worker() for _ in range(4)]
    namespaces = {world.open_namespace(each) for each in callers}
    (namespace_id,) = namespaces

    def work(caller: Caller) -> None:
        for number in range(1, 60):
            asked = sequence_of(2, salt=number % 3)
            world.store.match(caller, namespace_id, asked, MatchOptions(number))
            try:
                publish(world, caller, namespace_id, asked, MatchOptions(number))
            except PoolExhausted:
                world.store.abort(caller, [number])
            world.store.release(caller, [number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, callers))
    world.check()
    stats = world.store.stats(ADMIN)
    assert (stats.pin_count, stats.reservation_count) == (0, 0)
    assert stats.counters.lookup_count == 4 * 59


def test_what_is_said_of_the_store_itself(world: World) -> None:
    """Epoch and limits are the core's; the uptime is the clock's."""
    world.clock.now += 5
    assert world.store.uptime() == 5
    assert world.store.epoch == world.cache.epoch
    assert world.store.limits is world.cache.limits


def test_a_rate_that_changes_is_told_and_counts(world: World) -> None:
    """The tenant is refused by the new rate, which statistics and capabilities have."""
    caller = world.worker()
    tenant = caller.identity.tenant
    world.store.change_rates(QuotaTable(Quotas(leases=0, requests_per_second=1.0)))
    told = world.store.quotas.of(tenant)
    assert told == Quotas(requests_per_second=1.0)
    assert [each.quotas for each in world.store.stats(ADMIN).tenants] == [told]
    world.store.traffic.admit(tenant)
    with pytest.raises(TooManyRequests):
        world.store.traffic.admit(tenant)
