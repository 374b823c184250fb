"""The reports to the disk: namespaces by their digests, and pages that must leave it."""

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged
from core.disk_world import DiskWorld
from kvstore.core.cache import PrefixCache
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits
from kvstore.core.values.page_hash import page_digests


def test_removals_are_told_with_all_that_comes_after() -> None:
    """An operator's: a page by its digest, everything, or what begins as a page does."""
    world = DiskWorld()
    space = world.namespace
    world.worker.publish("abcd", "xy")
    world.write_touched()
    a, b, *_ = page_digests(space.digest, paged("abcd"), 8)
    world.evict_prefix("ab")
    assert world.tell() == [RemovedPrefix(NAMESPACE_ID, space.digest, b, 1)]
    assert a in world.disk
    assert b not in world.disk
    world.cache.evict_prefix(OWNER, NAMESPACE_ID, paged("a") + paged("z")[:4])
    assert space.losses == (1,)
    assert world.tell() == [RemovedPrefix(NAMESPACE_ID, space.digest, a, 2)]
    assert len(world.disk) == 2
    world.cache.evict_prefix(OWNER, NAMESPACE_ID, b"")
    assert world.tell() == [RemovedPrefix(NAMESPACE_ID, space.digest, None, 3)]
    assert not world.disk
    assert (space.removals, space.removing) == (3, (0,))


def test_nothing_is_offered_before_a_removal_was_told() -> None:
    """It would be taken for there, and be gone then."""
    world = DiskWorld()
    world.worker.publish("ab")
    world.evict_prefix("b")
    assert world.write_touched() == 0
    world.tell()
    world.worker.match("ab", 1)
    assert world.write_touched() == 2


def test_a_namespace_is_known_by_its_digest() -> None:
    """From its opening."""
    cache = PrefixCache(7, Limits(), page_stores=1)
    helper = CoreWorld()
    caller = helper.worker.caller
    cache.grant(caller, ttl=None, display_name="", features=(), now=0.0)
    cache.bind(caller, process_id=1, pid=1, uid=1)
    space = cache.open_namespace(
        caller, NamespaceIdentity(b"model"), helper.layout, NAMESPACE_ID, 0.0
    )
    assert cache.state.disk is not None
    assert cache.state.disk.namespaces == {helper.namespace.digest: space}


def test_without_tier_3_nothing_is_noted() -> None:
    """Neither touches nor removals, and nothing is in a node."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.evict_prefix("ab")
    assert not world.cache.writes_wanted()
    assert (world.cache.plan_writes(9), world.cache.take_removed()) == ([], [])
    world.cache.write_nothing(0)
    world.cache.forget_kept([world.namespace.digest])
    assert world.namespace.losses == (0,)
