"""A disk that is full, ends, or refuses: misses and refusals, one alarm, and no exception."""

import os
import resource
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kvstore.storage.errors import SlabUnusable
from kvstore.storage.page_store import StoreState
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.reader import MAX_FAILURES
from kvstore.storage.slab.slab import Slab
from slab.rig import LIMIT, PAGE_BYTES, SEGMENT_BYTES, SlabRig, config, key


@pytest.fixture
def rig(rig: SlabRig) -> SlabRig:
    """A slab with a chain of pages, 0 to 9."""
    assert rig.write(*range(10))
    return rig


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Makes the kernel refuse writes beyond ``size`` bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def replace_descriptor(rig: SlabRig, path: str, flags: int) -> None:
    """Points the slab's descriptor to another file."""
    other = os.open(path, flags)
    os.dup2(other, rig.slab._file.descriptor, inheritable=False)
    os.close(other)


def alarms(logs: Sequence[MutableMapping[str, Any]]) -> int:
    """Returns how often the alarm was raised."""
    return [each["event"] for each in logs].count("slab_failed")


def assert_failed(rig: SlabRig) -> None:
    """The slab takes nothing, gives nothing, and cannot forget."""
    assert rig.slab.state is StoreState.FAILED
    assert rig.begin(100) is None
    assert rig.found(*range(10)) == []
    assert not rig.slab.look([key(1)])
    assert not rig.remove(1)


def test_a_file_that_may_not_grow_fails_the_slab(rig: SlabRig) -> None:
    """A limit met in the middle of a write: what was written is kept for the next start."""
    with largest_file(SEGMENT_BYTES // 2), capture_logs() as logs:
        begun = [rig.begin(number) for number in range(10, 100)]
        assert not all(each is not None and each.result(LIMIT) for each in begun)
        assert_failed(rig)
    assert alarms(logs) == 1
    rig.reopen()
    assert set(rig.found(*range(100))) >= set(range(10))


@pytest.mark.parametrize(
    ("path", "flags"),
    [("/dev/full", os.O_RDWR), ("/dev/null", os.O_RDONLY), ("/proc/self/maps", os.O_RDONLY)],
    ids=["no space left", "bad descriptor", "read-only"],
)
def test_a_disk_that_refuses_writes_fails_the_slab(rig: SlabRig, path: str, flags: int) -> None:
    """ENOSPC and a descriptor that is not ours any more are one alarm, and no exception."""
    with capture_logs() as logs:
        replace_descriptor(rig, path, flags)
        begun = [rig.begin(number) for number in range(10, 20)]
        assert begun[0] is not None
        assert not any(each is not None and each.result(LIMIT) for each in begun)
        assert_failed(rig)
    assert alarms(logs) == 1


def test_a_removal_that_is_not_durable_is_not_answered_as_one(rig: SlabRig) -> None:
    """The caller gets an error if the header cannot be emptied. The page is a miss all the same."""
    replace_descriptor(rig, "/dev/full", os.O_RDWR)
    assert not rig.remove(3)
    assert rig.found(3) == []


def test_a_disk_that_loses_pages_loses_those_alone(rig: SlabRig) -> None:
    """Pages behind the end of a truncated file are misses, and told; others are read."""
    cut = rig.slot_offset(6)
    os.truncate(rig.settings.path, cut)
    with capture_logs() as logs:
        assert rig.found(0) == [0]
        assert rig.found(7) == []
    assert [each["event"] for each in logs].count("slab_pages_unreadable") == 1
    assert alarms(logs) == 0
    assert rig.lost == [key(7)]
    assert rig.slab.use().counters.unreadable_pages == 1
    assert rig.found(1) == [1]
    assert rig.slab.use().state is StoreState.OPEN


def test_a_disk_that_reads_nothing_is_given_up(rig: SlabRig) -> None:
    """After a few errors in a row the slab is FAILED; a good read in between starts over."""
    os.truncate(rig.settings.path, rig.slot_offset(5))
    for number in range(5, 5 + MAX_FAILURES - 1):
        assert rig.found(number) == []
    assert rig.found(0) == [0]
    assert rig.write(20)
    with capture_logs() as logs:
        os.truncate(rig.settings.path, 4096)
        for number in range(MAX_FAILURES):
            assert rig.found(number) == []
        assert_failed(rig)
    assert alarms(logs) == 1


def test_a_failure_in_the_middle_of_an_eviction_fails_the_slab(tmp_path: Path) -> None:
    """A full slab whose disk refuses an eviction answers what waits with False."""
    rig = SlabRig(config(tmp_path / "slab"), SlabClock())
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    with capture_logs() as logs:
        replace_descriptor(rig, "/dev/full", os.O_RDWR)
        begun = rig.begin(slots)
        assert begun is not None
        assert not begun.result(LIMIT)
        assert_failed(rig)
    assert alarms(logs) == 1
    rig.slab.close()


def test_what_waits_when_the_disk_fails_is_answered(rig: SlabRig) -> None:
    """Every callback comes, of writes and of removals, whatever was under way."""
    replace_descriptor(rig, "/dev/full", os.O_RDWR)
    with rig.slab._tables.mutex:
        writes = [rig.begin(number) for number in range(10, 30)]
        removal: Future[bool] = Future()
        rig.slab.remove([key(1), key(15)], removal.set_result)
    assert not any(each is None or each.result(LIMIT) for each in writes)
    assert not removal.result(LIMIT)
    assert rig.slab.use().queued_bytes == 0


def test_a_slab_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A disk without the room says so at the start, and the next start tries again."""
    with largest_file(SEGMENT_BYTES), pytest.raises(SlabUnusable, match="File too large"):
        Slab(config(tmp_path / "slab"))
    assert (tmp_path / "slab").stat().st_size == ALIGNMENT
    Slab(config(tmp_path / "slab")).close()
