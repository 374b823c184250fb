"""A restart finds whole, connected pages, and nothing torn, foreign or left over."""

from pathlib import Path

import pytest

from kvstore.storage.slab.header import HEADER_BYTES, SlotHeader
from kvstore.storage.slab.layout import ALIGNMENT
from slab.rig import PAGE_BYTES, SEGMENT_BYTES, SlabRig, config, flip, key


@pytest.fixture
def rig(rig: SlabRig) -> SlabRig:
    """A slab with a chain of pages, 0 to 9."""
    assert rig.write(*range(10))
    return rig


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Writes into a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_torn_header_is_no_page(rig: SlabRig) -> None:
    """It is counted, its slot is used again, and what came after it is dropped with it."""
    torn = rig.header_offset(7) + 50
    rig.slab.close()
    flip(rig.settings.path, [torn])
    rig.reopen()
    assert rig.found(*range(10)) == list(range(7))
    counters = rig.slab.use().counters
    assert (counters.torn_slots, counters.orphaned_pages, counters.recovered_pages) == (1, 2, 7)
    assert rig.write(20)
    rig.reopen()
    counters = rig.slab.use().counters
    assert (counters.torn_slots, counters.orphaned_pages, counters.recovered_pages) == (0, 0, 8)


def test_a_header_that_was_copied_is_no_page(rig: SlabRig) -> None:
    """A good header in another slot's place is foreign."""
    first, second = rig.header_offset(0), rig.header_offset(9)
    rig.slab.close()
    raw = rig.settings.path.read_bytes()
    overwrite(rig.settings.path, second, raw[first : first + HEADER_BYTES])
    rig.reopen()
    assert rig.slab.use().counters.torn_slots == 1
    assert rig.found(*range(10)) == list(range(9))


def test_a_segment_of_another_slab_is_no_segment(tmp_path: Path, rig: SlabRig) -> None:
    """Bytes of another slab, at their own place, are as if nothing were there."""
    other = SlabRig(config(tmp_path / "other"))
    other.slab.close()
    rig.slab.close()
    overwrite(
        tmp_path / "other", ALIGNMENT, rig.settings.path.read_bytes()[ALIGNMENT:][:SEGMENT_BYTES]
    )
    other.reopen()
    assert other.slab.use().slot_count == 0
    assert other.found(*range(10)) == []
    assert other.write(*range(10))
    other.slab.close()


def test_a_torn_segment_header_loses_the_segment_alone(rig: SlabRig) -> None:
    """Its pages are gone, and it is cut anew."""
    rig.slab.close()
    flip(rig.settings.path, [ALIGNMENT + 20])
    rig.reopen()
    assert rig.slab.use().page_count == 0
    assert rig.write(*range(10))


@pytest.mark.parametrize("newer", [True, False])
def test_of_a_page_that_is_there_twice_the_younger_stays(rig: SlabRig, *, newer: bool) -> None:
    """By generation, not by place; the other's header goes."""
    segment = rig.slab._tables.pool.segments[0]
    header = segment.read_header(0)
    assert header is not None
    other = header._replace(generation=header.generation + (1000 if newer else -1))
    raw = other.encode(segment.place(50))
    rig.slab.close()
    overwrite(rig.settings.path, segment.table_offset + 50 * HEADER_BYTES, raw)
    rig.reopen()
    slot = rig.slab._tables.index.find(key(0))
    assert slot == (50 if newer else 0)
    assert rig.slab.use().page_count == 10
    assert rig.slab.use().counters.orphaned_pages == 1
    assert rig.found(1, 9) == [1, 9]
    # The younger one's slot has no such bytes: that is found when it is read, not before.
    assert rig.found(0) == ([] if newer else [0])


def test_generations_go_on_where_they_were(rig: SlabRig) -> None:
    """After a restart no page has a generation that another had."""
    before = rig.slab._tables.generation
    rig.reopen()
    assert rig.slab._tables.generation == before
    assert rig.write(30)
    assert rig.slab._tables.generation == before + 1


def test_a_page_that_was_never_whole_is_found_when_it_is_read(rig: SlabRig) -> None:
    """A header without its bytes, which only a disk that lies leaves behind, serves nothing."""
    segment = rig.slab._tables.pool.segments[0]
    header = SlotHeader(key(40), key(9).digest, 16, 1000, 12345)
    rig.slab.close()
    overwrite(
        rig.settings.path,
        segment.table_offset + 60 * HEADER_BYTES,
        header.encode(segment.place(60)),
    )
    rig.reopen()
    assert rig.slab.look([key(40)])
    assert rig.found(40) == []
    assert rig.lost == [key(40)]


def test_a_slab_that_shrank_has_what_is_left(tmp_path: Path) -> None:
    """Segments behind the new end are gone, with all that hung on them; and it grows again."""
    rig = SlabRig(config(tmp_path / "grown"))
    slots = 2 * rig.slab._tables.pool.layout(PAGE_BYTES).slot_count
    assert rig.write(*range(slots))
    rig.settings = config(tmp_path / "grown", segments=1)
    rig.reopen()
    assert rig.found(*range(slots)) == list(range(slots // 2))
    rig.settings = config(tmp_path / "grown", segments=3)
    rig.reopen()
    assert rig.found(*range(slots)) == list(range(slots // 2))
    assert rig.write(*range(slots, 2 * slots))
    rig.slab.close()
