"""Pages of a mapped memfd, allocated by several threads."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Barrier, Lock, active_count, get_ident

import pytest

from kvstore.storage.host import populate as module
from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, Hugepages, available_bytes
from kvstore.storage.host.memfd import address_of
from kvstore.storage.host.populate import STEP_BYTES, populate
from processes.resident_bytes import resident_bytes

NAME = "kvstore-test-populate"
# Of Linux: map a file's pages without setting them aside.
MAP_NORESERVE = 0x4000


@contextmanager
def mapped(size: int, flags: int = 0, map_flags: int = mmap.MAP_SHARED) -> Iterator[mmap.mmap]:
    """Provides a mapped memfd without pages."""
    descriptor = os.memfd_create(NAME, flags)
    try:
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size, flags=map_flags) as mapping:
            yield mapping
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_page_is_there_and_keeps_its_bytes(threads: int) -> None:
    """Also those of the last step, which is a short one; the rest is zero."""
    size = 2 * STEP_BYTES + 3 * mmap.PAGESIZE
    with mapped(size) as mapping:
        mapping[STEP_BYTES - 1 : STEP_BYTES + 1] = b"ab"
        before = active_count()
        populate(address_of(mapping), size, threads)
        assert resident_bytes(NAME) == size
        assert mapping[STEP_BYTES - 1 : STEP_BYTES + 1] == b"ab"
        assert mapping.find(b"a") == STEP_BYTES - 1
        assert mapping[STEP_BYTES + 1 :].count(0) == size - STEP_BYTES - 1
        assert active_count() == before


def test_only_what_was_asked_for_is_allocated() -> None:
    """The pages before and after it stay unallocated."""
    with mapped(4 * mmap.PAGESIZE) as mapping:
        populate(address_of(mapping) + mmap.PAGESIZE, 2 * mmap.PAGESIZE, 2)
        assert resident_bytes(NAME) == 2 * mmap.PAGESIZE


def test_the_threads_work_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is in a call of the kernel while the others are in theirs."""
    barrier, threads, plain = Barrier(3), set[int](), module._populate

    def meet(address: int, size: int) -> None:
        threads.add(get_ident())
        barrier.wait(30)
        plain(address, size)

    monkeypatch.setattr(module, "_populate", meet)
    with mapped(6 * STEP_BYTES) as mapping:
        populate(address_of(mapping), 6 * STEP_BYTES, 3)
        assert resident_bytes(NAME) == 6 * STEP_BYTES
    assert len(threads) == 3
    assert get_ident() not in threads


@pytest.mark.parametrize("threads", [1, 3])
def test_a_page_that_the_kernel_refuses_is_an_error_and_no_signal(threads: int) -> None:
    """From a pool with too few pages, where a touch of the page would end the process."""
    flags = Hugepages.RESERVED.memfd_flags
    size = (available_bytes() // HUGEPAGE_BYTES + 8) * HUGEPAGE_BYTES
    with (
        mapped(size, flags, mmap.MAP_SHARED | MAP_NORESERVE) as mapping,
        pytest.raises(OSError, match="memory") as refused,
    ):
        populate(address_of(mapping), size, threads)
    assert refused.value.errno == errno.ENOMEM


def test_no_step_is_begun_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three threads ends after its current step, and the refusal is raised."""
    entered, futures, begun = Barrier(3), list[Future[None]](), list[int]()

    submit, noting = ThreadPoolExecutor.submit, Lock()

    def note(pool: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
        with noting:
            futures.append(submit(pool, work))
            return futures[-1]

    def refuse_first(address: int, size: int) -> None:
        del size
        begun.append(address)
        entered.wait(30)
        if address == mmap.PAGESIZE:
            raise OSError(errno.ENOMEM, "refused")
        # The others go on once the thread with the refusal has ended its work.
        with noting:
            known = list(futures)
        assert wait(known, 30, FIRST_COMPLETED).done

    monkeypatch.setattr(ThreadPoolExecutor, "submit", note)
    monkeypatch.setattr(module, "_populate", refuse_first)
    with pytest.raises(OSError, match="refused"):
        populate(mmap.PAGESIZE, 100 * STEP_BYTES, 3)
    assert len(begun) == 3
