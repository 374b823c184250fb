"""Pages that come from tier 3: located, loaded into slots of tier 1, and published."""

import pytest

from core.core_builders import FILLER, NAMESPACE_ID, node_at, paged, places
from core.disk_world import DiskWorld
from kvstore.core.pool.tier_policy import WritePolicy
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK
from kvstore.core.verbs.verify import Inspection


def kept(*sequences: str, slots: int = 8, **options: object) -> DiskWorld:
    """Returns a world whose sequences are on the disk and nowhere else."""
    world = DiskWorld(slots=slots, **options)  # type: ignore[arg-type]  # a test's
    for letters in sequences:
        world.worker.publish(letters)
        world.write_touched()
    world.evict()
    assert world.states() == {"FREE": slots}
    world.disk_state.touches[0].clear()
    return world


def begun(world: DiskWorld, letters: str, count: int = 100) -> DiskRead:
    """Returns a load that was begun."""
    load = world.begin(letters, count=count)
    assert load is not None
    return load


def test_what_was_kept_is_loaded_and_matched() -> None:
    """Its pages are cached then, and known to be kept."""
    world = kept("abcd")
    located = world.locate("abcdef")
    assert (located.end, located.page_count) == (0, 6)
    digests = list(page_digests(world.namespace.digest, paged("abcdef"), 8))
    assert list(located.page_digests()) == digests
    assert [each.digest for each in located.page_names()] == digests
    assert located.namespace_digest == world.namespace.digest
    load = begun(world, "abcdef")
    assert world.states() == {"FREE": 4, "MOVING": 4}
    assert [(page.end, page.digest) for page in load.pages] == list(enumerate(digests[:4], 1))
    assert {page.segment for page in load.pages} == {digests[0]}
    assert (load.end, load.namespace_digest) == (4, world.namespace.digest)
    assert world.worker.match("abcdef", 1).matched_token_count == 0
    targets = load.targets
    assert world.finish(load) == 4
    match = world.worker.match("abcdef", 2)
    assert places(match.runs) == [slot & INDEX_MASK for slot in targets]
    assert match.matched_token_count == 8
    assert not world.cache.writes_wanted()
    for counters in (world.cache.counters, world.namespace.counters):
        assert (counters.loaded_page_count, counters.inserted_page_count) == (4, 4)


def test_a_load_goes_on_where_the_cached_pages_end() -> None:
    """The cached path is held until then; targets of pages that were not read well go back."""
    world = kept("abcdef")
    assert world.finish(begun(world, "abcdef", count=2)) == 2
    load = begun(world, "abcdef")
    assert (load.start, load.end) == (2, 6)
    world.worker.reserve(1, 2)
    assert world.finish(load, 1) == 1
    assert world.states() == {"FREE": 3, "RESERVED": 2, "CACHED": 3}
    assert world.shape() == {"abc": {}}


def test_checksums_are_kept() -> None:
    """Pages that were read supersede partial pages, as inserted ones do."""
    world = kept("ab")
    load = begun(world, "ab")
    world.cache.finish_read(load, 2, [5, 6])
    _, inspection = world.cache.match_with_checks(
        world.worker.caller,
        NAMESPACE_ID,
        world.worker.sequence("ab"),
        MatchOptions(1),
        world.now,
        range,
    )
    assert inspection is not None
    assert sorted(page.checksum for page in inspection.pages) == [5, 6]


def test_room_is_made_as_for_a_reservation() -> None:
    """A read evicts pages that nobody holds; if these are too few, it reads fewer or none."""
    world = kept("abcdef", slots=6)
    world.worker.publish("xyz")
    load = begun(world, "abcdef", count=5)
    assert len(load.pages) == 5
    assert world.worker.lease.counters.evicted_page_count == 8
    assert world.finish(load) == 5
    world.evict()
    world.worker.reserve(1, 4)
    assert len(begun(world, "abcdef").pages) == 2
    assert world.begin("q") is None
    located = world.locate("xyz")
    sequence = world.worker.sequence("xyz")
    caller = world.worker.caller
    assert world.cache.begin_read(caller, NAMESPACE_ID, sequence, 3, located) is None
    world.laws.check()


def test_only_what_all_processes_mapped_is_loaded_into() -> None:
    """Nothing is evicted for a lease that cannot use all of it."""
    world = kept("abcd", "vwxyz", slots=5)
    assert world.read("vwxyz") == 5
    world.cache.add_extent(1, 9, 2)
    assert world.begin("abcd") is None
    world.worker.map_memory()
    load = begun(world, "abcd")
    assert {page.slot >> INDEX_BITS for page in load.pages} == {1, 9}
    assert world.cache.namespaces[NAMESPACE_ID].index.page_count == 3


def test_a_second_caller_waits_for_the_first() -> None:
    """It is given the load that is under way; what nobody loads is loaded up to there."""
    world = kept("abcd", "abxy")
    first = begun(world, "abcd")
    assert begun(world, "abxy") is first
    assert (first.callers, first.removals) == (2, 0)
    assert world.finish(first) == 4
    second = begun(world, "abxy")
    assert (second.start, second.end, second.callers) == (2, 4, 1)
    # A load below pages that are gone since is under way still.
    world.evict_prefix("a")
    world.cache.finish_removed(world.cache.take_removed())
    third = begun(world, "abxy")
    assert (third.start, third.end) == (0, 2)
    assert world.finish(second) == 0
    assert world.finish(third) == 2


@pytest.mark.parametrize("meanwhile", ["cached less", "cached more", "cached all"])
def test_what_changed_since_it_was_located(meanwhile: str) -> None:
    """Gone pages: nothing is loaded; more pages: only the rest."""
    world = kept("abcd")
    world.read("ab")
    located = world.locate("abcd")
    assert located.end == 2
    if meanwhile == "cached less":
        world.evict()
        assert world.begin("abcd", located) is None
    elif meanwhile == "cached more":
        world.worker.publish("abc")
        load = world.begin("abcd", located)
        assert load is not None
        assert [page.end for page in load.pages] == [4]
    else:
        world.worker.publish("abcd")
        assert world.begin("abcd", located) is None


def test_pages_that_came_meanwhile_stay() -> None:
    """The copies that were read are given back; a partial page is superseded."""
    world = kept("abcd")
    load = begun(world, "abcd")
    world.worker.publish("ab")
    world.worker.reserve(1, 3)
    tokens = paged("ab") + FILLER
    world.cache.insert(world.worker.caller, 1, Sequence(tokens), world.now)
    world.worker.abort(1)
    assert world.finish(load) == 2
    assert world.cache.counters.superseded_page_count == 1
    assert world.shape() == {"abcd": {}}
    load = begun(kept_again(world), "abcd")
    world.worker.publish("abcd")
    assert world.finish(load) == 0


def kept_again(world: DiskWorld) -> DiskWorld:
    """Evicts all."""
    world.evict()
    return world


def test_nothing_is_published_after_a_removal() -> None:
    """No read begins before the disk has the report of a removal."""
    world = kept("abcd", "xy")
    load = begun(world, "abcd")
    world.evict_prefix("abc")
    assert world.begin("xy") is None
    assert world.finish(load) == 0
    assert world.states() == {"FREE": 8}
    world.tell()
    assert world.read("xy") == 2
    assert world.read("abcd") == 2


def test_nothing_is_published_below_pages_that_left() -> None:
    """Not by a removal that tier 3 is told of: by an extent that went back."""
    world = kept("abcd")
    world.read("ab")
    load = begun(world, "abcd")
    world.cache.add_extent(1, 9, 8)
    world.cache.retire_extent(1, 1)
    assert world.finish(load) == 0
    world.laws.check()
    world.worker.map_memory()
    load = begun(world, "abcd")
    world.cache.retire_extent(1, 9)
    assert world.finish(load) == 0
    assert world.namespace.removals == 0


def test_a_base_whose_path_was_removed_gives_nothing() -> None:
    """Below one that is there the rest is located."""
    world = kept("abcd")
    world.read("ab")
    world.worker.match("ab", 1)
    caller = world.worker.caller
    sequence = world.worker.sequence("cd", 2, base_pin_id=1)
    located = world.cache.locate(caller, NAMESPACE_ID, sequence)
    assert (located.end, located.page_count) == (2, 2)
    assert all(digest in world.disk for digest in located.page_digests())
    world.evict_prefix("ab")
    world.tell()
    assert world.cache.begin_read(caller, NAMESPACE_ID, sequence, 2, located) is None
    gone = world.cache.locate(caller, NAMESPACE_ID, sequence)
    assert (gone.end, gone.page_count) == (1, 0)
    assert world.cache.begin_read(caller, NAMESPACE_ID, sequence, 2, gone) is None


def test_pages_that_were_lost_meanwhile_are_offered_again() -> None:
    """A load makes nothing kept where the pages above it are not."""
    world = kept("abcd")
    load = begun(world, "abcd")
    world.cache.forget_kept([world.namespace.digest])
    assert world.finish(load) == 4
    world.worker.match("abcd", 1)
    [keep] = world.cache.plan_writes(9)
    assert len(keep.pages) == 4
    world.cache.finish_writes([keep], [0])


@pytest.mark.parametrize("has_left", [False, True])
def test_corrupt_pages_may_not_return(*, has_left: bool) -> None:
    """Neither what was found where it was, nor what had left the index while it was looked at."""
    world = kept("abcd")
    load = begun(world, "abcd")
    world.cache.finish_read(load, 4, [1, 2, 3, 4])
    inspection = inspected(world, 1)
    if has_left:
        world.cache.add_extent(1, 9, 8)
        world.cache.retire_extent(1, 1)
    world.cache.remove_corrupt(inspection, [each for each in inspection.pages if each.end >= 3], 4)
    world.laws.check()
    assert world.begin("abcd") is None
    world.tell()
    assert len(world.disk) == 2
    world.cache.remove_corrupt(inspection, inspection.pages, 4)
    world.worker.release(1)
    world.cache.remove_corrupt(inspection, inspection.pages, 4)
    world.laws.check()
    world.tell()
    assert not world.disk


def inspected(world: DiskWorld, pin_id: int) -> Inspection:
    """Match "abcd" to be looked at."""
    caller, options = world.worker.caller, MatchOptions(pin_id)
    sequence = world.worker.sequence("abcd")
    _, inspection = world.cache.match_with_checks(
        caller, NAMESPACE_ID, sequence, options, world.now, range
    )
    assert inspection is not None
    return inspection


def test_digests_that_were_forgotten_since_are_not_made_up() -> None:
    """The pages above a load were evicted and inserted anew after they were located."""
    world = kept("abcd")
    world.read("ab")
    located = world.locate("abcd")
    world.evict()
    world.worker.publish("ab")
    load = world.begin("abcd", located)
    assert load is not None
    assert world.finish(load) == 2
    assert world.locate("abcde").digests.start == 0


def test_loaded_pages_are_written_through() -> None:
    """To tier 2, as inserted ones are; and tier 1 is kept from running full."""
    world = kept("abcd", lower_slots=8, low=0.0, write=WritePolicy.THROUGH)
    assert world.cache.state.wanted is not None
    world.cache.state.wanted.to_lower.clear()
    world.evict_prefix("")
    world.cache.finish_removed(world.cache.take_removed())
    world.read("abcd")
    assert list(world.cache.state.wanted.to_lower) == [node_at(world.namespace.index, "abcd")]
