"""Each law about tier 3 is seen to be broken."""

from collections.abc import Callable

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, node_at
from core.disk_world import DiskWorld
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.pool.disk_state import RemovedPrefix


def made() -> DiskWorld:
    """Returns a world with kept pages, two nodes of them, a keep and a load under way."""
    world = DiskWorld(slots=16)
    world.worker.publish("abcd", "abxy", "pqrs")
    world.write_touched()
    world.evict_prefix("p")
    world.cache.finish_removed(world.cache.take_removed())
    assert world.begin("pqrs") is not None
    world.worker.publish("uv")
    assert world.cache.plan_writes(9)
    world.laws.check()
    return world


def forget_above(world: DiskWorld) -> None:
    """Makes the upper node forget its page hashes."""
    node_at(world.namespace.index, "ab").page_hashes = None


def change_digests(world: DiskWorld) -> None:
    """Gives a node the page hashes of other tokens."""
    node = node_at(world.namespace.index, "abxy")
    node.page_hashes = node_at(world.namespace.index, "abcd").page_hashes


def keep_too_many(world: DiskWorld) -> None:
    """Makes a node count more pages on the disk than it has."""
    node = node_at(world.namespace.index, "abxy")
    assert node.page_hashes is not None
    node.page_hashes = node.page_hashes._replace(kept=(3,))


def keep_below(world: DiskWorld) -> None:
    """Makes the disk have fewer pages above than below."""
    node = node_at(world.namespace.index, "ab")
    assert node.page_hashes is not None
    node.page_hashes = node.page_hashes._replace(kept=(1,))


def name_another_page(world: DiskWorld) -> None:
    """Makes a disk write name one page twice."""
    [keep] = world.cache.disk_writes
    keep.pages[0] = keep.pages[1]


def hold_nothing(world: DiskWorld) -> None:
    """Makes a disk read begin elsewhere than its hold ends."""
    [load] = world.cache.disk_reads
    load.start = 1


def load_unknown(world: DiskWorld) -> None:
    """Makes the table of disk reads forget one."""
    world.cache.reads_in(world.namespace).clear()


def load_twice(world: DiskWorld) -> None:
    """Loads a page into two slots."""
    [load] = world.cache.disk_reads
    again = world.worker.sequence("pqrs")
    located = world.locate("pqrs")
    world.cache.reads_in(world.namespace).clear()
    caller = world.worker.caller
    world.cache.begin_read(caller, load.namespace.namespace_id, again, 1, located)


def tell_nobody(world: DiskWorld) -> None:
    """Removes a page without a note that tier 3 is to be told."""
    space = world.namespace
    world.disk_state.removed[0].append(RemovedPrefix(space.namespace_id, space.digest, None))


def remember_what_was_told(world: DiskWorld) -> None:
    """Keeps a count of no removals of a namespace that is gone."""
    world.disk_state.untold[b"gone"] = (0,)


def forget_one_that_is_gone(world: DiskWorld) -> None:
    """Deletes a namespace, and let what tier 3 was not told of be forgotten."""
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    world.laws.check()
    world.disk_state.untold.clear()


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (forget_above, "a digest is known only if its parent's is"),
        (change_digests, "digests are those of the path's tokens"),
        (keep_too_many, "what is kept is of the node's pages"),
        (keep_below, "a page is known to be kept only if its parent is"),
        (name_another_page, "a disk write holds its pages"),
        (hold_nothing, "a disk read holds all that is above it"),
        (load_unknown, "what is being read is known"),
        (load_twice, "a page is read once at a time"),
        (tell_nobody, "tier 3 is told of every removal"),
        (forget_one_that_is_gone, "tier 3 is told of every removal"),
        (remember_what_was_told, "what tier 3 was told of is forgotten"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_law_that_is_broken_is_named(fault: Callable[[DiskWorld], None], law: str) -> None:
    """By whoever checks."""
    world = made()
    fault(world)
    with pytest.raises(InvariantBroken, match=law):
        world.laws.check()
