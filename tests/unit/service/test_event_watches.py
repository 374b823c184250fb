"""Watchers of a store in this process: they wait for their own events, outside its mutex."""

from threading import Thread

import pytest

from kvstore.core.values.event_log import Event, EventBatch, LeaseEvent, NamespaceEvent, PagesEvent
from kvstore.core.values.requests import Identity, ReservationRequest
from kvstore.errors import NamespaceNotFound, StoreDraining
from kvstore.service.event_watches import BATCH
from stores.store_world import World, sequence_of

OWNER = Identity("uid-1")


def events(batch: EventBatch | None) -> list[type]:
    """Returns the kinds of its events."""
    assert batch is not None
    return [type(each) for each in batch.events]


def come(world: World, count: int) -> None:
    """Grants some leases, and ends all but the last."""
    for number in range(count):
        caller = world.caller()
        world.store.grant(caller, ttl=10.0, display_name="w", features=())
        if number + 1 < count:
            world.store.revoke(caller)


def test_a_watcher_waits_for_what_happens(world: World) -> None:
    """In another thread, whatever else calls the store meanwhile."""
    watching = world.store.events.begin(OWNER, history=False)
    told: list[EventBatch | None] = []
    thread = Thread(target=lambda: told.append(watching.take()))
    thread.start()
    come(world, 1)
    thread.join(30)
    assert events(told[0]) == [LeaseEvent]
    watching.end()
    assert watching.take() is None
    world.store.events.forget(watching)


def test_many_events_come_in_batches(world: World) -> None:
    """Each as large as may be, without a wait between."""
    come(world, BATCH // 2 + 1)
    watching = world.store.events.begin(OWNER, history=True, live=False)
    assert watching.remembered == BATCH + 1
    sizes = []
    while (told := watching.take()) is not None:
        sizes.append(len(told.events))
        watching.pause()
    assert sizes == [BATCH, 1]


def test_who_begins_amid_events_is_told_each_once(world: World) -> None:
    """Remembered events and new ones meet without a gap, whenever a watch begins."""
    leases = 150
    busy = Thread(target=come, args=(world, leases))
    busy.start()
    watchings = [world.store.events.begin(OWNER, history=True) for _ in range(6)]
    busy.join(30)
    for watching in watchings:
        told: list[Event] = []
        while len(told) < 2 * leases - 1:
            batch = watching.take()
            assert batch is not None
            assert batch.lost_count == 0
            told += batch.events
        assert told == list(world.cache.events.recent)
        world.store.events.forget(watching)


def test_one_that_ended_is_handed_nothing(world: World) -> None:
    """Forgotten twice is forgotten; its place is another's."""
    for _ in range(3 * world.store.limits.max_watchers):
        watching = world.store.events.begin(OWNER, history=False)
        for _ in range(2):
            world.store.events.forget(watching)
    with pytest.raises(NamespaceNotFound):
        world.store.events.begin(OWNER, b"n" * 16, history=False)


def test_a_store_that_stops_ends_them_all(world: World) -> None:
    """And takes no other: not while it drains, nor after."""
    watchings = [world.store.events.begin(OWNER, history=False) for _ in range(2)]
    world.store.events.close()
    assert [each.draining for each in watchings] == [True, True]
    assert [each.take() for each in watchings] == [None, None]
    with pytest.raises(StoreDraining):
        world.store.events.begin(OWNER, history=False)
    world.store.begin_draining()
    with pytest.raises(StoreDraining):
        world.store.events.begin(OWNER, history=False)


def test_what_has_no_time_of_its_own_has_the_store_s(world: World) -> None:
    """A removal and a deletion happen when they are asked for."""
    worker = world.worker()
    namespace_id = world.open_namespace(worker)
    world.store.reserve(worker, namespace_id, [ReservationRequest(1, 0, 2)])
    world.store.insert(worker, 1, sequence_of(2, rest=0))
    watching = world.store.events.begin(OWNER, namespace_id, history=False)
    world.clock.now += 7
    world.store.evict_prefix(OWNER, namespace_id, sequence_of(2, rest=0).tokens)
    world.clock.now += 7
    world.store.delete_namespace(OWNER, namespace_id)
    told = watching.take()
    assert told is not None
    assert [type(each) for each in told.events] == [PagesEvent, PagesEvent, NamespaceEvent]
    assert [each.at - 1000.0 for each in told.events] == [7, 14, 14]
    world.store.events.forget(watching)


def test_what_happened_before_the_store_ended_is_told(world: World) -> None:
    """The last lease's end too, in as many batches as it takes, without a wait; then it is over."""
    watching = world.store.events.begin(OWNER, history=False)
    come(world, BATCH)
    world.store.events.close()
    sizes = []
    while (told := watching.take()) is not None:
        sizes.append(len(told.events))
        watching.pause()
    assert sizes == [BATCH, BATCH - 1]
    world.store.events.forget(watching)


def test_whoever_went_away_is_told_nothing_more(world: World) -> None:
    """Its client cancelled: what waits is for nobody."""
    watching = world.store.events.begin(OWNER, history=False)
    come(world, 1)
    watching.end()
    assert watching.take() is None
    world.store.events.forget(watching)
