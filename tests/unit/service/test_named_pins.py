"""Named pins of a whole store: real memory, time as a number."""

from kvstore.core.values.requests import (
    Caller,
    Identity,
    NamedPinRequest,
    ReservationRequest,
    Sequence,
)
from kvstore.service.periodic_threads import Reaper
from stores.store_world import World, sequence_of
from wire.own_logs import own_logs

ADMIN = Identity("uid-0", admin=True)
PAGES = 2


def publish(world: World, caller: Caller) -> tuple[bytes, bytes]:
    """Caches two pages that nobody holds; returns the namespace and their tokens."""
    namespace_id = world.open_namespace(caller)
    tokens = sequence_of(PAGES, rest=0).tokens
    world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, PAGES)])
    world.store.insert(caller, 1, Sequence(tokens))
    world.store.abort(caller, [1])
    return namespace_id, tokens


def test_a_pin_is_made_listed_and_ended_with_the_time_of_the_moment(world: World) -> None:
    """Pin, list and unpin go to the core, ages by the store's clock; statistics count them."""
    caller = world.worker()
    namespace_id, tokens = publish(world, caller)
    pins, identity = world.store.named_pins, caller.identity
    assert pins.pin(identity, namespace_id, NamedPinRequest("p", tokens, ttl=9.0)) == 8
    world.clock.now += 4
    for listed in (pins.visible(identity, namespace_id), pins.visible(ADMIN, None)):
        (pin,) = listed
        assert (pin.name, pin.pinned_token_count, pin.age, pin.remaining) == ("p", 8, 4.0, 5.0)
    assert world.store.stats(identity).named_pin_count == 1
    pins.unpin(identity, namespace_id, "p")
    assert pins.visible(ADMIN, None) == []
    world.check()


def test_a_tick_ends_the_pins_whose_time_is_over(world: World) -> None:
    """The reaper ends a pin past its time to live, and the log says which."""
    caller = world.worker()
    namespace_id, tokens = publish(world, caller)
    reaper = Reaper(world.store, clock=world.clock, interval=1.0)
    for name, ttl in (("short", 5.0), ("long", 500.0), ("endless", None)):
        request = NamedPinRequest(name, tokens, ttl)
        world.store.named_pins.pin(caller.identity, namespace_id, request)
    world.store.revoke(caller)
    with own_logs() as early:
        reaper.tick()
    world.clock.now += 5
    with own_logs() as late:
        reaper.tick()
    assert early == []
    assert [(line["event"], line["name"], line["namespace_id"]) for line in late] == [
        ("named_pin_expired", "short", namespace_id.hex())
    ]
    left = world.store.named_pins.visible(caller.identity, None)
    assert [pin.name for pin in left] == ["long", "endless"]
