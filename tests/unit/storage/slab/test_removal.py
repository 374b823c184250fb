"""Removals: nobody finds the pages any more, and once that is answered none returns."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count

import pytest

from kvstore.storage.slab import committer, slab
from slab.rig import LIMIT, NAMESPACE, SlabRig, key

OTHER = bytes(range(32))


def test_a_removed_page_never_returns(rig: SlabRig) -> None:
    """Once a removal is answered, no restart brings the page back."""
    assert rig.write(*range(10))
    assert rig.remove(8, 9)
    assert rig.found(*range(10)) == list(range(8))
    rig.reopen()
    assert rig.found(*range(10)) == list(range(8))
    assert rig.write(8, 9)
    assert rig.found(8, 9) == [8, 9]


def test_a_page_is_removed_before_it_is_answered(rig: SlabRig) -> None:
    """Nobody finds a page any more as soon as its removal was asked for."""
    assert rig.write(1)
    done: Future[bool] = Future()
    rig.slab.remove([key(1)], done.set_result)
    assert not rig.slab.look([key(1)])
    assert done.result(LIMIT)


def test_a_page_on_its_way_is_removed(rig: SlabRig) -> None:
    """A removal wins over the write before it, however far that came."""
    for number in range(50):
        begun = rig.begin(number)
        assert rig.remove(number)
        assert begun is not None
        begun.result(LIMIT)
        assert rig.found(number) == []
    rig.reopen()
    assert rig.slab.use().page_count == 0
    assert rig.write(*range(50))


def test_a_large_removal_gives_way(rig: SlabRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers of many pages are emptied in parts, and the mutex is free between two parts."""
    free: list[bool] = []

    def look() -> None:
        with ThreadPoolExecutor(1) as other:
            free.append(other.submit(rig.slab.use).result(LIMIT).page_count == 0)

    assert rig.write(*range(10))
    monkeypatch.setattr(committer, "REMOVED_AT_ONCE", 4)
    monkeypatch.setattr(committer.background, "give_way", look)
    assert rig.remove(*range(10))
    assert free == [True] * 6
    assert rig.slab.use().counters.removed_pages == 10
    rig.reopen()
    assert rig.found(*range(10)) == []
    assert rig.write(*range(10))


@pytest.mark.parametrize("sync", [1, 2])
def test_a_page_removed_between_two_syncs_is_not_there(
    rig: SlabRig, monkeypatch: pytest.MonkeyPatch, sync: int
) -> None:
    """A removal that comes once the bytes are written, or the header too, leaves nothing."""
    assert rig.write(0)
    removal: Future[bool] = Future()
    real, calls = rig.slab._file.sync, count(1)

    def syncing() -> None:
        real()
        if next(calls) == sync:
            rig.slab.remove([key(1)], removal.set_result)

    monkeypatch.setattr(rig.slab._file, "sync", syncing)
    begun = rig.begin(1)
    assert begun is not None
    assert not begun.result(LIMIT)
    assert removal.result(LIMIT)
    rig.reopen()
    assert rig.found(0, 1) == [0]
    assert rig.write(1)


def test_what_comes_after_a_removed_page_is_removed_with_it(rig: SlabRig) -> None:
    """Also what nobody named: else it would be found again once the page is written anew."""
    assert rig.write(*range(10))
    assert rig.write(20, 21)
    assert rig.remove(4)
    assert rig.found(*range(30)) == [0, 1, 2, 3, 20, 21]
    rig.reopen()
    assert rig.write(4)
    assert rig.found(*range(30)) == [0, 1, 2, 3, 4, 20, 21]


def test_what_is_on_its_way_after_a_removed_page_is_removed_with_it(rig: SlabRig) -> None:
    """Writes below a page that is removed come to nothing, whatever the order they came in."""
    assert rig.write(0, 1)
    with rig.slab._tables.mutex:
        begun = [rig.begin(4, 3), rig.begin(3, 2), rig.begin(2, 1), rig.begin(9)]
        removal: Future[bool] = Future()
        rig.slab.remove([key(1)], removal.set_result)
    assert removal.result(LIMIT)
    assert [each is not None and each.result(LIMIT) for each in begun] == [False] * 3 + [True]
    assert rig.found(*range(10)) == [0, 9]


def test_what_is_below_a_page_that_left_is_removed_with_all_above_it(rig: SlabRig) -> None:
    """A corrupt page leaves alone, and a later removal above it reaches the pages below it."""
    assert rig.write(*range(6))
    assert rig.write(20, 21)
    rig.flip([rig.slot_offset(3) + 1000])
    assert rig.found(*range(6)) == [0, 1, 2, 4, 5]
    assert rig.remove(1)
    assert rig.begin(1, 0)
    assert rig.begin(2, 1)
    begun = rig.begin(3, 2)
    assert begun is not None
    assert begun.result(LIMIT)
    assert rig.found(*range(30)) == [0, 1, 2, 3, 20, 21]


def test_a_write_below_a_page_that_left_is_removed_with_all_above_it(rig: SlabRig) -> None:
    """A page that lost its parent before it was written does not outlive a removal above."""
    assert rig.write(0, 1)
    with rig.slab._tables.mutex:
        begun = [rig.begin(4, 3), rig.begin(9)]
        removal: Future[bool] = Future()
        rig.slab.remove([key(1)], removal.set_result)
    assert removal.result(LIMIT)
    assert [each is not None and each.result(LIMIT) for each in begun] == [False, True]


@pytest.mark.parametrize("at_once", [1, 3, 10, 256])
def test_a_namespace_is_removed_as_a_whole(
    rig: SlabRig, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Every page of it goes, however few at a time, and none of another."""
    monkeypatch.setattr(slab, "DROPPED_AT_ONCE", at_once)
    assert rig.write(*range(10))
    assert rig.write(*range(10), namespace=OTHER)
    assert sorted(rig.slab.keys(NAMESPACE)) == sorted(key(each) for each in range(10))
    done: Future[bool] = Future()
    rig.slab.remove_namespace(NAMESPACE, done.set_result)
    assert done.result(LIMIT)
    rig.reopen()
    assert rig.found(*range(10)) == []
    assert rig.found(*range(10), namespace=OTHER) == list(range(10))


def test_a_namespace_s_pages_on_their_way_are_removed(rig: SlabRig) -> None:
    """Writes under way are cancelled, and an empty or closed slab answers too."""
    begun = [rig.begin(number) for number in range(20)]
    done: Future[bool] = Future()
    rig.slab.remove_namespace(NAMESPACE, done.set_result)
    assert done.result(LIMIT)
    for each in begun:
        assert each is not None
        each.result(LIMIT)
    assert rig.found(*range(20)) == []
    for expected in (True, False):
        again: Future[bool] = Future()
        rig.slab.remove_namespace(NAMESPACE, again.set_result)
        assert again.result(LIMIT) is expected
        rig.slab.close()


def test_a_look_waits_for_nobody(rig: SlabRig) -> None:
    """A match asks while a removal or a commit has the tables for long."""
    assert rig.write(1)
    with rig.slab._tables.mutex, ThreadPoolExecutor() as threads:
        found = threads.submit(rig.slab.look, [key(1), key(2)])
        assert found.result(LIMIT) == 1
