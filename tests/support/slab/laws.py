"""The invariants of a slab at rest."""

from collections import Counter

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.file import aligned
from kvstore.storage.slab.header import EMPTY, HEADER_BYTES
from kvstore.storage.slab.layout import INDEX_BITS
from kvstore.storage.slab.segment import SlotPhase
from kvstore.storage.slab.slab import Slab


def check_laws(slab: Slab) -> None:
    """Checks, with nothing under way: index, states, tables and the disk say the same."""
    tables = slab._tables
    assert not tables.pending
    assert tables.queued_bytes == tables.reading_bytes == 0
    cached: dict[PageKey, int] = {}
    parents: Counter[PageKey] = Counter()
    for number, segment in tables.pool.segments.items():
        on_disk = aligned(bytes(len(segment.table)))
        slab._file.read(segment.table_offset, [on_disk])
        assert on_disk == segment.table, "the disk has each header as memory has it"
        assert segment.free_count == segment.states.count(SlotPhase.FREE)
        assert not any(segment.readers)
        for index, state in enumerate(segment.states):
            raw = segment.table[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]
            assert state in {SlotPhase.FREE, SlotPhase.CACHED}, "nothing is on its way"
            header = segment.read_header(index)
            assert (raw == EMPTY) == (state == SlotPhase.FREE), "a FREE slot has no header"
            if header is not None:
                assert header.key not in cached, "a page is in one slot"
                assert header.generation <= tables.generation
                cached[header.key] = number << INDEX_BITS | index
                parents[PageKey(header.key.namespace, header.parent)] += 1
    assert cached == {
        key: tables.index.find(key)
        for namespace in tables.index.namespaces()
        for key in tables.index.keys(namespace)
    }
    assert tables.index.page_count == len(cached)
    for key, slot in cached.items():
        segment, index = tables.pool.at(slot)
        assert segment.children[index] == parents[key], "children are counted"
