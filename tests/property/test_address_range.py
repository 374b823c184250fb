"""An address range against a dictionary: extents come, go and are replaced in any order."""

import os
from collections.abc import Callable
from random import Random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvstore.v1 import types_pb2
from kvstore_client import ContiguousMemory, PageRef, SlotRun
from kvstore_client.memory.address_range import UNIT, AddressRange
from kvstore_client.memory.host_extent import HostExtent
from kvstore_client.memory.shared_memory import REQUIRED_SEALS, Unregister
from wire.scripted_store import sealed_memfd

PLACES = 4


class RangeMachine(RuleBasedStateMachine):
    """Maps and drops extents, and writes pages by row or by extent."""

    @initialize(slot_bytes=st.sampled_from([64, 1000, 1 << 12, 9 << 13, (1 << 20) + 8]))
    def begin(self, slot_bytes: int) -> None:
        """Reserves four places of whole slots and whole units."""
        self.slot_bytes = slot_bytes
        unit = UNIT // (slot_bytes & -slot_bytes) * slot_bytes
        self.stride = -(-3 * slot_bytes // unit) * unit
        self.registered: dict[int, int] = {}
        options = ContiguousMemory(reserved_bytes=PLACES * self.stride)
        self.arena = AddressRange(1, slot_bytes, options)
        self.whole = self.arena.view()
        self.mapped: dict[int, HostExtent] = {}
        self.places: dict[int, int] = {}
        self.content: dict[PageRef, bytes] = {}
        self.gone: list[int] = []
        self.ended: list[int] = []
        self.number = 0

    @precondition(lambda self: len(self.mapped) < PLACES)
    @rule(choice=st.randoms(use_true_random=False), slots=st.integers(1, 3))
    def map(self, choice: Random, slots: int) -> None:
        """Maps a fresh extent at a free place. Its pages are zero."""
        self.number += 1
        place = choice.choice(sorted({*range(PLACES)} - {*self.places.values()}))
        size = slots * self.slot_bytes
        extent = types_pb2.Extent(
            extent_id=self.number,
            arena_id=1,
            slot_count=slots,
            slot_bytes=self.slot_bytes,
            host=types_pb2.HostHandle(size_bytes=size),
            arena_offset=place * self.stride,
        )
        descriptor = sealed_memfd(size, REQUIRED_SEALS)
        self.mapped[self.number] = HostExtent(
            extent,
            descriptor,
            self.gone.append,
            register=self._register,
            address_range=self.arena,
        )
        os.close(descriptor)
        self.places[self.number] = place
        self.content.update({PageRef(self.number, slot): b"\0" for slot in range(slots)})

    @precondition(lambda self: self.mapped)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Drops an extent's last view."""
        extent_id = data.draw(st.sampled_from(sorted(self.mapped)))
        del self.mapped[extent_id], self.places[extent_id]
        self.content = {p: c for p, c in self.content.items() if p.extent_id != extent_id}
        self.ended.append(extent_id)

    @precondition(lambda self: self.mapped)
    @rule(data=st.data(), value=st.integers(1, 255), by_row=st.booleans())
    def write(self, data: st.DataObject, value: int, *, by_row: bool) -> None:
        """Fills a page with one byte, by its row or by its extent."""
        page = data.draw(st.sampled_from(sorted(self.content)))
        content = bytes([value])
        if by_row:
            begin = self.arena.row(page) * self.slot_bytes
            self.whole[begin : begin + self.slot_bytes] = content * self.slot_bytes
        else:
            self.mapped[page.extent_id].slot(page.slot)[:] = content * self.slot_bytes
        self.content[page] = content

    @invariant()
    def pages_are_at_their_rows(self) -> None:
        """Each page is found by its row, whose bytes are those last written."""
        pages = sorted(self.content)
        rows = self.arena.rows([SlotRun(page.extent_id, [page.slot]) for page in pages]).tolist()
        assert len({*rows}) == len(pages)
        for page, row in zip(pages, rows, strict=True):
            assert self.arena.page(row) == page
            begin = row * self.slot_bytes
            page_bytes = self.whole[begin : begin + self.slot_bytes]
            assert page_bytes[:1] == page_bytes[-1:] == self.content[page]

    @invariant()
    def exactly_the_mapped_extents_are_registered(self) -> None:
        """Registered memory, reported ends and extents are those of the model."""
        sizes = {e.address: e.size_bytes for e in self.arena.extents.values()}
        assert self.registered == sizes
        assert (self.arena.extents.keys(), self.gone) == (self.mapped.keys(), self.ended)

    def _register(self, address: int, size: int, slot_bytes: int) -> Unregister:
        assert slot_bytes == self.slot_bytes
        self.registered[address] = size

        def unregister(unmap: Callable[[], None]) -> None:
            assert self.registered.pop(address) == size
            unmap()

        return unregister

    def teardown(self) -> None:
        """Drops all that is mapped."""
        self.mapped = {}


TestRangeMachine = RangeMachine.TestCase
