"""A namespace that goes in parts, and those that come and go without end."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, make_layout, paged
from kvstore.core.index.radix import subtree
from kvstore.core.index.removal import NODE_WORK, part_of, work_of
from kvstore.core.values.event_log import Cause
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Removed
from kvstore.errors import QuotaExceeded


def nodes_of(world: CoreWorld) -> int:
    """Returns how many nodes the world's namespace has."""
    return len(world.namespace.index.nodes)


# The work of a part: of one node, of some, or less than any.
MOST = [1, 3, 1 + NODE_WORK, 2 * (2 + NODE_WORK), 5 * (1 + NODE_WORK)]


@pytest.mark.parametrize("most", MOST)
def test_a_large_one_goes_in_parts(most: int) -> None:
    """Each of little work, whatever shape the tree has and who holds of it; then there is none."""
    world = CoreWorld(slots=40)
    # A comb, siblings, a path, and a node that was made before what is above it.
    world.worker.publish("abcd", "abcx", "aby", "az", "b", "c", "dddddd", "dde", "dd")
    world.worker.match("abc", 1)
    total, gone = world.namespace.index.page_count, Removed(0, 0)
    while True:
        before = world.namespace.index.page_count
        cause = Cause.NAMESPACE_DELETED
        part = world.cache.thin(OWNER, NAMESPACE_ID, b"", most, cause)
        if part is None:
            break
        world.laws.check()
        assert 1 <= before - world.namespace.index.page_count <= most
        gone = gone.plus(part)
    assert work_of(world.namespace.index.root) <= most
    gone = gone.plus(world.cache.delete_namespace(OWNER, NAMESPACE_ID))
    world.laws.check()
    assert gone == Removed(total - 3, 3)


def test_a_part_is_no_larger_than_asked_for() -> None:
    """Some nodes below a large node go; a small one goes whole with its siblings."""
    world = CoreWorld(slots=60)
    world.worker.publish("a", "b", "c", *(f"d{x}" for x in "0123456789"), "e", "f")
    index, sizes, most = world.namespace.index, [], 4 * (1 + NODE_WORK)
    while part := part_of(index, [index.root], most):
        sizes.append(sum(len(list(subtree(each))) for each in part))
        world.cache.state.remove_pages(world.namespace, part, Cause.REMOVED)
        world.laws.check()
    assert max(sizes) == 4
    assert sum(sizes) == 16 - nodes_of(world)
    assert nodes_of(world) < 4


def test_a_long_leaf_goes_in_parts() -> None:
    """From its end. Of the part that is held, the held pages are detached."""
    world = CoreWorld(slots=40)
    world.worker.publish("abcdefghijklmnopqrstuvwxyz")
    world.worker.match("abcde", 1)
    most, parts = NODE_WORK + 2, []
    while part := world.cache.thin(OWNER, NAMESPACE_ID, b"", most, Cause.REMOVED):
        parts.append(part)
        world.laws.check()
    if world.namespace.index.joins_nodes:
        assert parts == [Removed(18, 0), Removed(3, 5)]
    world.evict_prefix("")
    world.worker.release(1)
    world.laws.check()
    assert world.states() == {"FREE": 40}


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize(("prefix", "kept"), [("a", 5), ("abc", 8), ("x", 13), ("none", 14)])
def test_a_large_prefix_goes_in_parts(prefix: str, kept: int, most: int) -> None:
    """Nothing else goes; what is no more than a part is left to the last step."""
    world = CoreWorld(slots=40)
    world.worker.publish("abcd", "abce", "abcfgh", "az", "b", "bcde", "x")
    total, gone = world.namespace.index.page_count, 0
    cause = Cause.REMOVED
    while part := world.cache.thin(OWNER, NAMESPACE_ID, paged(prefix), most, cause):
        assert part.evicted_page_count
        gone += part.evicted_page_count
        world.laws.check()
    assert gone or most > 1 or kept > 8
    evicted, _ = world.evict_prefix(prefix)
    assert total - evicted - gone == kept


def test_arenas_are_bounded_however_often_namespaces_come_and_go() -> None:
    """As many sizes of pages as there may be namespaces; one of them may always come again."""
    world = CoreWorld(limits=Limits(max_namespaces=3))
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    caller, identity = world.worker.caller, NamespaceIdentity(b"model")

    def come_and_go(number: int) -> None:
        layout = make_layout(page_bytes=64 * number)
        namespace_id = number.to_bytes(16)
        world.cache.open_namespace(caller, identity, layout, namespace_id, world.now)
        world.cache.delete_namespace(OWNER, namespace_id)

    for number in (2, 3, 1, 2, 3):
        come_and_go(number)
    with pytest.raises(QuotaExceeded) as refused:
        come_and_go(4)
    assert refused.value.metadata == {"quota": "arenas", "maximum": "3"}
    assert len(world.cache.arenas) == 3
    come_and_go(2)
    world.laws.check()
