"""Tier 3 below the memory of a device, which a card stands in for."""

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, closing
from errno import ENOMEM

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.core.values.slots import SlotState
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from stores.disk_store import PAGES, DiskStores, page_count


@pytest.fixture
def card(stores: DiskStores) -> Iterator[tuple[Card, CudaDevice]]:
    """Provides a card that stands in for a device, which outlives the stores on it."""
    card = Card(4 * GRANULARITY)
    with ExitStack() as stack:
        device = stack.enter_context(closing(CudaDevice(0, lambda: ServerCuda(card))))
        stack.callback(stores.close)
        yield card, device


def test_pages_go_from_a_device_to_the_disk_and_back(
    stores: DiskStores, card: tuple[Card, CudaDevice]
) -> None:
    """By way of memory of the host; nothing is published before its copy is done."""
    _, device = card
    store = stores.open(device=device)
    for number in range(3):
        store.write(number)
    assert [store.on_disk(number) for number in range(3)] == [PAGES] * 3
    later = stores.reopen(store, device=device, verify_rate=1.0)
    for number in range(3):
        assert later.tiers(number) == [1]
    counters = later.world.cache.counters
    assert (counters.loaded_page_count, counters.corrupt_page_count) == (3 * PAGES, 0)


def test_a_device_that_fails_keeps_and_loads_nothing(
    stores: DiskStores, card: tuple[Card, CudaDevice]
) -> None:
    """No slot stays under way, it is said why, and the next one finds it as it was."""
    failing, device = card
    store = stores.open(device=device)
    store.publish(0)
    failing.fail = "read"
    with capture_logs() as logs:
        store.settle()
    assert "pages_not_kept" in [each["event"] for each in logs]
    assert store.on_disk(0) == 0
    failing.fail = ""
    store.tiers(0)
    store.settle()
    assert store.on_disk(0) == PAGES
    later = stores.reopen(store, device=device)
    failing.fail = "wait_for_event"
    with capture_logs() as logs:
        assert page_count(later.ask(0)) == 0
    assert "pages_not_loaded" in [each["event"] for each in logs]
    # The memory that it was to be copied from is gone.
    assert not any(failing.begun.values())
    assert later.world.cache.namespaces[later.namespace_id].arena.counts[SlotState.MOVING] == 0
    failing.fail = ""
    assert page_count(later.ask(0)) == PAGES


def test_a_load_onto_a_device_takes_one_mapping(
    stores: DiskStores, card: tuple[Card, CudaDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may have few mappings. Without one, the pages are a miss."""
    _, device = card
    store = stores.open(device=device)
    store.write(0)
    later = stores.reopen(store, device=device)
    real, asked = mmap.mmap, []

    def refused(*size: int) -> mmap.mmap:
        asked.append(size)
        raise OSError(ENOMEM, "no memory")

    monkeypatch.setattr("kvstore.service.page_io.read_targets.mmap.mmap", refused)
    with capture_logs() as logs:
        assert page_count(later.ask(0)) == 0
    assert [each["event"] for each in logs].count("pages_not_loaded") == 1
    assert later.world.cache.namespaces[later.namespace_id].arena.counts[SlotState.MOVING] == 0
    monkeypatch.setattr("kvstore.service.page_io.read_targets.mmap.mmap", real)
    assert asked == [(-1, PAGES * later.world.layout.page_bytes)]
    assert page_count(later.ask(0)) == PAGES
