"""Reads: each page is checked, and what is not what was written is a miss."""

from concurrent.futures import Future

from structlog.testing import capture_logs
from xxhash import xxh3_64_intdigest

from slab.rig import LIMIT, PAGE_BYTES, SlabRig, key, memory, page_bytes


def test_too_much_to_read_is_a_miss(rig: SlabRig) -> None:
    """If the queue of reads is full, a page is a miss, and it stays."""
    assert rig.write(1)
    rig.slab._tables.reading_bytes = rig.settings.queue_bytes
    assert rig.found(1) == []
    rig.slab._tables.reading_bytes = 0
    assert rig.found(1) == [1]
    assert rig.slab.use().counters.refused_reads == 1


def test_a_page_that_changed_on_the_disk_is_a_miss(rig: SlabRig) -> None:
    """A flipped byte is found, counted and logged; the page leaves, others stay."""
    assert rig.write(*range(10))
    rig.flip([rig.slot_offset(4) + 1000])
    with capture_logs() as logs:
        assert rig.found(*range(10)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [each["event"] for each in logs].count("slab_pages_corrupt") == 1
    assert rig.lost == [key(4)]
    assert rig.slab.use().counters.corrupt_pages == 1
    assert rig.found(4) == []
    assert rig.write(4)
    assert rig.found(4) == [4]


def test_what_was_wrong_before_it_was_written_is_never_served(rig: SlabRig) -> None:
    """The writer's checksum is kept: bytes that changed since are found when they are read."""
    assert rig.write(1, checksum=xxh3_64_intdigest(page_bytes(1)))
    assert rig.write(2, checksum=xxh3_64_intdigest(page_bytes(1)))
    assert rig.found(1, 2) == [1]


def test_a_header_in_memory_that_is_another_s_is_a_miss(rig: SlabRig) -> None:
    """Each read compares the slot's header with the page that was asked for."""
    assert rig.write(1, 2)
    segment = rig.slab._tables.pool.segments[0]
    segment.raw(0)[:], segment.raw(1)[:] = bytes(segment.raw(1)), bytes(segment.raw(0))
    assert rig.found(1, 2) == []


def test_a_slot_is_not_written_while_it_is_read(rig: SlabRig) -> None:
    """A page that is removed under its reader leaves its slot to nobody until the read ends."""
    assert rig.write(1)
    tables = rig.slab._tables
    slot = tables.index.find(key(1))
    assert slot is not None
    assert rig.slab.reading_bytes == 0
    with tables.mutex:
        [begun] = rig.slab._reader._begin([_wanted(1)])
    assert rig.slab.reading_bytes == PAGE_BYTES
    assert rig.remove(1)
    assert rig.write(2)
    assert tables.index.find(key(2)) != slot
    request: Future[object] = Future()
    rig.slab._reader._read_run([begun], _Request(request))  # type: ignore[arg-type]
    assert request.result(LIMIT) == [begun]
    assert rig.write(3)
    assert tables.index.find(key(3)) == slot


class _Request:
    """Takes in the pages that were whole."""

    def __init__(self, done: "Future[object]") -> None:
        self._done = done

    def finish(self, whole: list[object], byte_count: int) -> None:
        """Keeps the pages."""
        assert byte_count == PAGE_BYTES * len(whole)
        self._done.set_result(whole)


def _wanted(number: int) -> tuple[object, list[memoryview]]:
    return key(number), [memory(PAGE_BYTES)]


def test_an_answer_says_what_each_page_was_compared_with(rig: SlabRig) -> None:
    """Checksums of what is whole, and how far a path of pages goes on."""
    assert rig.write(0, 1)
    answer, into = rig.answer(0, 5, 1)
    assert answer.checksums == (
        xxh3_64_intdigest(into[0]),
        None,
        xxh3_64_intdigest(into[2]),
    )
    assert answer.found == (True, False, True)
    assert answer.leading == 1
    whole, _ = rig.answer(0, 1)
    assert whole.leading == 2
