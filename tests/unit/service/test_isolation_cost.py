"""The cost of a call, in function calls, does not depend on what other tenants have."""

import gc
import sys
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import (
    Caller,
    Identity,
    MatchOptions,
    NamedPinRequest,
    ReservationRequest,
    Sequence,
)
from kvstore.errors import KVStoreError
from stores.store_world import IDENTITY, PAGE_TOKENS, World, Worlds, sequence_of

OTHER = "uid-2"


def count_calls(action: Callable[[], object]) -> int:
    """Returns how many functions, Python's and C's, an action calls with the collector off."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:  # noqa: ANN401 - anything
        nonlocal count
        del frame, argument
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def refused(action: Callable[[], object]) -> None:
    """Runs an action that must end with an error of ours."""
    try:
        action()
    except KVStoreError:
        return
    raise AssertionError("it was not refused")


def crowd(world: World) -> None:
    """Gives another tenant many leases, namespaces, pages, pins and named pins."""
    workers = [world.worker(tenant=OTHER) for _ in range(50)]
    first = workers[0]
    namespace_id = world.open_namespace(first)
    for number in range(100):
        named = NamespaceIdentity(b"model %d" % number)
        world.store.open_namespace(first, named, world.layout)
    for number in range(200):
        sequence = sequence_of(2, rest=0, salt=1000 * number)
        world.map_extents(first)
        world.store.reserve(first, namespace_id, [ReservationRequest(number + 1, 0, 2)])
        world.store.insert(first, number + 1, sequence)
        pin = NamedPinRequest(f"pin {number}", sequence.tokens)
        world.store.named_pins.pin(Identity(OTHER), namespace_id, pin)
        world.store.growth.step()


def costs(world: World) -> dict[str, int]:
    """Returns what each call of a tenant costs, in function calls."""
    store = world.store
    caller = world.worker(tenant="uid-1")
    me = caller.identity
    namespace_id = world.open_namespace(caller)
    fresh = world.caller(tenant="uid-1")
    other = NamespaceIdentity(b"another model")
    sequence = sequence_of(2, rest=1)
    whole = Sequence(sequence.tokens[: 8 * PAGE_TOKENS])
    unknown = Caller(me, b"unknown lease id", b"no secret of it", caller.epoch)
    verbs: dict[str, Callable[[], object]] = {
        "grant": lambda: store.grant(fresh, ttl=None, display_name="", features=()),
        "renew": lambda: store.renew(caller),
        "open_namespace": lambda: store.open_namespace(caller, IDENTITY, world.layout),
        "open another": lambda: store.open_namespace(caller, other, world.layout),
        "miss": lambda: store.match(caller, namespace_id, sequence, MatchOptions(1)),
        "reserve": lambda: store.reserve(caller, namespace_id, [ReservationRequest(2, 0, 2)]),
        "insert": lambda: store.insert(caller, 2, whole),
        "match": lambda: store.match(caller, namespace_id, sequence, MatchOptions(3)),
        "acquire": lambda: store.acquire(
            caller,
            namespace_id,
            sequence,
            MatchOptions(4),
            reservation_id=5,
            total_page_count=4,
        ),
        "exhausted": lambda: refused(
            lambda: store.reserve(caller, namespace_id, [ReservationRequest(6, 0, 5)])
        ),
        "abort": lambda: store.abort(caller, [5]),
        "peek": lambda: store.peek(me, namespace_id, sequence.tokens),
        "name": lambda: store.named_pins.pin(
            me, namespace_id, NamedPinRequest("mine", whole.tokens)
        ),
        "named": lambda: store.named_pins.visible(me, None),
        "unname": lambda: store.named_pins.unpin(me, namespace_id, "mine"),
        "stats": lambda: store.stats(me),
        "extents": lambda: store.extents(me),
        "prefixes": lambda: store.prefixes(me, namespace_id, after=0, count=10, max_tokens=1),
        "release": lambda: store.release(caller, [3, 4]),
        "evict": lambda: store.evict_prefix(me, namespace_id, whole.tokens),
        "revoke unknown": lambda: store.revoke(unknown),
        "unknown": lambda: refused(lambda: store.renew(unknown)),
        "revoke": lambda: store.revoke(fresh),
        "request": lambda: store.traffic.admit(me.tenant),
    }
    return {name: count_calls(verb) for name, verb in verbs.items()}


def test_no_call_costs_more_for_what_others_have(worlds: Worlds) -> None:
    """Beside a tenant with leases, namespaces, pages and pins in numbers, all costs the same."""
    alone, crowded = (worlds(slots=10_000, extent_slots=8) for _ in range(2))
    crowd(crowded)
    stats = crowded.store.stats(Identity(OTHER))
    assert (len(stats.leases), len(stats.namespaces), stats.named_pin_count) == (50, 101, 200)
    assert costs(alone) == costs(crowded)


def test_the_count_sees_what_depends() -> None:
    """A loop over what there is costs more where there is more of it."""
    few, many = array("I", range(10)), array("I", range(1000))
    small, large = (
        count_calls(lambda each=each: sum(abs(x) for x in each)) for each in (few, many)
    )
    assert large > 10 * small
