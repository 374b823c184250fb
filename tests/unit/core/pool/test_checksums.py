"""A page's checksum: kept with its slot, from the insert that publishes it until it is free."""

import pytest

from core.core_builders import CoreWorld, places
from kvstore.core.values.requests import Sequence
from kvstore.core.values.slots import NO_CHECKSUM
from kvstore.errors import InvalidField


def checksums_of(world: CoreWorld, slots: list[int]) -> list[int]:
    """Returns what is kept for slots of the first extent."""
    return [world.arena.extents[1].checksums[each] for each in slots]


def test_each_published_page_keeps_its_own() -> None:
    """Checksums go with pages in prefix order, over several inserts, and through a split."""
    world = CoreWorld()
    slots = places(world.worker.reserve(1, 4).runs)
    world.worker.insert(1, "ab", checksums=[11, 12])
    world.worker.insert(1, "cd", 2, checksums=[13, 2**64 - 1])
    world.worker.publish("abx")
    assert checksums_of(world, slots) == [11, 12, 13, 2**64 - 1]
    assert world.shape() == {"ab": {"cd": {}, "x": {}}}


def test_a_page_may_have_none() -> None:
    """Without checksums, or with a zero in a page's place, nothing is kept for it."""
    world = CoreWorld()
    slots = places(world.worker.reserve(1, 3).runs)
    world.worker.insert(1, "a")
    world.worker.insert(1, "bc", 1, checksums=[NO_CHECKSUM, 13])
    assert checksums_of(world, slots) == [NO_CHECKSUM, NO_CHECKSUM, 13]


def test_the_first_page_keeps_its_checksum() -> None:
    """A duplicate's checksum is nobody's; the pages beyond it get theirs."""
    world = CoreWorld()
    other = world.join("other")
    first, second = places(world.worker.reserve(1, 2).runs), places(other.reserve(1, 3).runs)
    world.worker.insert(1, "ab", checksums=[11, 12])
    other.insert(1, "abc", checksums=[21, 22, 23])
    assert checksums_of(world, first) == [11, 12]
    assert checksums_of(world, second) == [NO_CHECKSUM, NO_CHECKSUM, 23]


def test_a_repeated_insert_changes_no_checksum() -> None:
    """A published page keeps its insert's checksum, even if a longer insert repeats it."""
    world = CoreWorld()
    slots = places(world.worker.reserve(1, 3).runs)
    world.worker.insert(1, "ab", checksums=[11, 12])
    world.worker.insert(1, "abc", checksums=[91, 92, 13])
    world.worker.insert(1, "abc", checksums=[91, 92, 93])
    assert checksums_of(world, slots) == [11, 12, 13]


def test_a_partial_page_has_one_and_the_fuller_page_its_own() -> None:
    """A page that supersedes another has another slot, and so another checksum."""
    world = CoreWorld(page_tokens=4, divides_by_token=True)
    caller, cache = world.worker.caller, world.cache
    page = bytes(range(16))
    partial, fuller = (places(world.worker.reserve(k, 1).runs) for k in (1, 2))
    cache.insert(caller, 1, Sequence(page[:8]), world.now, checksums=[11])
    assert checksums_of(world, partial) == [11]
    cache.insert(caller, 2, Sequence(page), world.now, checksums=[12])
    assert checksums_of(world, partial + fuller) == [11, 12]
    world.worker.abort(1)
    assert checksums_of(world, partial + fuller) == [NO_CHECKSUM, 12]


@pytest.mark.parametrize("removed", [False, True])
def test_a_slot_given_back_has_none(*, removed: bool) -> None:
    """Evicted, or removed: whoever publishes a page there without one has none."""
    world = CoreWorld(slots=2)
    slots = places(world.worker.reserve(1, 2).runs)
    world.worker.insert(1, "ab", checksums=[11, 12])
    world.worker.abort(1)
    if removed:
        world.evict_prefix("a")
    world.worker.reserve(2, 2)
    world.worker.insert(2, "cd")
    assert checksums_of(world, slots) == [NO_CHECKSUM, NO_CHECKSUM]


@pytest.mark.parametrize("checksums", [[11], [11, 12, 13]])
def test_checksums_are_one_a_page_or_none(checksums: list[int]) -> None:
    """Another number of them is refused, and nothing is published."""
    world = CoreWorld()
    world.worker.reserve(1, 3)
    with pytest.raises(InvalidField) as caught:
        world.worker.insert(1, "ab", checksums=checksums)
    assert caught.value.metadata["field"] == "page_checksums"
    assert world.states() == {"FREE": 5, "RESERVED": 3}
