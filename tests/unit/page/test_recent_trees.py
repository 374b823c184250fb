"""The page's trees are read from the store, cached for a while, and consistent under changes."""

from random import Random

import pytest

from kvstore.v1 import store_pb2
from kvstore_ctl.page.recent_trees import MAX_AGE, MAX_COUNT, REST, NamespaceTree, RecentTree, Trees
from stores.page_world import ADMIN, PageWorld
from stores.store_world import PAGE_TOKENS, ManualClock, make_world


class Reader:
    """Reads empty trees, each in ``cost`` seconds. The first ``failures`` reads fail."""

    def __init__(self, clock: ManualClock, cost: float = 0.0, failures: int = 0) -> None:
        self.calls = 0
        self._clock = clock
        self._cost = cost
        self._failures = failures

    def __call__(self) -> NamespaceTree:
        """Returns a tree."""
        self.calls += 1
        self._clock.now += self._cost
        if self.calls <= self._failures:
            raise ValueError("failed")
        return NamespaceTree(PAGE_TOKENS, [])


def test_a_tree_is_read_once_in_its_time() -> None:
    """A tree is read once until it expires, however often it is requested."""
    clock = ManualClock()
    reader = Reader(clock)
    recent = RecentTree(reader, clock)
    assert recent.get() is recent.get()
    clock.now += MAX_AGE - 0.1
    recent.get()
    assert reader.calls == 1
    clock.now += 0.1
    recent.get()
    assert reader.calls == 2


def test_a_tree_that_takes_long_is_read_seldom() -> None:
    """Reading a tree takes at most a twentieth of the time."""
    clock = ManualClock()
    reader = Reader(clock, cost=2.0)
    recent = RecentTree(reader, clock)
    recent.get()
    clock.now += 2.0 * REST - 0.1
    recent.get()
    assert reader.calls == 1
    clock.now += 0.1
    recent.get()
    assert reader.calls == 2


def test_a_failure_is_not_kept() -> None:
    """The next call after a failure reads again."""
    clock = ManualClock()
    reader = Reader(clock, failures=1)
    recent = RecentTree(reader, clock)
    with pytest.raises(ValueError, match="failed"):
        recent.get()
    assert len(recent.get().outline) == 0


def test_only_the_trees_used_last_are_kept() -> None:
    """Only the most recently used trees are kept. A large one takes hundreds of megabytes."""
    clock = ManualClock()
    reader, trees = Reader(clock), Trees(clock)
    for number in range(MAX_COUNT + 1):
        trees.get(bytes([number]), reader)
    trees.get(bytes([MAX_COUNT]), reader)
    assert reader.calls == MAX_COUNT + 1
    trees.get(bytes([0]), reader)
    assert reader.calls == MAX_COUNT + 2


def test_a_node_has_its_place_in_tokens_and_its_first_tokens() -> None:
    """A node's place is converted from pages to tokens. A partial page counts its own tokens."""
    first = store_pb2.PrefixInfo(node_id=1, page_count=2, token_count=8, tokens=b"\1\0\0\0")
    second = store_pb2.PrefixInfo(
        node_id=2, parent_node_id=1, start_page=2, page_count=1, token_count=3, hit_count=1
    )
    tree = NamespaceTree(PAGE_TOKENS, [first, second])
    part = tree.outline.part(2, count=1)
    assert part is not None
    assert (part["start"], part["tokens"], part["hits"]) == (0, 11, 1)
    assert (tree.first_tokens(1), tree.first_tokens(2)) == ([1], [])


def read(page: PageWorld) -> NamespaceTree:
    """Reads the tree of the page's namespace."""
    page.feed.poll()
    [namespace] = page.feed.snapshot().stats.namespaces
    return page.feed.tree(namespace)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_changes_is_read_as_a_tree(seed: int) -> None:
    """The tree has each node once, even if prompts are inserted and evicted during the read."""
    rng = Random(seed)
    made = make_world(slots=256, extent_slots=256)
    caller = made.worker()
    page = PageWorld(made, caller, made.open_namespace(caller))

    def prompt() -> list[int]:
        return [each for _ in range(rng.randint(1, 4)) for each in (0, 0, 0, rng.randint(0, 2))]

    def change() -> None:
        # Fewer inserts than nodes, so that the list ends.
        if rng.random() < 0.3:
            page.publish(*prompt())
        else:
            packed = b"".join(each.to_bytes(4, "little") for each in prompt())
            made.store.evict_prefix(ADMIN, page.namespace_id, packed)

    for _ in range(10):
        page.publish(*prompt())
    page.connection.admin.between = change
    outline = read(page).outline
    root = outline.part(0, count=1000)
    assert root is not None
    assert root["nodes"] == len(outline)
    made.close()


def test_a_tree_at_rest_is_read_whole(page: PageWorld) -> None:
    """All nodes and tokens of the index are in the tree."""
    for last in range(6):
        page.publish(1, 2, 3, 4, 5, 6, 7, last)
    outline = read(page).outline
    root = outline.part(0, count=1000)
    assert root is not None
    assert (len(outline), root["total"]) == (7, 4 + 6 * 4)
