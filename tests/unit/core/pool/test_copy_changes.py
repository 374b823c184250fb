"""Changes of blocks, and lists of all of them, for who follows which prefixes there are."""

import pytest

from core.core_builders import CoreWorld, paged
from core.letter_world import LetterWorld
from core.tiered_world import make, move
from kvstore.core.index.node import Position
from kvstore.core.pool.copy_changes import CopySweep, note_copied
from kvstore.core.values.change_log import (
    NO_PARENT,
    ChangeLog,
    CopiesRemoved,
    CopiesStored,
    CopyChange,
)
from naive.blocks import NaiveBlocks
from recoveries.world import JournaledWorld

TENANT = "tenant-a"


def follow(world: CoreWorld) -> ChangeLog:
    """Follows the blocks of a world from now on."""
    log = ChangeLog(room_bytes=1 << 20, wake=lambda: None)
    world.cache.events.changes = log
    return log


def changes(log: ChangeLog) -> list[CopyChange]:
    """Returns the changes since this was asked before."""
    return log.take(TENANT).changes


def ids(change: CopyChange) -> list[int]:
    """Returns the ids of a change's blocks."""
    return [each for part in change.ids for each in part]


def swept(world: CoreWorld, most: int = 1 << 20) -> NaiveBlocks:
    """Returns what a sweep lists."""
    found, sweep = NaiveBlocks(), CopySweep(world.cache.namespaces.values())
    while not sweep.is_done:
        for each in sweep.take(most):
            found.apply(each)
    return found


def paths(*sequences: str) -> set[bytes]:
    """Returns the tokens of each path through a page of some sequences."""
    return {paged(each[:end]) for each in sequences for end in range(1, len(each) + 1)}


def test_an_insert_stores_blocks_after_their_parent() -> None:
    """With ids that count up, and the tokens of what is new."""
    world = CoreWorld(slots=16)
    log = follow(world)
    world.worker.publish("abc", "abxy")
    first, second = changes(log)
    assert first == CopiesStored(world.namespace, 1, NO_PARENT, (range(1, 4),), paged("abc"))
    assert second == CopiesStored(world.namespace, 1, 2, (range(4, 6),), paged("xy"))
    world.worker.publish("abc")
    assert changes(log) == []


def test_a_longer_path_keeps_the_ids_above() -> None:
    """A leaf that grew in place has several runs of ids."""
    world = CoreWorld(slots=16)
    log = follow(world)
    world.worker.publish("ab", "z", "abcd", "abcde")
    assert [(each.ids, each.parent_id) for each in changes(log)] == [  # type: ignore[union-attr]
        ((range(1, 3),), NO_PARENT),
        ((range(3, 4),), NO_PARENT),
        ((range(4, 6),), 2),
        ((range(6, 7),), 5),
    ]
    world.evict_prefix("abc")
    world.evict_prefix("a")
    removed = changes(log)
    assert [ids(each) for each in removed] == [[4, 5, 6], [1, 2]]
    assert all(isinstance(each, CopiesRemoved) for each in removed)


def test_an_eviction_removes_blocks() -> None:
    """From the end of a path; what comes again is another block."""
    world = CoreWorld(slots=4)
    log = follow(world)
    world.worker.publish("abc", "xyz")
    world.worker.publish("abc")
    stored, removed = NaiveBlocks(), 0
    for each in changes(log):
        stored.apply(each)
        removed += isinstance(each, CopiesRemoved)
    assert removed >= 2
    there = {
        paged(letters[:end])
        for letters in ("abc", "xyz")
        for end in range(1, 4)
        if world.cache.peek(
            world.worker.caller.identity,
            world.namespace.namespace_id,
            paged(letters[:end]) + paged("q"),
            world.now,
        ).matched_token_count
        == 2 * end
    }
    assert stored.prefixes(1) == there
    assert max(stored.known) > 6


def test_a_path_that_goes_whole_is_removed() -> None:
    """With one change."""
    world = CoreWorld(slots=4)
    log = follow(world)
    world.worker.publish("abc")
    changes(log)
    world.worker.publish("wxyz")
    removed, stored = changes(log)
    assert (ids(removed), ids(stored)) == ([1, 2, 3], [4, 5, 6, 7])


def test_partial_pages_are_no_blocks() -> None:
    """They come and go unheard, and so does one that a whole page supersedes."""
    world = LetterWorld()
    log = follow(world.core)
    world.write("abcdef", 1)
    assert [ids(each) for each in changes(log)] == [[1]]
    world.write("abcdefgh", 2)
    assert [ids(each) for each in changes(log)] == [[3]]
    world.evict_prefix("a")
    assert [ids(each) for each in changes(log)] == [[1, 3]]


def test_pages_of_groups_are_no_blocks() -> None:
    """Only the path that they belong to is."""
    world = CoreWorld(slots=16)
    log = follow(world)
    world.worker.publish_groups("abc", g1="1.1")
    found = changes(log)
    assert [ids(each) for each in found] == [[1, 2, 3]]
    assert swept(world).prefixes(1) == paths("abc")
    world.evict_prefix("a")
    assert sorted(each for change in changes(log) for each in ids(change)) == [1, 2, 3]


def test_moves_store_blocks_in_their_tier() -> None:
    """And what leaves a tier is removed from that tier alone."""
    world = make()
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    move(world)
    found = changes(log)
    stored = [each for each in found if isinstance(each, CopiesStored) and each.tier == 2]
    assert sorted(each for change in stored for each in ids(change)) == [1, 2, 3, 4, 5, 6]
    removed = [each for each in found if isinstance(each, CopiesRemoved)]
    assert {each.tier for each in removed} == {1}
    naive = NaiveBlocks()
    for each in found:
        naive.apply(each)
    assert naive.prefixes(1) == set()
    assert naive.prefixes(2) == paths("abcd", "abxy")


def test_a_move_over_several_nodes_is_told_node_by_node() -> None:
    """Each part continues the block above it."""
    world = make(low=0.0, high=0.0)
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    changes(log)
    world.worker.match("abcd", 1)
    node = world.namespace.index.descend(
        Position(world.namespace.index.root, 0), paged("abcd"), 4
    ).node
    note_copied(log, node, len(node.slots), 3, 2)
    upper, lower = changes(log)
    assert upper == CopiesStored(world.namespace, 2, 1, (range(2, 3),), paged("b"))
    assert lower == CopiesStored(world.namespace, 2, 2, (range(3, 5),), paged("cd"))


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_sweep_lists_every_block(most: int) -> None:
    """Parents before children, however small its parts."""
    world = make()
    follow(world)
    world.worker.publish("abcd", "abxy", "q")
    move(world)
    world.worker.publish("abcdef", "w")
    found = swept(world, most)
    assert found.prefixes(1) | found.prefixes(2) == paths("abcdef", "abxy", "q", "w")
    assert paths("abcd", "abxy", "q") <= found.prefixes(2)


def test_a_sweep_lists_what_was_split_since() -> None:
    """A waiting node may become the lower part of another."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "q")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    for each in sweep.take(1):
        found.apply(each)
    changes(log)
    world.worker.publish("abxy")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    assert found.prefixes(1) == paths("abcd", "abxy", "q")


def test_a_sweep_lists_what_was_merged_since() -> None:
    """A waiting node may have given its pages to the one below it."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    sweep.take(1)
    changes(log)
    world.evict_prefix("abx")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    assert found.prefixes(1) == paths("abcd")


def test_a_sweep_leaves_out_what_was_removed_since() -> None:
    """With all that waited below it."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "abxy", "q")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    world.worker.match("abcd", 1)
    for each in sweep.take(2):
        found.apply(each)
    changes(log)
    world.evict_prefix("a")
    world.evict_prefix("q")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    for each in changes(log):
        found.apply(each)
    assert found.prefixes(1) == set()


def test_without_ids_there_are_no_blocks() -> None:
    """Pages from before anybody followed blocks have none, unless a journal gave them some."""
    world = CoreWorld(slots=16)
    world.worker.publish("abc")
    log = follow(world)
    assert swept(world).known == {}
    world.evict_prefix("b")
    world.evict_prefix("a")
    assert changes(log) == []


def test_a_recovered_tree_keeps_its_ids() -> None:
    """A consumer that knew the pages before finds the same ones in a sweep."""
    world = JournaledWorld(slots=16)
    log = follow(world)
    world.worker.publish("abcd", "abxy", "q")
    before = NaiveBlocks()
    for each in changes(log):
        before.apply(each)
    world.restart()
    log = follow(world)
    assert swept(world).known == before.known
    world.attach(world.worker)
    world.worker.publish("abz")
    for each in changes(log):
        before.apply(each)
    assert swept(world).known == before.known
    assert before.prefixes(1) == paths("abcd", "abxy", "q", "abz")


def test_a_sweep_lists_what_stays_of_a_waiting_node() -> None:
    """Its upper part is another node, and the waiting one is gone."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    for each in sweep.take(1):
        found.apply(each)
    changes(log)
    world.worker.match("abc", 1)
    world.evict_prefix("abcd")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    assert found.prefixes(1) == paths("abc", "abxy")


def test_a_sweep_that_lost_its_way_walks_again() -> None:
    """A listed node was merged with a waiting one, whose end was then removed."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    for each in sweep.take(1):
        found.apply(each)
    assert found.prefixes(1) == paths("ab")
    world.evict_prefix("abx")
    world.worker.match("abc", 1)
    world.evict_prefix("abcd")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    assert found.prefixes(1) == paths("abc")


def test_a_sweep_finds_the_upper_part_of_what_was_merged_and_split() -> None:
    """A listed node was merged with a waiting one, which was then cut after a new page."""
    world = CoreWorld(slots=32)
    log = follow(world)
    world.worker.publish("abcd", "abxy")
    sweep, found = CopySweep(world.cache.namespaces.values()), NaiveBlocks()
    for each in sweep.take(1):
        found.apply(each)
    world.evict_prefix("abx")
    world.worker.publish("abcz")
    while not sweep.is_done:
        for each in (*changes(log), *sweep.take(1)):
            found.apply(each)
    assert found.prefixes(1) == paths("abcd", "abcz")


def test_copies_without_ids_are_not_told() -> None:
    """Pages from before anybody followed changes move in silence."""
    world = make()
    world.worker.publish("ab")
    log = follow(world)
    move(world)
    assert changes(log) == []
