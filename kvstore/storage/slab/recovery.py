"""Recovery of a slab after a restart. It reads only the tables of headers."""

import structlog

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.file import SlabFile, aligned
from kvstore.storage.slab.header import scan
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.segment import Segment, SlotPhase
from kvstore.storage.slab.superblock import decode_segment
from kvstore.storage.slab.tables import PendingRemoval, SlabTables

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def recover(file: SlabFile, tables: SlabTables) -> None:
    """Fills empty tables from the file. Raises ``OSError``.

    Drops torn and foreign headers, pages that no chain connects to their root, and the older of
    two copies of a page. The first commit empties their headers on the disk.
    """
    dropped: list[int] = []
    for number in range(file.segment_count):
        read = _read_segment(file, tables, number)
        if read is not None:
            tables.pool.assign(read)
            dropped += _scan(read, tables)
    for slot in dropped:
        segment, index = tables.pool.at(slot)
        segment.move(index, SlotPhase.LEAVING)
    tables.index.count_children()
    orphans = tables.index.orphans()
    dropped += tables.leave(orphans)
    counters = tables.counters
    counters.orphaned_pages += len(orphans)
    counters.recovered_pages = tables.index.page_count
    if dropped:
        tables.removals.append(PendingRemoval(dropped, [], lambda _: None))
    log.info(
        "slab_opened",
        page_count=counters.recovered_pages,
        torn_slots=counters.torn_slots,
        orphaned_pages=counters.orphaned_pages,
    )


def _read_segment(file: SlabFile, tables: SlabTables, number: int) -> Segment | None:
    """Returns a segment with its table from the disk; None if it is not cut."""
    raw = aligned(bytes(ALIGNMENT))
    file.read(ALIGNMENT + number * tables.pool.segment_bytes, [raw])
    header = decode_segment(bytes(raw), file.superblock.slab, number)
    if header is None:
        return None
    segment = Segment(header, tables.pool.layout(header.page_bytes))
    if not segment.layout.slot_count:
        return None
    file.read(segment.table_offset, [segment.table])
    tables.generation = max(tables.generation, header.carving)
    return segment


def _scan(segment: Segment, tables: SlabTables) -> list[int]:
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
            tables.counters.torn_slots += 1
            dropped.append(slot)
            continue
        newest = max(newest, generation)
        other = tables.index.restore(namespace, digest, slot)
        if other is not None:
            dropped.append(_older(tables, PageKey(namespace, digest), slot, other))
    segment.restore(cached)
    tables.generation = max(tables.generation, newest)
    return dropped


def _older(tables: SlabTables, key: PageKey, slot: int, other: int) -> int:
    """Keeps the younger of two copies of a page. Returns the slot of the other."""
    tables.counters.orphaned_pages += 1
    if _generation(tables, slot) < _generation(tables, other):
        tables.index.restore(key.namespace, key.digest, other)
        return slot
    return other


def _generation(tables: SlabTables, slot: int) -> int:
    """Returns the generation in a slot's good header."""
    segment, index = tables.pool.at(slot)
    header = segment.read_header(index)
    assert header is not None
    return header.generation
