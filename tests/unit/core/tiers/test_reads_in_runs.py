"""Pages that come from tier 3 in runs, each of which gets its slots and is published apart."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, paged
from core.disk_world import DiskWorld
from kvstore.core.tiers import disk_reads, read_slots
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.tiers.read_slots import FREE_ONLY, EvictionBound
from kvstore.core.values.requests import Identity, MatchOptions
from kvstore.errors import NamespaceNotFound
from mutants.live import put_into_this_process
from mutants.mutant import Mutant

FIRST, SECOND = 0, 1
OLD = EvictionBound(1 / 4, 1 << 60)


def world_with(*sequences: str, slots: int = 8, page_stores: int = 1) -> DiskWorld:
    """Returns a world whose sequences are on the first disk and nowhere else."""
    world = DiskWorld(slots=slots, page_stores=page_stores)
    for letters in sequences:
        world.worker.publish(letters)
        world.write_touched()
    world.evict()
    return world


def begun(
    world: DiskWorld,
    letters: str,
    run_pages: int = 2,
    *,
    count: int = 100,
    bound: EvictionBound | None = None,
    number: int = FIRST,
) -> DiskRead:
    """Returns a read that was begun, with slots for its first run."""
    worker, located = world.worker, world.locate(letters)
    read = world.cache.begin_read(
        *(worker.caller, NAMESPACE_ID, worker.sequence(letters)),
        min(count, located.page_count),
        located,
        number,
        run_pages=run_pages,
        bound=bound,
    )
    world.laws.check()
    assert read is not None
    return read


def published(world: DiskWorld, read: DiskRead, good: int) -> bool:
    """Publishes a run of a read."""
    goes_on = world.cache.publish_run(read, good)
    world.laws.check()
    return goes_on


def matched(world: DiskWorld, letters: str, pin_id: int) -> int:
    """Returns how many pages of a sequence match."""
    count = world.worker.match(letters, pin_id).matched_token_count // 2
    world.worker.release(pin_id)
    return count


def test_each_run_is_published_before_the_next_one_has_slots() -> None:
    """A match finds what came so far, and the read goes on below it."""
    world = world_with("abcdef")
    read = begun(world, "abcdef")
    assert (read.start, read.end, read.planned_end) == (0, 2, 6)
    assert world.states() == {"FREE": 6, "MOVING": 2}
    assert published(world, read, 2)
    assert (read.start, read.end, read.planned_end) == (2, 2, 6)
    assert matched(world, "abcdef", 1) == 2
    assert world.cache.take_run(read, 3) == 3
    assert world.states() == {"FREE": 3, "MOVING": 3, "CACHED": 2}
    assert published(world, read, 3)
    assert world.cache.take_run(read, 100) == 1
    assert world.cache.finish_read(read, 1) == 1
    assert matched(world, "abcdefg", 2) == 6
    assert world.cache.counters.loaded_page_count == 6
    assert not world.cache.writes_wanted()
    world.laws.check()


def test_what_a_read_published_is_held_until_it_ends() -> None:
    """Else the pages of its next run would have nothing above them."""
    world = world_with("abcd", slots=4)
    read = begun(world, "abcd")
    assert published(world, read, 2)
    world.worker.reserve(1, 2)
    world.worker.abort(1)
    assert world.states() == {"FREE": 2, "CACHED": 2}
    world.cache.finish_read(read, 0)
    world.evict()
    assert world.states() == {"FREE": 4}


def test_two_runs_have_slots_at_a_time() -> None:
    """They are published in their order, one by one."""
    world = world_with("abcdef")
    read = begun(world, "abcdef")
    assert world.cache.take_run(read, 2) == 2
    world.laws.check()
    assert [page.end for page in read.pages_between(2, 4)] == [3, 4]
    assert published(world, read, 2)
    assert [page.end for page in read.pages] == [3, 4]
    assert published(world, read, 2)
    assert world.cache.finish_read(read, 0) == 0
    assert world.states() == {"FREE": 4, "CACHED": 4}
    world.laws.check()


def test_pages_of_a_plan_are_read_once() -> None:
    """Those without a slot too. Once published, or given up, they are nobody's."""
    world = world_with("abcdef", "abxy")
    read = begun(world, "abcdef")
    assert begun(world, "abcdef", count=6) is read
    assert published(world, read, 2)
    assert len(world.cache.reads_in(world.namespace)) == 4
    other = begun(world, "abxy")
    assert (other.start, other.planned_end) == (2, 4)
    world.cache.finish_read(other, 2)
    world.cache.finish_read(read, 0)
    assert not world.cache.reads_in(world.namespace)
    world.laws.check()


def test_a_run_that_fails_ends_what_can_be_published() -> None:
    """The rest goes back as the read is finished, once nobody writes there."""
    world = world_with("abcdef")
    read = begun(world, "abcdef")
    world.cache.take_run(read, 2)
    world.cache.add_extent(1, 9, 8)
    world.cache.retire_extent(1, 1)
    assert not published(world, read, 2)
    assert world.cache.finish_read(read, 0) == 0
    world.laws.check()


@pytest.mark.parametrize("what", ["a removal", "its lease ends"])
def test_a_read_gets_no_more_slots_after(what: str) -> None:
    """All that it still has goes back."""
    world = world_with("abcdef")
    read = begun(world, "abcdef")
    assert published(world, read, 2)
    if what == "a removal":
        world.evict_prefix("abc")
    else:
        world.cache.revoke(world.worker.caller, world.now)
    assert world.cache.take_run(read, 2) == 0
    world.cache.finish_read(read, 0)
    world.laws.check()


def test_a_read_goes_on_from_another_page_store() -> None:
    """Each page store is known to have what came from it, if it has all that is above."""
    world = world_with("abcd", page_stores=2)
    read = begun(world, "abcdef", count=2, run_pages=8)
    assert (read.end, read.planned_end) == (2, 2)
    assert world.cache.extend_read(read, 3, SECOND) == 3
    world.laws.check()
    assert [read.number_at(end) for end in range(1, 6)] == [0, 0, 1, 1, 1]
    assert world.cache.take_run(read, 9) == 3
    assert [page.number for page in read.pages] == [0, 0, 1, 1, 1]
    assert published(world, read, 2)
    assert world.cache.finish_read(read, 3) == 3
    world.laws.check()
    world.worker.match("abcdefg", 1)
    [write] = world.cache.plan_writes(9, number=FIRST)
    assert [page.end for page in write.pages] == [3, 4, 5]
    [other] = world.cache.plan_writes(9, number=SECOND)
    assert [page.end for page in other.pages] == [1, 2, 3, 4, 5]
    world.cache.finish_writes([write, other], [0, 0])


def test_pages_that_another_read_brings_are_not_added() -> None:
    """Neither are those after them, since one of them would have to wait for the other."""
    world = world_with("abcd", page_stores=2)
    read = begun(world, "abcdef", count=2)
    other = begun(world, "abcdefgh", count=1)
    assert other is read
    world.cache.finish_read(read, 2)
    low = begun(world, "abcd", count=1)
    high = world.cache.begin_read(
        *(world.worker.caller, NAMESPACE_ID, world.worker.sequence("abcdef")),
        *(1, world.locate("abcdef")),
    )
    assert high is low
    assert world.cache.extend_read(low, 1, SECOND) == 1
    assert world.cache.extend_read(low, 0, SECOND) == 0
    world.cache.finish_read(low, 0)
    world.laws.check()


def test_a_page_store_that_lacks_a_removal_adds_nothing() -> None:
    """Neither does a read after a removal get more pages."""
    world = world_with("abcdef", page_stores=2)
    other = begun(world, "abcdef", count=1)
    assert published(world, other, 1)
    world.cache.finish_read(other, 0)
    read = begun(world, "abcdef", count=2)
    third = begun(world, "abcdef", count=1)
    assert third is read
    assert world.cache.extend_read(read, 2, SECOND) == 2
    world.evict_prefix("abc")
    assert world.cache.extend_read(read, 1, SECOND) == 0
    world.cache.finish_read(read, 0)
    world.tell()
    read = begun(world, "abcdef", count=2)
    assert world.cache.extend_read(read, 1, SECOND) == 0
    world.cache.finish_read(read, 2)
    world.laws.check()


def test_a_careful_read_evicts_a_share_at_a_time() -> None:
    """Its slots go down as pages are published, and it takes FREE ones as it likes."""
    world = world_with("abcdef", slots=8)
    world.worker.publish("pqr", "stu")
    read = begun(world, "abcdef", bound=OLD)
    assert world.arena.bounded_count == 2
    assert world.cache.take_run(read, 2, OLD) == 0
    assert world.cache.counters.evicted_page_count == 6
    assert published(world, read, 2)
    assert world.arena.bounded_count == 0
    assert world.cache.take_run(read, 4, OLD) == 2
    assert world.cache.counters.evicted_page_count == 8
    world.cache.finish_read(read, 0)
    assert world.arena.bounded_count == 0
    world.laws.check()


def test_a_bound_that_ignores_other_reads_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many reads under way would evict far more than their share together."""
    fault = Mutant(
        "bound-ignores-other-reads",
        "kvstore.core.tiers.read_slots",
        "take_targets",
        "room - arena.bounded_count",
        "room",
    )
    put_into_this_process(monkeypatch, fault)
    monkeypatch.setattr(disk_reads, "take_targets", read_slots.take_targets)
    with pytest.raises(AssertionError):
        test_a_careful_read_evicts_a_share_at_a_time()


def test_a_careful_read_evicts_nothing_that_was_just_used() -> None:
    """The first page used lately ends it. The policy still has every leaf."""
    world = world_with("abcdefgh", slots=8)
    world.worker.publish("pq", "rs", "tu", "vw")
    since = world.cache.state.use_count
    world.worker.match("pqr", 1)
    world.worker.release(1)
    read = begun(world, "abcdefgh", run_pages=8, bound=EvictionBound(1.0, since + 1))
    assert (read.end, read.planned_end) == (6, 8)
    assert matched(world, "pqr", 2) == 2
    world.cache.finish_read(read, 0)
    world.worker.reserve(3, 8)
    world.worker.abort(3)
    assert world.states() == {"FREE": 8}


def test_a_careful_read_stops_below_a_page_that_others_continue() -> None:
    """A page above one that stays is no leaf, and is not offered to the policy."""
    world = world_with("abcdefgh", slots=8)
    world.worker.publish("pqx")
    since = world.cache.state.use_count + 1
    world.worker.publish("pqy")
    read = begun(world, "abcdefgh", run_pages=8, bound=EvictionBound(1.0, since))
    assert (read.end, matched(world, "pqyz", 2)) == (5, 3)
    world.cache.finish_read(read, 0)
    world.evict()
    assert world.states() == {"FREE": 8}


def test_a_read_of_free_slots_evicts_nothing() -> None:
    """It plans no more than it has slots for."""
    world = world_with("abcd", slots=4)
    world.worker.publish("xyz")
    read = begun(world, "abcd", bound=FREE_ONLY)
    assert (read.end, read.planned_end) == (1, 1)
    assert world.cache.take_run(read, 1, FREE_ONLY) == 0
    assert world.cache.finish_read(read, 1) == 1
    world.laws.check()


def test_an_operator_reads_without_a_lease() -> None:
    """Into all memory, of its own namespaces. It evicts only as much as a bound allows."""
    world = world_with("abcd", slots=4)
    sequence = world.worker.sequence("abcd")
    located = world.cache.locate(OWNER, NAMESPACE_ID, sequence, MatchOptions(1))
    assert (located.end, located.page_count) == (0, 4)
    with pytest.raises(NamespaceNotFound):
        world.cache.locate(Identity("stranger"), NAMESPACE_ID, sequence)
    world.worker.publish("xyz")
    asked = OWNER, NAMESPACE_ID, sequence, 4, located
    before = world.cache.counters.evicted_page_count
    for bound in (FREE_ONLY, None):
        read = world.cache.begin_read(*asked, run_pages=2, bound=bound)
        assert read is not None
        assert (read.end, read.planned_end) == (1, 1)
        assert world.cache.finish_read(read, 0) == 0
    assert world.cache.counters.evicted_page_count == before
    read = world.cache.begin_read(*asked, run_pages=2, bound=OLD)
    assert read is not None
    assert (read.end, read.planned_end) == (2, 4)
    assert world.cache.counters.evicted_page_count == before + 1
    assert world.cache.take_run(read, 1, OLD) == 0
    assert published(world, read, 2)
    assert world.cache.take_run(read, 2, OLD) == 1
    assert world.cache.finish_read(read, 1) == 1
    assert world.cache.counters.evicted_page_count == before + 2
    world.laws.check()


def test_names_can_be_asked_for_from_a_page_on() -> None:
    """Another page store is asked for those after the ones that the first one has."""
    world = world_with("abcd")
    located = world.locate("abcde")
    names = list(located.page_names())
    assert list(located.page_names(2)) == names[2:]
    assert len(names) == len(paged("abcde")) // 8
