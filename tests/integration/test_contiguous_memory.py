"""Extents side by side in one range of addresses, with real stores and processes."""

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from threading import Event, Thread

import pytest

from device.card import Card
from device.client_driver import client_driver
from kvstore_client import (
    AddressRange,
    Client,
    ClientConfig,
    ContiguousMemory,
    Namespace,
    NamespaceIdentity,
    PagedContent,
    PageLayout,
    PageRef,
    Reservation,
)
from kvstore_client.errors import PoolExhausted
from kvstore_client.memory.cuda import cuda_driver
from kvstore_client.memory.cuda.host_registration import host_registrar
from kvstore_client.testing import RunningStore, wait_until
from pages.row_pages import RowPages
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    PART_PAGES,
    TOKENS,
    holds_tokens,
    memfd_mappings,
    open_client,
    page_bytes,
    page_count,
    prompt,
    write_and_insert,
)
from processes.page_worker import page_process
from processes.worker_fleet import POOL_SLOTS, Fleet, pool_arguments, running_fleet

EXTENT_SLOTS = 8
EXTENTS = POOL_SLOTS // EXTENT_SLOTS
PRESSURE = [prompt(4, number) for number in range(24)]
HELD, LONGER = prompt(1, 2), prompt(1, 2, 3)
# A layout with pages of twice the size, so of another arena.
LARGER = PageLayout.paged(8, PagedContent(4, 2, 16, "float32"))


CONFIG = ClientConfig(call_timeout=LIMIT, contiguous_memory=ContiguousMemory())
# This registers the memory too.
ON_DEVICE = replace(CONFIG, host_memory_device=0)


def opened(
    store: RunningStore, config: ClientConfig = CONFIG
) -> tuple[Client, Namespace, AddressRange]:
    """Returns a client with its namespace open and its address range."""
    client, namespace = open_client(store.runtime_dir, config)
    arena = namespace.address_range
    assert arena is not None
    return client, namespace, arena


def mapped(arena: AddressRange) -> dict[int, int]:
    """Returns the sizes of the mapped extents by address."""
    return {each.address: each.size_bytes for each in arena.extents.values()}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    """Provides the device of ``ON_DEVICE``, which unregisters no memory that is not mapped."""
    made = Card()
    monkeypatch.setattr(cuda_driver, "_load", lambda: client_driver(made))
    host_registrar.cache_clear()
    yield made
    host_registrar.cache_clear()


def content_at(arena: AddressRange, page: PageRef) -> bytes:
    """Returns a page's bytes by its address alone."""
    return ctypes.string_at(arena.base + arena.row(page) * arena.row_bytes, LAYOUT.page_bytes)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Provides workers on a store of 64 pages in extents of 8."""
    with running_fleet(extent_slots=EXTENT_SLOTS) as running:
        yield running


def test_rows_are_the_same_in_all_processes(fleet: Fleet) -> None:
    """A rank writes the rows that the scheduler names, and any client reads the pages."""
    scheduler = fleet.spawn("scheduler", contiguous=True)
    join = scheduler.ask("share_lease")
    ranks = [fleet.spawn(f"rank {each}", join=join, contiguous=True) for each in range(2)]
    scheduler.ask("write", HELD)
    assert scheduler.ask("match", "before", HELD) == len(HELD) - 1
    assert len(scheduler.ask("places")) < EXTENTS

    def grown() -> bool:
        scheduler.ask("churn", PRESSURE, 1)
        return all(len(each.ask("places")) == EXTENTS for each in (scheduler, *ranks))

    assert wait_until(grown)
    places = scheduler.ask("places")
    assert all(each.ask("places") == places for each in ranks)
    assert len({*places.values()}) == EXTENTS
    # What was held all the time, through all growth.
    assert len(scheduler.ask("check", "before")) == page_count(HELD)

    assert scheduler.ask("acquire", "rows", LONGER) == len(HELD) - 1
    rows = scheduler.ask("rows", "rows")
    ranks[0].ask("write_rows", LONGER, page_count(HELD), rows)
    _, published = scheduler.ask("insert", "rows", page_count(HELD), page_count(LONGER))
    assert published == len(rows) == PART_PAGES
    reader = fleet.spawn("reader")
    writers = [each.writer for each in reader.ask("stamps", LONGER)]
    assert writers == ["scheduler"] * page_count(HELD) + ["rank 0"] * PART_PAGES


@pytest.mark.store(*pool_arguments(EXTENT_SLOTS))
def test_memory_is_registered_before_it_is_granted(fresh_store: RunningStore, card: Card) -> None:
    """Each granted page is registered already. Closing unregisters and unmaps all of it."""
    before = memfd_mappings()
    client, namespace, arena = opened(fresh_store, ON_DEVICE)
    held: list[Reservation] = []

    def granted() -> bool:
        """Reserves four pages more, and returns whether all memory is reserved."""
        with contextlib.suppress(PoolExhausted):
            held.append(namespace.reserve(start_page=0, page_count=4))
            for page in held[-1].pages:
                address = arena.address(arena.row(page))
                assert is_registered(card, address, LAYOUT.page_bytes)
        return sum(each.page_count for each in held) == POOL_SLOTS

    assert wait_until(granted)
    assert len(card.registered) == EXTENTS
    for each in held:
        each.abort()
    assert mapped(arena) == card.registered
    client.close()
    # The registrar's thread unmaps.
    assert wait_until(lambda: memfd_mappings() == before)
    assert (arena.extents, card.registered) == ({}, {})


def is_registered(card: Card, address: int, size: int) -> bool:
    """Returns whether all bytes are registered."""
    return any(
        begin <= address and address + size <= begin + length
        for begin, length in card.registered.items()
    )


def test_a_killed_store_leaves_the_memory_readable(fresh_store: RunningStore, card: Card) -> None:
    """Held pages outlive the store at their addresses, and its successor has another range."""
    client, namespace, arena = opened(fresh_store, ON_DEVICE)
    pages = write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    whole = arena.tensor()
    fresh_store.kill()
    for number, page in enumerate(pages):
        assert content_at(arena, page) == page_bytes(TOKENS, number)
    begin = arena.row(pages[0]) * arena.row_bytes
    assert bytes(whole[begin : begin + 64].tolist()) == page_bytes(TOKENS, 0)[:64]
    assert wait_until(lambda: not client.connected)
    ended = mapped(arena)
    assert card.registered == ended
    match.release()
    fresh_store.restart()
    assert namespace.wait_open(LIMIT)
    successor = namespace.address_range
    assert successor is not None
    assert successor is not arena
    # The old range has no memory any more, and its addresses are nobody else's.
    assert wait_until(lambda: not ended.keys() & card.registered.keys())
    assert arena.extents == {}
    assert successor.base != arena.base
    assert mapped(successor) == card.registered
    assert holds_tokens(namespace, TOKENS, write_and_insert(namespace, TOKENS))
    client.close()


@pytest.mark.store(*pool_arguments(EXTENT_SLOTS))
def test_pages_stay_as_they_are_while_extents_arrive(fresh_store: RunningStore) -> None:
    """A thread that reads held rows all the time sees no change while memory grows."""
    client, namespace, arena = opened(fresh_store)
    pages = write_and_insert(namespace, TOKENS)
    expected = [page_bytes(TOKENS, number) for number in range(len(pages))]
    rows = arena.tensor().as_strided((arena.row_count, LAYOUT.page_bytes), (arena.row_bytes, 1))
    first, wrong, ended = len(arena.extents), list[int](), Event()
    with namespace.match(TOKENS) as match:
        held = arena.rows(match.pages.runs).tolist()

        def read() -> None:
            while not ended.is_set():
                wrong.extend(
                    row
                    for row, content in zip(held, expected, strict=True)
                    if rows[row].numpy().tobytes() != content
                )

        thread = Thread(target=read)
        thread.start()
        for tokens in PRESSURE:
            write_and_insert(namespace, tokens)
        ended.set()
        thread.join()
    assert wrong == []
    assert len(arena.extents) > first
    client.close()


def fill(namespace: Namespace, arena: AddressRange) -> None:
    """Writes prompts until the arena has all memory."""

    def full() -> bool:
        for tokens in PRESSURE:
            write_and_insert(namespace, tokens)
        return len(arena.extents) == EXTENTS

    assert wait_until(full)


@pytest.mark.store(*pool_arguments(EXTENT_SLOTS))
def test_places_of_retired_extents_are_used_again(fresh_store: RunningStore, card: Card) -> None:
    """An extent that another arena needed and gave back is a new one at the old place.

    It is registered once its predecessor at these addresses is not.
    """
    client, namespace, arena = opened(fresh_store, ON_DEVICE)
    whole = arena.view()
    fill(namespace, arena)
    before = first_rows(arena)
    for moved in range(1, 4):
        earlier = first_rows(arena)
        with Client(fresh_store.runtime_dir, CONFIG) as other:
            larger = other.namespace(NamespaceIdentity(b"larger"), LARGER)
            assert larger.wait_open(LIMIT), larger.failure
            beside = larger.address_range
            assert beside is not None
            assert beside.row_bytes == 2 * arena.row_bytes
            assert len(arena.extents) == EXTENTS - 1
            kept = first_rows(arena)
            assert kept.items() < earlier.items()
        fill(namespace, arena)
        after = first_rows(arena)
        assert kept.items() < after.items()
        assert len(after.keys() - earlier.keys()) == 1
        assert sorted(after.values()) == sorted(before.values())
        assert card.calls.count("cuMemHostUnregister") == moved
        assert mapped(arena) == card.registered
    pages = write_and_insert(namespace, HELD)
    with namespace.match(HELD) as match:
        assert match.pages == pages
        for number, page in enumerate(pages):
            begin = arena.row(page) * arena.row_bytes
            assert whole[begin:][: LAYOUT.page_bytes] == page_bytes(HELD, number)
        with page_process(fresh_store.runtime_dir) as reader:
            assert len(reader.ask("stamps", HELD)) == len(pages)
    client.close()


def first_rows(arena: AddressRange) -> dict[int, int]:
    """Returns the first row of each mapped extent."""
    return {key: each.first_row for key, each in arena.extents.items()}


def test_without_the_setting_there_is_no_range(store: RunningStore) -> None:
    """By default a namespace has no range, and with the setting it has one once it is open."""
    client, namespace = open_client(store.runtime_dir)
    assert namespace.address_range is None
    client.close()
    other = Client(store.runtime_dir, CONFIG)
    assert other.namespace(IDENTITY, LAYOUT).address_range is None


def test_pages_by_rows_are_the_pages(store: RunningStore) -> None:
    """A row's bytes are those that the namespace has for the page."""
    client, namespace, _ = opened(store)
    pages = write_and_insert(namespace, TOKENS)
    by_row = RowPages(namespace)
    with namespace.match(TOKENS) as match:
        assert match.pages == pages
        for page in pages:
            assert by_row.page(page) == namespace.page(page)
    client.close()
