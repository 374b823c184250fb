"""A large namespace that goes: in parts, so that calls get in between."""

from collections.abc import Callable

import pytest

from kvstore.core.index.removal import NODE_WORK
from kvstore.core.values.requests import Caller, Identity, Removed, ReservationRequest
from kvstore.errors import NamespaceNotFound
from kvstore.service import administration
from kvstore.service.administration import REMOVED_AT_ONCE
from stores.store_world import World, Worlds, sequence_of

OWNER = Identity("uid-1")
# Nodes of one page that a part has.
PART = REMOVED_AT_ONCE // (1 + NODE_WORK)
NODES = 3 * PART


def fill(world: World, caller: Caller, namespace_id: bytes, numbers: range) -> None:
    """Publishes so many sequences of a page each, which have a node each."""
    for number in numbers:
        tokens = sequence_of(1, rest=0, salt=1000 * number)
        world.store.reserve(caller, namespace_id, [ReservationRequest(number, 0, 1)])
        world.store.insert(caller, number, tokens)
        world.store.abort(caller, [number])


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Runs an action whenever the store releases its mutex."""

    def meanwhile(do: Callable[[], None]) -> None:
        monkeypatch.setattr(administration, "sleep", lambda _: do())

    return meanwhile


def large(worlds: Worlds) -> tuple[World, Caller, bytes]:
    """Returns a store, a worker of it, and a namespace of many nodes."""
    world = worlds(slots=NODES + 20, extent_slots=NODES + 20)
    worker = world.worker()
    namespace_id = world.open_namespace(worker)
    fill(world, worker, namespace_id, range(1, NODES + 1))
    return world, worker, namespace_id


@pytest.mark.parametrize("whole", [True, False])
def test_calls_get_in_between(
    worlds: Worlds, between: Callable[[Callable[[], None]], None], *, whole: bool
) -> None:
    """They find what is left, and may insert; all that was there goes, and what came goes too."""
    world, worker, namespace_id = large(worlds)
    left: list[int] = []

    def look() -> None:
        world.check()
        fill(world, worker, namespace_id, range(10_000 + len(left), 10_001 + len(left)))
        left.append(world.store.stats(OWNER).namespaces[0].cached_page_count)

    between(look)
    if whole:
        removed = world.store.delete_namespace(OWNER, namespace_id)
    else:
        removed = world.store.evict_prefix(OWNER, namespace_id, b"")
    assert left[0] == NODES - PART + 1
    assert removed == Removed(NODES + len(left), 0)
    assert world.cache.counters.removed_page_count == NODES + len(left)
    world.check()


def test_another_may_delete_it_meanwhile(
    worlds: Worlds, between: Callable[[Callable[[], None]], None]
) -> None:
    """The second is told that it is gone; nothing is left of it, and nothing is counted twice."""
    world, worker, namespace_id = large(worlds)

    def delete() -> None:
        between(lambda: None)
        world.store.delete_namespace(OWNER, namespace_id)

    between(delete)
    assert world.store.delete_namespace(OWNER, namespace_id) == Removed(0, 0)
    assert world.cache.counters.removed_page_count == NODES
    world.check()
    with pytest.raises(NamespaceNotFound):
        world.store.peek(OWNER, namespace_id, sequence_of(1, salt=1000).tokens)
    assert world.open_namespace(worker) != namespace_id
