"""Host memory is registered as it is mapped, and unregistered before it is unmapped."""

import itertools
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Condition, Event, get_ident

import pytest

from device.card import Card
from device.client_driver import client_driver, require_mapped
from kvstore.v1 import types_pb2
from kvstore_client.config import ContiguousMemory
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory import address_range
from kvstore_client.memory.address_range import UNIT, ArenaRanges
from kvstore_client.memory.cuda import host_registration
from kvstore_client.memory.cuda.cuda_driver import CudaDriver
from kvstore_client.memory.cuda.host_registration import HostRegistrar, slots_per_piece
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import REQUIRED_SEALS, reserve_again
from wire.scripted_store import sealed_memfd

PAGE = mmap.PAGESIZE
SLOTS = 6
LIMIT = 30
ONE_PLACE = ContiguousMemory(reserved_bytes=UNIT)


def described(extent_id: int) -> types_pb2.Extent:
    """Returns an extent of six slots of one memory page."""
    host = types_pb2.HostHandle(size_bytes=SLOTS * PAGE)
    return types_pb2.Extent(
        extent_id=extent_id,
        arena_id=1,
        slot_count=SLOTS,
        slot_bytes=PAGE,
        host=host,
        arena_offset=0,
    )


@pytest.fixture
def memory() -> Iterator[int]:
    """Provides the memory of an extent."""
    descriptor = sealed_memfd(SLOTS * PAGE, REQUIRED_SEALS, b"first")
    yield descriptor
    os.close(descriptor)


class Rig:
    """A table whose extents are registered with a card, side by side with ``options``.

    ``gone`` has the registrations at each unmap. ``order`` has noted calls with their threads.
    """

    def __init__(
        self,
        card: Card,
        load: Callable[[], CudaDriver] | None = None,
        options: ContiguousMemory | None = None,
    ) -> None:
        self.card = card
        self.loaded: Callable[[], None] = lambda: None
        self.gone: SimpleQueue[tuple[int, dict[int, int]]] = SimpleQueue()
        self.order: list[tuple[str, int]] = []
        registrar = HostRegistrar(0, load or (lambda: CudaDriver(client_driver(card))))
        self.table = ExtentTable(
            Condition(),
            itertools.count(1),
            self.noted("report", self._unmapped),
            store_epoch=5,
            register=registrar.register,
            ranges=None if options is None else ArenaRanges(options),
        )

    def noted(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        """Returns a function that notes each call's thread and makes the call."""

        def note(*arguments: object) -> None:
            self.order.append((name, get_ident()))
            call(*arguments)

        return note

    def _unmapped(self, extent_id: int) -> None:
        self.gone.put((extent_id, dict(self.card.registered)))


def test_an_extent_is_registered_until_it_is_unmapped(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pieces are registered once the extent is there, and none is when it was unmapped."""
    monkeypatch.setattr(host_registration, "PIECE_BYTES", 4 * PAGE)
    rig = Rig(Card())
    rig.table.add(described(1), [memory])
    assert list(rig.card.registered.values()) == [4 * PAGE, 2 * PAGE]
    first, second = sorted(rig.card.registered)
    assert second - first == 4 * PAGE
    extent = rig.table.get(1)
    assert extent is not None
    view = extent.view()
    del extent
    rig.table.give_up([1])
    assert rig.gone.empty()
    assert bytes(view[:5]) == b"first"
    del view
    # The card refuses to unregister memory that is not mapped.
    assert rig.gone.get(timeout=30) == (1, {})


def test_the_driver_is_called_on_a_thread_that_breaks_no_capture(memory: int) -> None:
    """One other thread calls the driver, also while a graph is captured."""
    card = Card()
    rig = Rig(card)
    rig.loaded = lambda: setattr(card, "capturing", True)
    rig.table.add(described(1), [memory])
    assert len(card.registered) == 1
    assert get_ident() not in card.threads
    rig.table.give_up()
    rig.gone.get(timeout=30)
    assert card.threads == card.relaxed
    assert not card.capture_broken


@pytest.mark.parametrize("call", ["cuMemHostRegister_v2", "cuDeviceGetAttribute", "cuInit"])
def test_memory_that_is_not_registered_is_used_all_the_same(
    call: str, memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is logged once, and the extents are mapped and unmapped as without a device."""
    card = Card()
    card.fail = call
    rig = Rig(card)
    with caplog.at_level(logging.WARNING):
        for extent_id in (1, 2):
            assert rig.table.add(described(extent_id), [memory])
    assert [each.message for each in caplog.records] == ["host_memory_not_registered"]
    extent = rig.table.get(2)
    assert extent is not None
    assert bytes(extent.slot(0)[:5]) == b"first"
    del extent
    rig.table.give_up()
    assert {rig.gone.get(timeout=30)[0] for _ in range(2)} == {1, 2}


def test_a_device_with_addresses_of_its_own_registers_nothing(
    memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory stays pageable if copies by the host's addresses would end in an illegal address."""
    card = Card()
    card.host_addresses = False
    rig = Rig(card)
    with caplog.at_level(logging.WARNING):
        assert rig.table.add(described(1), [memory])
    assert card.registered == {}
    assert [each.message for each in caplog.records] == ["host_memory_not_registered"]


def test_an_extent_is_registered_as_a_whole_or_not_at_all(
    memory: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the device refuses a later piece, the earlier ones are unregistered at once."""
    monkeypatch.setattr(host_registration, "PIECE_BYTES", PAGE)
    card = Card()
    register = card.register
    monkeypatch.setattr(card, "register", lambda *of: len(card.registered) < 3 and register(*of))
    rig = Rig(card)
    with caplog.at_level(logging.WARNING):
        assert rig.table.add(described(1), [memory])
    assert card.registered == {}
    assert card.calls.count("cuMemHostUnregister") == 3
    rig.table.give_up()
    assert rig.gone.get(timeout=30) == (1, {})


class HeldDriver(CudaDriver):
    """A driver that sets ``begun`` and waits for ``free`` before it unregisters memory."""

    def __init__(self, card: Card, begun: Event, free: Event) -> None:
        super().__init__(client_driver(card))
        self._begun, self._free = begun, free

    def unregister(self, address: int) -> None:
        """Waits, and then unregisters."""
        self._begun.set()
        assert self._free.wait(LIMIT)
        super().unregister(address)


def test_a_place_of_a_range_is_free_once_its_memory_is_unregistered(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registrar's thread unregisters, reserves the addresses, and then tells the store.

    Before that the place takes no other extent. The store names it for none, unless it is at fault.
    """
    card, begun, free = Card(), Event(), Event()
    rig = Rig(card, lambda: HeldDriver(card, begun, free), ONE_PLACE)
    monkeypatch.setattr(CudaDriver, "unregister", rig.noted("unregister", CudaDriver.unregister))
    monkeypatch.setattr(address_range, "reserve_again", rig.noted("reserve", reserve_again))
    assert rig.table.add(described(1), [memory])
    [(address, size)] = card.registered.items()
    assert rig.table.retire([1]) == []
    assert begun.wait(LIMIT)
    require_mapped(address, size)
    assert (rig.order, card.registered) == ([], {address: size})
    with pytest.raises(UntrustedExtent, match="where another is"):
        rig.table.add(described(2), [memory])
    free.set()
    assert rig.gone.get(timeout=LIMIT) == (1, {})
    [thread] = card.threads
    assert rig.order == [("unregister", thread), ("reserve", thread), ("report", thread)]
    with pytest.raises(OSError, match="Bad address"):
        require_mapped(address, size)
    assert rig.table.add(described(2), [memory])
    assert card.registered == {address: size}
    rig.table.give_up()
    assert rig.gone.get(timeout=LIMIT) == (2, {})


def test_memory_that_cannot_be_unregistered_is_unmapped_nonetheless(
    memory: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of the driver is logged, and the store gets the extent back."""
    rig = Rig(Card(), options=ONE_PLACE)
    assert rig.table.add(described(1), [memory])
    [(address, size)] = rig.card.registered.items()
    rig.card.fail = "cuMemHostUnregister"
    with caplog.at_level(logging.WARNING):
        rig.table.give_up()
        assert rig.gone.get(timeout=LIMIT)[0] == 1
    assert [each.message for each in caplog.records] == ["host_memory_still_registered"]
    with pytest.raises(OSError, match="Bad address"):
        require_mapped(address, size)


def test_pieces_end_between_slots_and_between_memory_pages() -> None:
    """The length of a piece is a multiple of a slot's bytes and of a memory page's."""
    for slot_bytes in (64, PAGE, 3 * PAGE + 64, 2_359_296, 5):
        piece = slots_per_piece(slot_bytes) * slot_bytes
        assert piece % PAGE == 0
        assert 0 < piece <= host_registration.PIECE_BYTES


def test_without_a_driver_memory_stays_pageable(memory: int) -> None:
    """A registrar whose driver is missing maps as without a device."""

    def load() -> CudaDriver:
        raise DeviceUnavailable("there is no NVIDIA driver here")

    table = ExtentTable(
        Condition(),
        itertools.count(1),
        lambda _: None,
        store_epoch=5,
        register=HostRegistrar(0, load).register,
    )
    assert table.add(described(1), [memory])
