"""The end of a lease with many holds: in parts, so that calls get in between."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from kvstore.core.cache_state import HOLDS_AT_ONCE
from kvstore.core.values.requests import Caller, MatchOptions, ReservationRequest
from kvstore.service import leases
from stores.store_world import World, Worlds, sequence_of

PINS = 3 * HOLDS_AT_ONCE


def holding(worlds: Worlds) -> tuple[World, Caller, bytes]:
    """Returns a store, a worker with many pins, and the namespace that they are in."""
    world = worlds(slots=20, extent_slots=20)
    worker = world.worker()
    namespace_id = world.open_namespace(worker)
    world.store.reserve(worker, namespace_id, [ReservationRequest(1, 0, 1)])
    world.store.insert(worker, 1, sequence_of(1, rest=0))
    world.store.abort(worker, [1])
    for number in range(1, PINS + 1):
        world.store.match(worker, namespace_id, sequence_of(1), MatchOptions(number))
    return world, worker, namespace_id


def ends(world: World, worker: Caller) -> dict[str, Callable[[], None]]:
    """Returns the calls that end a worker's lease, by name."""

    def expire() -> None:
        lease = world.cache.table.find(worker)
        world.cache.table.unbind(world.process_id(worker))
        world.clock.now += lease.ttl
        world.store.expire()

    return {
        "dies": lambda: world.store.process_died(world.process_id(worker)),
        "revokes": lambda: world.store.revoke(worker),
        "expires": expire,
    }


@pytest.mark.parametrize("how", ["dies", "revokes", "expires"])
def test_calls_get_in_between(worlds: Worlds, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Each part gives few holds back. All are back in the end, and the log has one line."""
    world, worker, namespace_id = holding(worlds)
    end = ends(world, worker)[how]
    other = world.worker()
    left: list[int] = []

    def meanwhile(_: float) -> None:
        world.check()
        left.append(world.cache.table.tenants["uid-1"].hold_count)
        if how != "expires":
            # A call gets the mutex, and the pages are there.
            world.open_namespace(other)
            found = world.store.match(other, namespace_id, sequence_of(1), MatchOptions(len(left)))
            assert found.matched_token_count == 4
            world.store.release(other, [len(left)])
        else:
            assert world.store.responds(0)

    monkeypatch.setattr(leases, "sleep", meanwhile)
    with capture_logs() as logs:
        end()
    assert left == [PINS - HOLDS_AT_ONCE, PINS - 2 * HOLDS_AT_ONCE]
    assert world.cache.table.tenants["uid-1"].hold_count == 0
    [line] = [each for each in logs if each["event"] == "lease_ended" and each["pin_count"]]
    assert line["pin_count"] == PINS
    world.check()


def test_a_drain_waits_for_all_holds(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that ended counts as long as it holds something."""
    world, worker, _ = holding(worlds)
    counts: list[int] = []
    monkeypatch.setattr(leases, "sleep", lambda _: counts.append(world.store.wait_drained(0)))
    world.store.revoke(worker)
    assert counts == [1, 1]
    assert world.store.wait_drained(0) == 0
