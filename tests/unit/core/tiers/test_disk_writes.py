"""The pages that the disk is offered, and what nodes remember of them."""

from itertools import pairwise

import pytest

from core.core_builders import node_at, paged
from core.disk_world import DiskWorld
from core.verify_calls import ask, conclude, publish
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.radix import RadixIndex
from kvstore.core.index.removal import ALL
from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import Sequence
from kvstore.core.values.slots import SlotState


def ends(world: DiskWorld, most: int = 100) -> list[list[int]]:
    """Plan, and write nothing; return where the pages of each keep end."""
    keeps = world.cache.plan_writes(most)
    world.laws.check()
    world.cache.finish_writes(keeps, [0] * len(keeps))
    return [[page.end for page in each.pages] for each in keeps]


def test_a_keep_names_slots_digests_and_checksums() -> None:
    """A disk write names whole pages in a row; their digests are those of the tokens."""
    world = DiskWorld()
    world.worker.reserve(1, 3)
    world.worker.insert(1, "abc", checksums=[11, 0, 13])
    assert world.cache.writes_wanted()
    [keep] = world.cache.plan_writes(100)
    world.laws.check()
    assert not world.cache.writes_wanted()
    assert [(page.end, page.checksum) for page in keep.pages] == [(1, 11), (2, 0), (3, 13)]
    assert [page.slot for page in keep.pages] == list(keep.slots())
    chain = [world.namespace.digest, *page_digests(world.namespace.digest, paged("abc"), 8)]
    found = [(keep.digests.through(k), keep.digests.through(k + 1)) for k in range(3)]
    assert found == list(pairwise(chain))
    assert keep.namespace_digest == chain[0]
    assert (keep.digests.end, keep.digests.known_end) == (3, 3)
    world.cache.finish_writes([keep], [3])
    world.laws.check()


def test_each_touch_is_told_until_the_page_is_kept() -> None:
    """An insert touches its own pages, a match all of its path."""
    world = DiskWorld()
    world.worker.reserve(1, 4)
    world.worker.insert(1, "ab")
    world.worker.insert(1, "cd", 2)
    assert ends(world) == [[1, 2], [3, 4]]
    world.worker.match("abc", 2)
    world.worker.match("abcd", 3)
    assert ends(world) == [[1, 2, 3], [1, 2, 3, 4]]
    world.worker.match("abc", 4)
    assert world.write_touched() == 3
    world.worker.match("abc", 5)
    assert not world.cache.writes_wanted()
    world.worker.match("abcd", 6)
    assert ends(world) == [[4]]


def test_what_is_not_kept_yet_has_its_digests_again() -> None:
    """Also where nodes know them: a keep's first page may come before what they do not know."""
    world = DiskWorld()
    chain = [world.namespace.digest, *page_digests(world.namespace.digest, paged("abcd"), 8)]
    world.worker.publish("abcd", "abxy")
    for kept in (0, 1, 3):
        world.worker.match("abcd", 10 + kept)
        for keep in (keeps := world.cache.plan_writes(100)):
            digests = [keep.digests.through(end) for end in range(keep.start, keep.held_end + 1)]
            known = [world.namespace.digest]
            known += page_digests(world.namespace.digest, keep.tokens(), 8)
            assert digests == known[keep.start :]
        world.cache.finish_writes(keeps, [kept] * len(keeps))
        world.laws.check()
    assert digests[-1] == chain[4]


@pytest.mark.parametrize("index_factory", [RadixIndex, HashIndex], indirect=True)
def test_a_page_found_corrupt_is_removed_from_the_disk_though_it_was_not_written() -> None:
    """Pages below it may be on the disk, and must not come back once it is computed anew."""
    world = DiskWorld()
    publish(world.worker, "a")
    publish(world.worker, "ab", 901)
    *others, last = keeps = world.cache.plan_writes(100)
    assert (last.start, last.held_end) == (1, 2)
    kept = [each.start for each in others]
    world.cache.finish_writes(keeps, [*kept, world.write(last)])
    assert len(world.disk) == 1
    _, inspection = ask(world.worker, "ab")
    assert not conclude(world.worker, inspection, "a")
    [removed] = world.tell()
    assert removed.page_digest == next(page_digests(world.namespace.digest, paged("a"), 8))
    assert removed.is_corrupt
    assert not world.disk
    publish(world.worker, "a", 902)
    assert world.read("ab") == 0
    world.laws.check()


@pytest.mark.parametrize("index_factory", [RadixIndex, HashIndex], indirect=True)
def test_what_was_kept_anew_leaves_with_a_corrupt_page_and_is_wanted_again() -> None:
    """The disk cannot tell the page that was found corrupt from one of the same tokens."""
    world = DiskWorld(slots=16)
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab")
    world.evict_prefix("a")
    world.tell()
    publish(world.worker, "ab", 901)
    assert world.write_touched() == 2
    assert not conclude(world.worker, inspection, "a")
    assert [each.is_corrupt for each in world.tell()] == [True]
    assert not world.disk
    world.worker.match("ab", 2)
    assert world.write_touched() == 2
    assert len(world.disk) == 2


def test_a_plan_is_bounded_by_bytes() -> None:
    """Each page has its own namespace's size; where nothing is under way one is planned always."""
    world = DiskWorld()
    size = world.namespace.layout.page_bytes
    world.worker.publish("abcd")
    begun = world.cache.plan_writes(100, 2 * size + 1)
    assert [[page.end for page in each.pages] for each in begun] == [[1, 2]]
    assert world.cache.plan_writes(100, size - 1) == []
    begun += world.cache.plan_writes(100, size)
    assert [page.end for page in begun[-1].pages] == [3]
    world.cache.finish_writes(begun, [0, 0])
    [last] = world.cache.plan_writes(100, 0)
    assert [page.end for page in last.pages] == [4]
    assert world.cache.plan_writes(100, 0) == []
    world.cache.finish_writes([last], [0])
    world.laws.check()


def test_a_plan_is_bounded_and_goes_on() -> None:
    """The rest of a touch comes next."""
    world = DiskWorld()
    world.worker.publish("abcde", "xy")
    assert ends(world, 3) == [[1, 2, 3]]
    assert ends(world, 3) == [[4, 5], [1]]
    assert ends(world, 3) == [[2]]
    assert ends(world) == []


def test_partial_pages_are_not_kept() -> None:
    """Those above them are."""
    world = DiskWorld()
    world.worker.reserve(1, 3)
    tail = paged("c")[:4]
    world.cache.insert(world.worker.caller, 1, Sequence(paged("ab") + tail), world.now)
    assert ends(world) == [[1, 2]]
    world.worker.match("abc", 9)
    assert ends(world) == [[1, 2]]
    world.worker.reserve(2, 1)
    world.cache.insert(world.worker.caller, 2, Sequence(b"\x09\0\0\0"), world.now)
    assert ends(world) == []


def test_what_is_kept_survives_splits_and_merges_and_growth() -> None:
    """And goes with what is cut off."""
    world = DiskWorld()
    world.worker.publish("abcd")
    assert world.write_touched() == 4
    world.worker.publish("abxy")
    world.laws.check()
    assert world.write_touched() == 2
    world.worker.publish("abcdef")
    assert world.write_touched() == 2
    assert ends(world) == []
    world.worker.match("abcdef", 1)
    assert not world.cache.writes_wanted()
    # Room for two goes from what was used least recently, and the rest is one node again.
    world.worker.reserve(2, 2)
    world.worker.release(1)
    world.laws.check()
    assert world.shape() == {"abcdef": {}}
    node = node_at(world.namespace.index, "abcdef")
    assert node.page_hashes is not None
    assert (node.page_hashes.pages, node.page_hashes.kept) == (6, (6,))
    world.worker.abort(2)
    world.worker.reserve(3, 6)
    world.laws.check()
    assert node.page_hashes is not None
    assert (node.page_hashes.pages, node.page_hashes.kept) == (2, (2,))
    world.worker.abort(3)
    world.worker.publish("abq")
    assert ends(world)[-1] == [3]


def test_nodes_of_which_not_all_is_known_become_one() -> None:
    """The upper node's page hashes stay, and none are made for pages without one."""
    world = DiskWorld()
    world.worker.publish("abcd", "abxy")
    world.worker.match("abcd", 1)
    [first, *_] = keeps = world.cache.plan_writes(2)
    world.cache.finish_writes(keeps, [world.write(each) for each in keeps])
    assert first.is_stale
    world.worker.release(1)
    world.worker.reserve(2, 4)
    world.laws.check()
    assert world.shape() == {"abcd": {}}
    world.disk_state.touches[0].clear()
    world.worker.match("abcd", 3)
    assert ends(world) == [[3, 4]]


def test_after_a_loss_everything_is_offered_again() -> None:
    """Also what was on its way when it happened."""
    world = DiskWorld()
    world.worker.publish("ab")
    world.write_touched()
    world.worker.publish("abcd")
    [keep] = world.cache.plan_writes(100)
    world.cache.forget_kept([world.namespace.digest, b"unknown"])
    world.cache.finish_writes([keep], [4])
    world.laws.check()
    world.worker.match("abcd", 1)
    [keep] = world.cache.plan_writes(100)
    assert [page.end for page in keep.pages] == [1, 2, 3, 4]
    chain = [world.namespace.digest, *page_digests(world.namespace.digest, paged("abcd"), 8)]
    assert [keep.digests.through(end) for end in range(5)] == chain
    world.cache.finish_writes([keep], [0])


def test_what_is_kept_by_now_is_passed_over() -> None:
    """It was touched twice before the first keep of it was done."""
    world = DiskWorld()
    world.worker.publish("ab")
    world.worker.match("abc", 1)
    [keep] = world.cache.plan_writes(2)
    world.cache.finish_writes([keep], [world.write(keep)])
    assert world.cache.writes_wanted()
    assert ends(world) == []


def test_nothing_is_kept_below_what_is_not() -> None:
    """Later pages that were written first are offered again once the ones above are kept."""
    world = DiskWorld()
    world.worker.reserve(1, 4)
    world.worker.insert(1, "ab")
    world.worker.insert(1, "cd", 2)
    first, second = world.cache.plan_writes(100)
    world.cache.finish_writes([second], [world.write(second)])
    world.cache.finish_writes([first], [world.write(first)])
    world.laws.check()
    world.worker.match("abcd", 2)
    assert ends(world) == [[3, 4]]


def test_a_keep_holds_its_pages() -> None:
    """Nothing of them is evicted; what an operator removes makes it stale."""
    world = DiskWorld()
    world.worker.publish("abcd")
    [keep] = world.cache.plan_writes(3)
    world.worker.reserve(1, 5)
    assert world.shape() == {"abc": {}}
    assert not world.cache.write_is_stale(keep)
    assert world.evict_prefix("ab") == (0, 2)
    assert world.cache.write_is_stale(keep)
    world.laws.check()
    world.cache.finish_writes([keep], [3])
    world.laws.check()
    assert world.states() == {"FREE": 2, "RESERVED": 5, "CACHED": 1}


def test_a_page_that_left_is_offered_no_more() -> None:
    """Evicted whole or removed: of a touch what is there counts."""
    world = DiskWorld()
    world.worker.publish("abcd", "x")
    world.evict_prefix("x")
    world.tell()
    world.evict()
    assert ends(world) == []
    world.worker.publish("abcd")
    world.worker.reserve(1, 6)
    assert ends(world) == [[1, 2]]


def test_digests_are_computed_once() -> None:
    """A keep begins where the path's digests are known, a mere prefix of them too."""
    world = DiskWorld()
    world.worker.publish("abcd")
    world.write_touched()
    world.worker.publish("abcdef")
    [keep] = world.cache.plan_writes(100)
    assert (keep.digests.start, keep.digests.end) == (4, 6)
    world.cache.finish_writes([keep], [world.write(keep)])
    assert world.locate("abcx").digests.start == 3


def test_tier_2_s_copies_are_written_where_there_are_any() -> None:
    """They are host memory; the others are tier 1's."""
    world = DiskWorld(lower_slots=8, low=0.0)
    world.worker.publish("abcd")
    assert world.cache.state.wanted is not None
    world.cache.state.wanted.to_lower[node_at(world.namespace.index, "abcd")] = None
    world.cache.finish_moves(world.cache.plan_moves(2))
    world.laws.check()
    [keep] = world.cache.plan_writes(100)
    world.laws.check()
    assert [page.slot >> 32 for page in keep.pages] == [2, 2, 1, 1]
    world.cache.finish_writes([keep], [world.write(keep)])
    world.evict()
    world.disk_state.touches[0].clear()
    world.worker.match("ab", 1)
    assert not world.cache.writes_wanted()


@pytest.mark.parametrize(("most", "kept"), [(1, 2), (ALL, 4)])
def test_a_path_that_retires_under_a_write_keeps_what_is_written(most: int, kept: int) -> None:
    """In tier 1 it keeps what the write reads there, and what leaves together with that."""
    world = DiskWorld(lower_slots=8, low=0.0)
    world.worker.publish("abcd")
    assert world.cache.state.wanted is not None
    world.cache.state.wanted.to_lower[node_at(world.namespace.index, "abcd")] = None
    world.cache.finish_moves(world.cache.plan_moves(2))
    [keep] = world.cache.plan_writes(100)
    slots = keep.slots()
    retirement = world.cache.begin_retirement(2, 2)
    while retirement.go_on(most):
        world.laws.check()
    assert keep.slots() == slots
    assert world.arena.counts[SlotState.DETACHED] == kept
    assert world.cache.arenas[2].counts[SlotState.DETACHED] == 2
    world.cache.finish_writes([keep], [0])
    world.laws.check()
    assert world.arena.free_count == world.arena.slot_count
    assert world.cache.emptied_extents() == [2]


def test_the_pages_of_writes_under_way_are_counted() -> None:
    """They hold their slots until the writes are finished."""
    world = DiskWorld()
    world.worker.publish("abc")
    writes = world.cache.plan_writes(2)
    assert world.cache.bytes_under_way() == 2 * world.layout.page_bytes
    world.cache.finish_writes(writes, [0])
    assert world.cache.bytes_under_way() == 0
