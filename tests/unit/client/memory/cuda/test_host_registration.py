"""Host memory is registered as it is mapped, and unregistered before it is unmapped."""

import itertools
import logging
import mmap
import os
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Condition, get_ident

import pytest

from device.card import Card
from device.client_driver import client_driver
from kvstore.v1 import types_pb2
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda import host_registration
from kvstore_client.memory.cuda.cuda_driver import CudaDriver
from kvstore_client.memory.cuda.host_registration import HostRegistrar, slots_per_piece
from kvstore_client.memory.extent_table import ExtentTable
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from wire.scripted_store import sealed_memfd

PAGE = mmap.PAGESIZE
SLOTS = 6


def described(extent_id: int) -> types_pb2.Extent:
    """Returns an extent of six slots of one memory page."""
    host = types_pb2.HostHandle(size_bytes=SLOTS * PAGE)
    return types_pb2.Extent(
        extent_id=extent_id, arena_id=1, slot_count=SLOTS, slot_bytes=PAGE, host=host
    )


@pytest.fixture
def memory() -> Iterator[int]:
    """Provides the memory of an extent."""
    descriptor = sealed_memfd(SLOTS * PAGE, REQUIRED_SEALS, b"first")
    yield descriptor
    os.close(descriptor)


class Rig:
    """A table whose extents are registered with a card. ``seen`` are registrations at unmaps."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.loaded: Callable[[], None] = lambda: None
        self.gone: SimpleQueue[tuple[int, dict[int, int]]] = SimpleQueue()
        registrar = HostRegistrar(0, lambda: CudaDriver(client_driver(card)))
        self.table = ExtentTable(
            Condition(),
            itertools.count(1),
            self._unmapped,
            store_epoch=5,
            register=registrar.register,
        )

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
