"""Two page stores of one cache: each has its own touches, and its own pages that are kept."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, node_at
from core.disk_world import DiskWorld
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import kept_end
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.core.values.requests import Removed

FIRST, SECOND = 0, 1


@pytest.fixture
def world() -> DiskWorld:
    """Provides a world with two page stores."""
    return DiskWorld(slots=8, page_stores=2)


def put(world: DiskWorld, letters: str, reservation_id: int = 1) -> None:
    """Inserts a sequence with a page for each letter."""
    world.worker.reserve(reservation_id, len(letters))
    world.worker.insert(reservation_id, letters)
    world.worker.abort(reservation_id)


def end_of(world: DiskWorld, letters: str) -> Position:
    """Returns the end of a cached path."""
    node = node_at(world.namespace.index, letters)
    return Position(node, len(letters) - node.start)


def kept(world: DiskWorld, letters: str) -> list[int]:
    """Returns how many pages of a path each page store is known to have."""
    at = end_of(world, letters)
    return [kept_end(at, number) for number in (FIRST, SECOND)]


def written(world: DiskWorld, number: int, most: int = 100) -> list[DiskWrite]:
    """Writes what was touched to one page store. Returns the writes."""
    writes = world.cache.plan_writes(most, number=number)
    world.cache.finish_writes(writes, [world.write(each) for each in writes])
    world.laws.check()
    return writes


def test_each_page_store_is_offered_every_page(world: DiskWorld) -> None:
    """A page that one has still waits for the other."""
    put(world, "ab")
    assert [len(each.pages) for each in written(world, FIRST)] == [2]
    assert kept(world, "ab") == [2, 0]
    assert not world.cache.writes_wanted(FIRST)
    assert world.cache.writes_wanted(SECOND)
    assert [len(each.pages) for each in written(world, SECOND)] == [2]
    assert kept(world, "ab") == [2, 2]


def test_a_page_store_without_room_stops_no_other(world: DiskWorld) -> None:
    """Its writes that do not end let the other have its first one, whatever its room."""
    put(world, "ab")
    [slow] = world.cache.plan_writes(100, number=SECOND)
    assert world.cache.plan_writes(100, 0, number=SECOND) == []
    [write] = world.cache.plan_writes(100, 0, number=FIRST)
    assert len(write.pages) == 1
    world.cache.finish_writes([write, slow], [world.write(write), 0])
    assert kept(world, "ab") == [1, 0]
    world.laws.check()


def test_a_loss_of_one_page_store_is_no_loss_of_the_other(world: DiskWorld) -> None:
    """Only the pages of the one that lost some are offered again."""
    put(world, "ab")
    for number in (FIRST, SECOND):
        written(world, number)
    world.cache.forget_kept([world.namespace.digest], SECOND)
    assert kept(world, "ab") == [2, 0]
    world.disk_state.touched(end_of(world, "ab"))
    assert not world.cache.writes_wanted(FIRST)
    assert [len(each.pages) for each in written(world, SECOND)] == [2]
    assert kept(world, "ab") == [2, 2]


def test_a_loss_during_a_write_counts_for_its_page_store(world: DiskWorld) -> None:
    """A write to the one that lost pages records nothing, and that to the other does."""
    put(world, "ab")
    writes = [world.cache.plan_writes(100, number=number)[0] for number in (FIRST, SECOND)]
    world.cache.forget_kept([world.namespace.digest], FIRST)
    world.cache.finish_writes(writes, [world.write(each) for each in writes])
    assert kept(world, "ab") == [0, 2]
    world.laws.check()


def test_pages_that_were_read_are_kept_where_they_came_from(world: DiskWorld) -> None:
    """The other page store is offered them at their next use."""
    worker = world.worker
    located = world.locate("abc")
    read = world.cache.begin_read(
        worker.caller, NAMESPACE_ID, worker.sequence("abc"), 2, located, SECOND
    )
    assert read is not None
    world.finish(read)
    assert kept(world, "ab") == [0, 2]
    world.disk_state.touched(end_of(world, "ab"))
    assert [world.cache.writes_wanted(number) for number in (FIRST, SECOND)] == [True, False]


def test_a_split_and_a_join_keep_what_each_page_store_has(world: DiskWorld) -> None:
    """Pages of a node that are kept by one, and others by both."""
    put(world, "abc")
    written(world, FIRST)
    written(world, SECOND, most=1)
    assert kept(world, "abc") == [3, 1]
    put(world, "ax", 2)
    assert kept(world, "abc") == [3, 1]
    assert (kept(world, "a"), kept(world, "ax")) == ([1, 1], [1, 1])
    world.laws.check()


def test_a_removal_is_owed_to_each_page_store_until_it_was_told(world: DiskWorld) -> None:
    """Until then nothing is written to that one or read from it, and the other goes on."""
    put(world, "ab")
    world.evict_prefix("b")
    assert world.namespace.removing == (1, 1)
    world.cache.finish_removed(world.cache.take_removed(SECOND), SECOND)
    assert (world.namespace.removing, world.cache.take_removed(SECOND)) == ((1, 0), [])
    world.laws.check()
    assert world.cache.plan_writes(9, number=FIRST) == []
    [write] = world.cache.plan_writes(9, number=SECOND)
    world.cache.finish_writes([write], [1])
    worker, located = world.worker, world.locate("abc")
    asked = (worker.caller, NAMESPACE_ID, worker.sequence("abc"), 1, located)
    assert world.cache.begin_read(*asked, FIRST) is None
    read = world.cache.begin_read(*asked, SECOND)
    assert read is not None
    world.finish(read)


def test_one_of_two_page_stores_is_not_written(world: DiskWorld) -> None:
    """No touch waits for it."""
    world.cache.write_nothing(SECOND)
    put(world, "ab")
    assert [world.cache.writes_wanted(number) for number in (FIRST, SECOND)] == [True, False]


def test_what_another_host_removed_leaves_this_one(world: DiskWorld) -> None:
    """Pages that nobody holds go, those that are held are detached, and all work is stale."""
    digest = world.namespace.digest
    put(world, "ab")
    written(world, FIRST)
    put(world, "xy", 2)
    [write] = world.cache.plan_writes(9, number=FIRST)
    world.worker.match("abc", 1)
    worker, located = world.worker, world.locate("pq")
    read = world.cache.begin_read(
        worker.caller, NAMESPACE_ID, worker.sequence("pq"), 1, located, SECOND
    )
    assert read is not None
    removed = world.cache.revise(digest, SECOND)
    assert (removed.evicted_page_count, removed.detached_page_count) == (0, 4)
    assert (write.is_stale, read.is_stale) == (True, True)
    assert world.namespace.index.page_count == 0
    world.laws.check()
    assert world.finish(read) == 0
    world.cache.finish_writes([write], [0])
    for number in (FIRST, SECOND):
        owed = world.cache.take_removed(number)
        assert owed == [RemovedPrefix(NAMESPACE_ID, digest, None, known_to=SECOND)]
        world.cache.finish_removed(owed, number)
    assert world.namespace.removing == (0, 0)
    world.worker.release(1)
    put(world, "ab", 3)
    assert [len(each.pages) for each in written(world, SECOND)] == [2]
    assert kept(world, "ab") == [0, 2]


def test_what_another_host_removed_of_a_namespace_that_is_not_open(world: DiskWorld) -> None:
    """The other page stores are told all the same, before it is opened."""
    digest = world.namespace.digest
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    for number in (FIRST, SECOND):
        world.cache.finish_removed(world.cache.take_removed(number), number)
    assert world.cache.revise(digest, SECOND) == Removed(0, 0)
    assert world.disk_state.untold == {digest: (1, 1)}
    world.laws.check()
    for number in (FIRST, SECOND):
        owed = world.cache.take_removed(number)
        assert owed == [RemovedPrefix(b"", digest, None, known_to=SECOND)]
        world.cache.finish_removed(owed, number)
    assert world.disk_state.untold == {}
