"""A slab by itself: what is written is read, after a restart too, and nothing else ever is."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from slab_rig import LIMIT, NAMESPACE, PAGE_BYTES, SlabRig, config, key
from structlog.testing import capture_logs

from kvstore.storage.slab import Slab
from kvstore.storage.slab_book import SlabState
from kvstore.storage.slab_clock import SlabClock
from kvstore.storage.slab_errors import SlabInUse

OTHER = bytes(range(32))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SlabRig]:
    """Provide a slab of two segments."""
    made = SlabRig(config(tmp_path / "slab"))
    yield made
    made.slab.close()


def test_what_was_written_is_read(rig: SlabRig) -> None:
    """Pages come back with their own bytes, and what is not there is a miss."""
    assert rig.write(*range(40))
    assert rig.found(*range(45)) == list(range(40))
    counters = rig.slab.use().counters
    assert (counters.written_pages, counters.read_pages) == (40, 40)
    assert counters.read_bytes == 40 * PAGE_BYTES


def test_pages_are_there_after_a_restart(rig: SlabRig) -> None:
    """A slab that is opened again has what was acknowledged."""
    assert rig.write(*range(40))
    rig.reopen()
    assert rig.slab.use().counters.recovered_pages == 40
    assert rig.found(*range(40)) == list(range(40))


@pytest.mark.parametrize("size", [100, 4096, 5000, 12288])
@pytest.mark.parametrize("ranks", [1, 2])
def test_pages_of_any_size_are_whole(rig: SlabRig, size: int, ranks: int) -> None:
    """Sizes that O_DIRECT cannot take are filled up; a page may lie in several pieces."""
    assert rig.write(*range(5), size=size, ranks=ranks)
    assert rig.found(*range(5), size=size) == list(range(5))
    rig.reopen()
    assert rig.found(*range(5), size=size) == list(range(5))


def test_pages_of_several_sizes_share_the_file(rig: SlabRig) -> None:
    """Each size has segments of its own, and no page is read as one of another size."""
    assert rig.write(1, 2, size=4096)
    assert rig.write(3, 4, size=20480)
    rig.reopen()
    assert rig.found(1, 2, 3, 4, size=4096) == [1, 2]
    assert rig.found(1, 2, 3, 4, size=20480) == [3, 4]


def test_a_page_is_found_in_its_own_namespace_only(rig: SlabRig) -> None:
    """The same digest under another namespace is another page."""
    assert rig.write(1)
    assert rig.found(1, namespace=OTHER) == []
    assert rig.write(1, namespace=OTHER)
    assert rig.found(1, namespace=OTHER) == [1]


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
    assert not rig.slab.contains(key(1))
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


def test_a_namespace_is_removed_as_a_whole(rig: SlabRig) -> None:
    """Every page of it goes, and none of another."""
    assert rig.write(*range(10))
    assert rig.write(*range(10), namespace=OTHER)
    assert sorted(rig.slab.keys(NAMESPACE)) == sorted(key(each) for each in range(10))
    done: Future[bool] = Future()
    rig.slab.remove_namespace(NAMESPACE, done.set_result)
    assert done.result(LIMIT)
    rig.reopen()
    assert rig.found(*range(10)) == []
    assert rig.found(*range(10), namespace=OTHER) == list(range(10))


def test_a_page_that_is_there_is_not_written_again(rig: SlabRig) -> None:
    """The first copy stays; the second is refused and counted."""
    assert rig.write(1)
    assert rig.begin(1) is None
    assert rig.slab.use().counters.refused_writes == 1


def test_a_full_queue_refuses_and_does_not_wait(tmp_path: Path) -> None:
    """More than the queue takes is refused at once; what was taken is written."""
    rig = SlabRig(config(tmp_path / "slab"))
    with rig.slab._book.mutex:  # nothing is taken out of the queue meanwhile
        rig.slab._book.queued_bytes = rig.settings.queue_bytes - PAGE_BYTES
        begun = rig.begin(1)
        assert rig.begin(2) is None
    assert begun is not None
    assert begun.result(LIMIT)
    rig.slab.close()


def test_a_full_slab_without_a_policy_refuses(rig: SlabRig) -> None:
    """Where the owner decides what goes, a write that finds no slot comes to nothing."""
    slots = 2 * rig.slab._book.room.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert not rig.write(slots)
    assert rig.remove(slots - 1)
    assert rig.write(slots)
    assert rig.found(*range(slots + 1)) == [*range(slots - 1), slots]


def test_a_full_slab_with_a_policy_evicts_leaves(tmp_path: Path) -> None:
    """The built-in policy makes room; every page that is left has its parent."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._book.room.layout(PAGE_BYTES).slot_count
    chains = [range(start, start + 10) for start in range(0, 2 * slots, 10)]
    for chain in chains:
        assert rig.write(*chain)
    left = set(rig.found(*(number for chain in chains for number in chain)))
    assert left >= {*chains[-1]}
    assert {key(number) for chain in chains for number in chain if number not in left} == {
        *rig.lost
    }
    for chain in chains:
        kept = [number for number in chain if number in left]
        assert kept == list(chain)[: len(kept)]
    rig.reopen()
    assert rig.slab.use().counters.orphaned_pages == 0
    assert rig.slab.use().page_count == len(left)
    rig.slab.close()


def test_a_size_that_comes_later_has_its_share(tmp_path: Path) -> None:
    """Where all segments are taken, one goes over to pages of another size."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._book.room.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert rig.write(*range(slots, slots + 5), size=4096)
    assert rig.found(*range(slots, slots + 5), size=4096) == list(range(slots, slots + 5))
    left = rig.found(*range(slots))
    # The first segment went, and with it all that came after its pages.
    assert left == []
    assert len(rig.lost) == slots
    rig.reopen()
    assert rig.slab.use().page_count == 5
    rig.slab.close()


def test_an_empty_segment_serves_another_size(rig: SlabRig) -> None:
    """Without a policy too a segment without pages is cut anew."""
    slots = 2 * rig.slab._book.room.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    assert not rig.write(1000, size=4096)
    assert rig.remove(*range(slots))
    assert rig.write(1000, size=4096)
    assert rig.found(1000, size=4096) == [1000]


def test_a_page_that_fits_no_segment_is_refused(rig: SlabRig) -> None:
    """A page larger than a segment, and an empty one, are not taken."""
    assert rig.begin(1, size=1 << 20) is None
    assert rig.begin(1, size=0) is None


def test_a_second_opener_is_refused(rig: SlabRig) -> None:
    """One slab has one owner, also within a process."""
    with pytest.raises(SlabInUse, match="another process"):
        Slab(rig.settings)


def test_a_closed_slab_takes_and_gives_nothing(rig: SlabRig) -> None:
    """After close every call ends as a miss; what waited was written before."""
    begun = [rig.begin(number) for number in range(20)]
    rig.slab.close()
    rig.slab.close()
    assert all(each is not None and each.result(0) for each in begun)
    assert rig.begin(30) is None
    assert rig.found(1) == []
    assert not rig.slab.contains(key(1))
    assert not rig.remove(1)
    assert rig.slab.use().state is SlabState.CLOSED


def test_a_callback_that_raises_stops_nothing(rig: SlabRig) -> None:
    """What a caller's function raises is logged, and the next write is written."""
    failed: Future[bool] = Future()
    failed.set_result(True)
    with capture_logs() as logs:
        rig.slab.remove([], failed.set_result)
        assert rig.write(1)
    assert [each["event"] for each in logs] == ["slab_callback_failed"]


def test_a_context_manager_closes_it(tmp_path: Path) -> None:
    """Another may open it after the with statement."""
    with Slab(config(tmp_path / "slab")):
        pass
    with Slab(config(tmp_path / "slab")) as slab:
        assert slab.use().state is SlabState.OPEN
