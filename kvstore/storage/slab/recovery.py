"""Recovery of a slab after a restart. It reads only the tables of headers."""

import structlog

from kvstore.storage.slab.book import PendingRemoval, SlabBook
from kvstore.storage.slab.file import SlabFile, aligned
from kvstore.storage.slab.header import PageKey, scan
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.segment import Segment, SlotState
from kvstore.storage.slab.superblock import decode_segment

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def recover(file: SlabFile, book: SlabBook) -> None:
    """Fills an empty book from the file. Raises ``OSError``.

    Drops torn and foreign headers, pages that no chain connects to their root, and the older of
    two copies of a page. The first commit empties their headers on the disk.
    """
    dropped: list[int] = []
    for number in range(file.segment_count):
        read = _read_segment(file, book, number)
        if read is not None:
            book.room.assign(read)
            dropped += _scan(read, book)
    for slot in dropped:
        segment, index = book.room.at(slot)
        segment.move(index, SlotState.LEAVING)
    book.index.count_children()
    orphans = book.index.orphans()
    dropped += book.leave(orphans)
    counters = book.counters
    counters.orphaned_pages += len(orphans)
    counters.recovered_pages = book.index.page_count
    if dropped:
        book.removals.append(PendingRemoval(dropped, [], lambda _: None))
    log.info(
        "slab_opened",
        page_count=counters.recovered_pages,
        torn_slots=counters.torn_slots,
        orphaned_pages=counters.orphaned_pages,
    )


def _read_segment(file: SlabFile, book: SlabBook, number: int) -> Segment | None:
    """Returns a segment with its table from the disk; None if it is not cut."""
    raw = aligned(bytes(ALIGNMENT))
    file.read(ALIGNMENT + number * book.room.segment_bytes, [raw])
    header = decode_segment(bytes(raw), file.superblock.slab, number)
    if header is None:
        return None
    segment = Segment(header, book.room.layout(header.page_bytes))
    if not segment.layout.slot_count:
        return None
    file.read(segment.table_offset, [segment.table])
    book.generation = max(book.generation, header.carving)
    return segment


def _scan(segment: Segment, book: SlabBook) -> list[int]:
    """Adds a segment's pages. Returns the slots whose headers must be emptied."""
    dropped: list[int] = []
    cached = bytearray(segment.layout.slot_count)
    newest = 0
    header = segment.header
    for number, good, namespace, digest, generation in scan(
        bytes(segment.table), header.slab, header.carving, len(cached)
    ):
        slot = segment.slot(number)
        cached[number] = 1
        if not good:
            book.counters.torn_slots += 1
            dropped.append(slot)
            continue
        newest = max(newest, generation)
        other = book.index.restore(namespace, digest, slot)
        if other is not None:
            dropped.append(_older(book, PageKey(namespace, digest), slot, other))
    segment.restore(cached)
    book.generation = max(book.generation, newest)
    return dropped


def _older(book: SlabBook, key: PageKey, slot: int, other: int) -> int:
    """Keeps the younger of two copies of a page. Returns the slot of the other."""
    book.counters.orphaned_pages += 1
    if _generation(book, slot) < _generation(book, other):
        book.index.restore(*key, other)
        return slot
    return other


def _generation(book: SlabBook, slot: int) -> int:
    """Returns the generation in a slot's good header."""
    segment, index = book.room.at(slot)
    header = segment.read_header(index)
    assert header is not None
    return header.generation
