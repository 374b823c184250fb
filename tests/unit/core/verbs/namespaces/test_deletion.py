"""A namespace that is deleted: its pages, who holds some of them, and what comes after it."""

import pytest

from core.core_builders import ADMIN, NAMESPACE_ID, OWNER, CoreWorld, make_layout, paged
from core.disk_world import DiskWorld
from core.verify_calls import ask, found_bad, publish
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.pool.namespace import Namespace
from kvstore.core.stats import snapshot
from kvstore.core.values.event_log import Cause, NamespaceEvent, NamespaceStep, PagesEvent
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import (
    Identity,
    MatchOptions,
    NamedPinRequest,
    Removed,
    ReservationRequest,
)
from kvstore.errors import NamespaceNotFound

FRESH_ID = b"another of 16 by"


def delete(world: CoreWorld) -> Removed:
    """Deletes the world's namespace and check every law."""
    removed = world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    world.laws.check()
    return removed


def reopen(world: CoreWorld) -> Namespace:
    """Opens the same identity again."""
    caller, layout = world.worker.caller, world.layout
    identity = NamespaceIdentity(b"model")
    return world.cache.open_namespace(caller, identity, layout, FRESH_ID, world.now)


def test_pages_that_nobody_holds_go_at_once() -> None:
    """With their named pins; the counts stay in the totals, and the arena is the tenant's."""
    world = CoreWorld()
    world.worker.publish("abc", "abx")
    request = NamedPinRequest("kept", paged("ab"))
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    before = world.cache.counters.copy()
    arena = world.arena
    assert delete(world) == Removed(4, 0)
    assert arena.free_count == arena.slot_count
    assert world.cache.counters.inserted_page_count == before.inserted_page_count
    assert world.cache.counters.removed_page_count == before.removed_page_count + 4
    assert world.cache.state.removed_pages == {Cause.NAMESPACE_DELETED: 4}
    assert snapshot(world.cache, ADMIN, world.now).named_pin_count == 0
    assert world.cache.namespaces == {}


def test_pages_that_somebody_holds_go_at_the_last_release() -> None:
    """They stay readable until then, and nothing else of it is left."""
    world = CoreWorld()
    arena = world.arena
    world.worker.publish("abcd")
    world.worker.match("ab", 1)
    other = world.join("other")
    other.match("abc", 1)
    assert delete(world) == Removed(1, 3)
    assert snapshot(world.cache, OWNER, world.now).detached_page_count == 3
    assert snapshot(world.cache, Identity("tenant-b"), world.now).detached_page_count == 0
    world.worker.release(1)
    world.laws.check()
    assert arena.free_count == 5
    other.release(1)
    world.laws.check()
    assert arena.free_count == 8
    assert snapshot(world.cache, OWNER, world.now).detached_page_count == 0
    reopen(world)
    world.cache.delete_namespace(OWNER, FRESH_ID)
    assert world.cache.state.leaving == []


def test_pages_of_a_deleted_namespace_are_not_forgotten() -> None:
    """A law says so."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    delete(world)
    world.cache.state.leaving.clear()
    with pytest.raises(InvariantBroken, match="namespace is known"):
        world.laws.check()


def test_what_was_reserved_can_be_given_back_and_not_published() -> None:
    """Not anew, and not again: every insert is told that the namespace is gone."""
    world = CoreWorld()
    arena, worker = world.arena, world.worker
    worker.acquire("abcd", 1, 2)
    worker.insert(2, "ab")
    worker.reserve(3, 1)
    assert delete(world) == Removed(0, 2)
    for reservation_id, letters in ((2, "ab"), (2, "abcd"), (3, "x")):
        with pytest.raises(NamespaceNotFound):
            worker.insert(reservation_id, letters)
    world.laws.check()
    worker.abort(2, 3)
    world.laws.check()
    assert arena.free_count == 8


def test_every_call_that_names_it_is_told_that_it_is_gone() -> None:
    """As of an id that never was; so is who deletes it again."""
    world = CoreWorld()
    worker = world.worker
    worker.publish("ab")
    worker.match("ab", 1)
    delete(world)
    calls = (
        lambda: worker.match("ab", 2),
        lambda: worker.match("ab", 1),
        lambda: worker.reserve(5, 1),
        lambda: worker.acquire("ab", 6, 7),
        lambda: world.cache.peek(OWNER, NAMESPACE_ID, paged("ab"), world.now),
        lambda: world.cache.evict_prefix(OWNER, NAMESPACE_ID, b""),
        lambda: world.cache.visible_named_pins(OWNER, NAMESPACE_ID),
        lambda: world.cache.delete_namespace(ADMIN, NAMESPACE_ID),
    )
    for call in calls:
        with pytest.raises(NamespaceNotFound):
            call()


def test_another_tenant_s_is_not_there() -> None:
    """It stays as it is; an admin may delete any."""
    world = CoreWorld()
    world.worker.publish("ab")
    with pytest.raises(NamespaceNotFound):
        world.cache.delete_namespace(Identity("tenant-b"), NAMESPACE_ID)
    assert world.shape() == {"ab": {}}
    assert world.cache.delete_namespace(ADMIN, NAMESPACE_ID) == Removed(2, 0)


def test_the_same_identity_opened_again_is_another_namespace() -> None:
    """Empty, of a fresh id and a number of its own, perhaps of another layout; again and again."""
    world = CoreWorld()
    world.worker.publish("ab")
    number = world.namespace.number
    delete(world)
    again = reopen(world)
    assert (again.namespace_id, again.number, again.index.page_count) == (FRESH_ID, number + 1, 0)
    world.laws.check()
    world.cache.delete_namespace(OWNER, FRESH_ID)
    layout = make_layout(page_bytes=128)
    identity = NamespaceIdentity(b"model")
    caller = world.worker.caller
    third = world.cache.open_namespace(caller, identity, layout, b"third", world.now)
    assert (third.number, third.layout) == (number + 2, layout)
    world.laws.check()


def test_a_tenant_without_leases_keeps_its_arena() -> None:
    """The tenant's next namespace finds the memory that it has."""
    world = CoreWorld()
    arena = world.arena
    delete(world)
    world.cache.process_died(world.worker.process_id, world.now)
    world.cache.expire(world.now + 10_000)
    world.laws.check()
    assert world.join("later").lease.arenas == {arena.arena_id: arena}


def test_it_is_told() -> None:
    """Pages first, then the namespace."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.cache.events.recent.clear()
    delete(world)
    *pages, last = world.cache.events.recent
    causes = [each.cause.name for each in pages if isinstance(each, PagesEvent)]
    assert set(causes) == {"NAMESPACE_DELETED"}
    assert isinstance(last, NamespaceEvent)
    assert last.step is NamespaceStep.DELETED


def test_an_answer_under_way_is_asked_for_again_and_finds_nothing() -> None:
    """Its pages were looked at meanwhile: what was counted of them counts in the totals."""
    world = CoreWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    delete(world)
    world.cache.remove_corrupt(inspection, found_bad(inspection, "b"), 2)
    assert not world.cache.settle(inspection, found_bad(inspection, "b"))
    world.laws.check()
    with pytest.raises(NamespaceNotFound):
        world.worker.match("ab", 1)


def test_tier_3_is_told_to_forget_all_of_it() -> None:
    """Nothing is loaded before it was, also under the identity's next namespace."""
    world = DiskWorld()
    world.worker.publish("ab")
    world.write_touched()
    digest = world.namespace.digest
    delete(world)
    again = reopen(world)
    assert again.removing == (1,)
    world.laws.check()
    worker = world.worker
    sequence = worker.sequence("ab")
    located = world.cache.locate(worker.caller, FRESH_ID, sequence)
    assert world.cache.begin_read(worker.caller, FRESH_ID, sequence, 2, located) is None
    assert world.tell() == [RemovedPrefix(NAMESPACE_ID, digest, None, 1)]
    assert (again.removing, world.disk_state.untold, world.disk) == ((0,), {}, {})
    assert world.cache.begin_read(worker.caller, FRESH_ID, sequence, 2, located) is not None


def test_tier_3_is_told_of_one_that_nobody_opened_again() -> None:
    """The debt is then forgotten; two removals are two."""
    world = DiskWorld()
    world.worker.publish("ab")
    world.evict_prefix("b")
    digest = world.namespace.digest
    delete(world)
    assert world.disk_state.untold == {digest: (2,)}
    removed = world.cache.take_removed()
    world.cache.finish_removed(removed[:1])
    assert world.disk_state.untold == {digest: (1,)}
    world.laws.check()
    world.cache.finish_removed(removed[1:])
    assert world.disk_state.untold == {}
    world.laws.check()


def test_what_tier_3_was_told_of_leaves_nothing() -> None:
    """A deletion after all removals were settled owes one: its own."""
    world = DiskWorld()
    delete(world)
    world.tell()
    assert world.disk_state.untold == {}
    assert reopen(world).removing == (0,)


def test_a_load_under_way_publishes_nothing() -> None:
    """Its slots are given back."""
    world = DiskWorld()
    arena = world.arena
    world.worker.publish("ab")
    world.write_touched()
    world.evict()
    load = world.begin("ab")
    assert load is not None
    delete(world)
    assert world.finish(load) == 0
    assert arena.free_count == arena.slot_count


def test_what_is_found_corrupt_after_it_removes_nothing_more() -> None:
    """All of it was removed already: the identity's next namespace loses nothing."""
    world = DiskWorld(slots=8)
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    delete(world)
    world.tell()
    again = reopen(world)
    world.cache.remove_corrupt(inspection, found_bad(inspection, "b"), 2)
    assert (world.disk_state.removed, again.removing) == ([[]], (0,))
    world.laws.check()


def test_what_was_announced_is_computed_for_nobody() -> None:
    """The tenant's announced tokens are counted down."""
    world = CoreWorld(slots=8)
    world.worker.acquire("abcd", 1, 2)
    other = world.join("other")
    holdings = world.arena.owner
    assert holdings.announced_bytes > 0
    identity, caller = NamespaceIdentity(b"second"), other.caller
    world.cache.open_namespace(caller, identity, world.layout, b"second", world.now)
    request = ReservationRequest(3, 0, 1)
    world.cache.reserve(caller, b"second", [request], world.now)
    delete(world)
    assert holdings.announced_bytes == 0
    options = MatchOptions(9)
    with pytest.raises(NamespaceNotFound):
        world.cache.match(other.caller, NAMESPACE_ID, other.sequence("ab"), options, world.now)
