"""Pages of KV cache groups on the disk: what a match with windows brings back."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.core.tiers.group_reads import GroupRead
from kvstore.core.values.requests import (
    GroupInsert,
    GroupWindow,
    Match,
    MatchOptions,
    ReservationRequest,
    Sequence,
    SlotMoves,
)
from kvstore.core.values.slots import SlotState
from kvstore.service.page_io.loads.load_call import LoadTerms
from kvstore.service.serving_turn import ServingTurn
from kvstore_client.testing import wait_until
from stores.disk_store import LIMIT, PAGES, DiskStore, DiskStores, page_count

SPARE, TARGET = 5001, 5002
# Tokens a second that no disk is as fast as.
FASTEST = (1 << 32) - 1
# Of each position: the path's page, and those of groups 1 and 2.
KINDS = (0, 1, 2)


def content(store: DiskStore, group: int, position: int) -> bytes:
    """Returns the bytes of a page."""
    return bytes([50 + 10 * group + position]) * store.world.layout.page_bytes


def write(store: DiskStore, groups: dict[int, list[int]]) -> None:
    """Publishes a sequence with pages of groups, and waits until the disk has all of them."""
    pages = [(0, position) for position in range(PAGES)]
    pages += [(group, each) for group, positions in groups.items() for each in positions]
    request = ReservationRequest(SPARE, 0, len(pages))
    [grant] = store.world.store.reserve(store.caller, store.namespace_id, [request])
    slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
    contents = [content(store, *each) for each in pages]
    rows = list(zip(slots, map(memoryview, contents), strict=True))
    assert store.world.arenas.write_all(rows) == [None] * len(rows)
    sums = [xxh3_64_intdigest(each) for each in contents]
    inserts = [
        GroupInsert(
            group,
            positions,
            [pages.index((group, each)) for each in positions],
            [sums[pages.index((group, each))] for each in positions],
        )
        for group, positions in groups.items()
    ]
    sequence = Sequence(store.sequence(0).tokens[:-4])
    moves = SlotMoves(SPARE, range(PAGES), inserts)
    store.world.store.insert(store.caller, TARGET, sequence, checksums=sums[:PAGES], moves=moves)
    store.world.store.abort(store.caller, [SPARE, TARGET])
    store.settle()


def match(
    store: DiskStore, windows: dict[int, int], remaining: float | None = None, speed: int = 0
) -> Match:
    """Matches with windows and a prefill speed, compares every byte, and releases it."""
    pin_id = next(store._ids)
    asked = tuple(GroupWindow(*each) for each in windows.items())
    options = MatchOptions(pin_id, groups=asked, prefill_tokens_per_second=speed)
    sequence = store.sequence(0)
    found = store.world.store.match(store.caller, store.namespace_id, sequence, options, remaining)
    every = [(0, 0, found.runs), *((e.group, e.start_page, e.runs) for e in found.groups)]
    for group, start, runs in every:
        slots = [run.extent_id << 32 | index for run in runs for index in run.indexes]
        for position, slot in enumerate(slots, start=start):
            assert store.world.arenas.read(slot) == content(store, group, position)
    store.world.store.release(store.caller, [pin_id])
    store.world.check()
    return found


def test_windows_come_back_from_the_disk(stores: DiskStores) -> None:
    """A successor brings the path, and then the pages that the windows need at its end."""
    store = stores.open()
    write(store, {1: [0, 1], 2: [1]})
    later = stores.reopen(store, verify_rate=1.0)
    found = match(later, {1: 1, 2: 1})
    assert (page_count(found), [each.start_page for each in found.groups]) == (2, [1, 1])
    assert later.world.cache.counters.loaded_page_count == PAGES + 2
    found = match(later, {1: 2})
    assert [each.start_page for each in found.groups] == [0]
    assert later.world.cache.counters.loaded_page_count == PAGES + 3
    assert later.world.cache.counters.corrupt_page_count == 0


def test_a_window_that_the_disk_lacks_is_a_hole(stores: DiskStores) -> None:
    """Nothing is read for it, and the answer is that of memory."""
    store = stores.open()
    write(store, {1: [0, 1], 2: [0]})
    later = stores.reopen(store)
    assert page_count(match(later, {1: 1, 2: 1})) == 0
    assert later.world.cache.counters.loaded_page_count == PAGES
    assert page_count(match(later, {1: 1})) == 2
    assert later.world.cache.arenas[1].counts[SlotState.MOVING] == 0


def test_a_read_of_windows_outlives_its_caller(stores: DiskStores) -> None:
    """A caller whose time is over gets what memory has, and the next one all of it."""
    store = stores.open()
    write(store, {1: [1]})
    later = stores.reopen(store)
    assert page_count(match(later, {})) == 2
    later.slab.closed = True
    assert page_count(match(later, {1: 1}, 0.001)) == 0
    assert len(later.world.cache.group_reads) == 1
    later.slab.let_go()
    assert page_count(match(later, {1: 1}, LIMIT)) == 2
    assert not later.world.cache.group_reads


def test_others_serve_while_a_read_of_windows_waits_for_the_disk_s_tables(
    stores: DiskStores,
) -> None:
    """Another thread may have the tables for long, so a call passes its turn on before it reads."""
    store = stores.open()
    write(store, {1: [1]})
    later, turn = stores.reopen(store), ServingTurn()
    assert page_count(match(later, {})) == 2

    def in_turn() -> Match:
        with turn:
            return match(later, {1: 1})

    def have_turn() -> bool:
        with turn:
            return turn.is_mine

    with ThreadPoolExecutor(2) as threads:
        with later.slab._tables.mutex:
            begun = threads.submit(in_turn)
            assert wait_until(lambda: bool(later.world.cache.group_reads))
            assert threads.submit(have_turn).result(LIMIT)
        assert page_count(begun.result(LIMIT)) == 2


def test_callers_share_a_read_of_windows(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is read once at a time. A caller that waited then reads what is left of its own."""
    store = stores.open()
    write(store, {1: [0, 1]})
    later = stores.reopen(store)
    assert page_count(match(later, {})) == 2
    later.slab.closed = True
    for _ in range(2):
        assert page_count(match(later, {1: 1}, 0.001)) == 0
    assert (len(later.world.cache.group_reads), len(later.slab.waiting)) == (1, 1)
    begin, asked = later.world.cache.begin_group_read, Event()

    def begin_and_tell(*args: Any) -> GroupRead | None:  # noqa: ANN401  # the core's
        read = begin(*args)
        asked.set()
        return read

    monkeypatch.setattr(later.world.cache, "begin_group_read", begin_and_tell)
    found: list[Match] = []
    thread = Thread(target=lambda: found.append(match(later, {1: 2})), daemon=True)
    thread.start()
    assert asked.wait(LIMIT)
    later.slab.let_go()
    thread.join(LIMIT)
    assert [page_count(each) for each in found] == [2]
    assert later.world.cache.counters.loaded_page_count == PAGES + 2
    assert not later.world.cache.group_reads


def test_windows_that_are_slower_to_load_than_to_compute_are_not_loaded(
    stores: DiskStores,
) -> None:
    """Their pages are on the disk all the same, and others load them."""
    store = stores.open()
    write(store, {1: [1]})
    later = stores.reopen(store)
    assert page_count(match(later, {})) == 2
    assert page_count(match(later, {1: 1}, LIMIT, FASTEST)) == 0
    assert later.world.store.tier3.use().declined_count == 1
    assert page_count(match(later, {1: 1}, LIMIT)) == 2


def test_an_error_about_windows_leaves_what_is_known_of_the_path(stores: DiskStores) -> None:
    """The answer still says how many tokens of the path tier 3 has."""
    store = stores.open()
    write(store, {})
    later = stores.reopen(store)
    later.slab.closed = True
    twice = MatchOptions(1, groups=(GroupWindow(1, 1), GroupWindow(1, 2)))
    asked = later.caller, later.namespace_id, later.sequence(0), twice
    terms = LoadTerms.of(0.001, later.world.clock())
    assert later.world.store.tier3.loader.load(*asked, terms).end == 8
    later.slab.let_go()


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_removed_while_it_is_read_does_not_return(
    stores: DiskStores, *, whole: bool
) -> None:
    """A removal of the path, or of any page of the namespace, ends the read without a page."""
    store = stores.open()
    write(store, {1: [1]})
    later = stores.reopen(store)
    assert page_count(match(later, {})) == 2
    later.slab.closed = True
    match(later, {1: 1}, 0.001)
    tokens = later.sequence(0).tokens[: (PAGES if whole else 2 * PAGES) * 8]
    later.world.store.evict_prefix(later.caller.identity, later.namespace_id, tokens)
    later.slab.let_go()
    later.tier.close()
    assert later.world.cache.counters.loaded_page_count == PAGES
    later.world.check()


def test_a_full_memory_reads_no_windows(stores: DiskStores) -> None:
    """Without slots for all of its pages nothing of a window is read."""
    store = stores.open(slots=4)
    write(store, {1: [0, 1]})
    later = stores.reopen(store, slots=4)
    assert page_count(match(later, {})) == 2
    request = ReservationRequest(SPARE, 0, 1)
    later.world.store.reserve(later.caller, later.namespace_id, [request])
    assert page_count(match(later, {1: 2})) == 0
    assert not later.world.cache.group_reads
    later.world.store.abort(later.caller, [SPARE])
    assert page_count(match(later, {1: 2})) == 2
