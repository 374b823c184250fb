"""A slab by itself: what is written is read, after a restart too, and nothing else ever is."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvstore.storage.errors import SlabInUse
from kvstore.storage.page_store import PageWrite, StoreState
from kvstore.storage.slab.slab import Slab
from slab.rig import LIMIT, NAMESPACE, PAGE_BYTES, SlabRig, config, key

OTHER = bytes(range(32))


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


def test_a_page_says_what_is_known_of_it(rig: SlabRig) -> None:
    """Parent and valid tokens come back after a restart, for whoever builds a tree of them."""
    assert rig.write(0, 1, 2)
    rig.reopen()
    page = rig.slab.page(key(1))
    assert page == PageWrite(key(1), key(0).digest, 2)
    assert rig.slab.page(key(9)) is None
    assert rig.slab.namespaces() == {NAMESPACE: 3}


def test_a_sequence_is_looked_up_no_further_than_it_goes(rig: SlabRig) -> None:
    """Keys are taken one by one, up to the first page that is not there."""
    assert rig.write(0, 1, 2)
    keys = (key(number) for number in (0, 1, 2, 5, 6, 7))
    assert rig.slab.look(keys) == 3
    assert next(keys) == key(6)


def test_a_page_that_is_there_is_not_written_again(rig: SlabRig) -> None:
    """The first copy stays; the second is refused and counted."""
    assert rig.write(1)
    assert rig.begin(1) is None
    assert rig.slab.use().counters.refused_writes == 1


def test_a_full_queue_refuses_and_does_not_wait(tmp_path: Path) -> None:
    """More than the queue takes is refused at once; what was taken is written."""
    rig = SlabRig(config(tmp_path / "slab"))
    with rig.slab._tables.mutex:  # nothing is taken out of the queue meanwhile
        rig.slab._tables.queued_bytes = rig.settings.queue_bytes - PAGE_BYTES
        begun = rig.begin(1)
        assert rig.begin(2) is None
    assert begun is not None
    assert begun.result(LIMIT)
    rig.slab.close()


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
    assert not rig.slab.look([key(1)])
    assert not rig.remove(1)
    assert rig.slab.use().state is StoreState.CLOSED


def test_a_callback_that_raises_stops_nothing(rig: SlabRig) -> None:
    """An error of a caller's function is logged, and the next write is written."""
    failed: Future[bool] = Future()
    failed.set_result(True)
    with capture_logs() as logs:
        rig.slab.remove([], failed.set_result)
        # Answered after that one.
        assert rig.remove()
    assert rig.write(1)
    assert [each["event"] for each in logs].count("slab_callback_failed") == 1


def test_a_context_manager_closes_it(tmp_path: Path) -> None:
    """Another may open it after the with statement."""
    with Slab(config(tmp_path / "slab")):
        pass
    with Slab(config(tmp_path / "slab")) as slab:
        assert slab.use().state is StoreState.OPEN
