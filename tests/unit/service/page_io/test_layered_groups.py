"""Pages of KV cache groups over two page stores: all that a window needs, or none."""

from collections.abc import Iterator

import pytest
from xxhash import xxh3_64_intdigest

from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.page_hash import page_digest
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
from kvstore.service.page_io.loads.load_source import MOST_LOOKING
from kvstore.storage.page_store import PageKey, StoreState
from stores.layered_store import LayeredStore

PAGES = 4
GROUP = 1
SPARE, TARGET = 90_001, 90_002
# Tokens a second that nothing is as fast as.
FASTEST = (1 << 32) - 1


@pytest.fixture
def store() -> Iterator[LayeredStore]:
    """Provides a store whose memory has a path, and whose page stores have its group's pages."""
    made = LayeredStore(slots=16)
    write(made)
    made.match(PAGES)
    yield made
    made.close()


def content(position: int) -> bytes:
    """Returns the bytes of a page of the group."""
    return bytes([100 + position]) * 256


def write(store: LayeredStore) -> None:
    """Publishes a path with a page of the group for each page; both page stores get all of it."""
    request = ReservationRequest(SPARE, 0, 2 * PAGES)
    [grant] = store.store.reserve(store.caller, store.namespace_id, [request])
    slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
    contents = [*map(store.content, range(PAGES)), *map(content, range(PAGES))]
    rows = list(zip(slots, map(memoryview, contents), strict=True))
    assert store.world.arenas.write_all(rows) == [None] * len(rows)
    sums = [xxh3_64_intdigest(each) for each in contents]
    positions = list(range(PAGES))
    offsets = [PAGES + each for each in positions]
    insert = GroupInsert(GROUP, positions, offsets, sums[PAGES:])
    sequence = Sequence(store.sequence(PAGES).tokens[:-4])
    moves = SlotMoves(SPARE, range(PAGES), [insert])
    store.store.insert(store.caller, TARGET, sequence, checksums=sums[:PAGES], moves=moves)
    store.store.abort(store.caller, [SPARE, TARGET])
    store.keep()
    store.evict()


def keys(store: LayeredStore) -> list[PageKey]:
    """Returns the keys of the group's pages."""
    marker = group_marker(GROUP, store.namespace.index.width)
    path = store.keys(PAGES)
    return [PageKey(store.digest, page_digest(each.digest, marker)) for each in path]


def match(store: LayeredStore, window: int, *, speed: int = 0, remaining: float = 30.0) -> Match:
    """Matches with a window, and compares the group's bytes."""
    pin_id = next(store.ids)
    options = MatchOptions(
        pin_id, groups=(GroupWindow(GROUP, window),), prefill_tokens_per_second=speed
    )
    asked = store.caller, store.namespace_id, store.sequence(PAGES), options
    found = store.store.match(*asked, remaining)
    for each in found.groups:
        slots = [run.extent_id << 32 | index for run in each.runs for index in run.indexes]
        for position, slot in enumerate(slots, start=each.start_page):
            assert store.world.arenas.read(slot) == content(position)
    store.store.release(store.caller, [pin_id])
    return found


@pytest.mark.parametrize("near", [[], [3], [0, 2], [0, 1, 2, 3]])
def test_each_page_comes_from_a_page_store_that_has_it(
    store: LayeredStore, near: list[int]
) -> None:
    """Those that the disk lacks come from the shared one, together."""
    for position, key in enumerate(keys(store)):
        if position not in near:
            store.near.evict(key)
        else:
            store.far.lose(key)
    assert store.page_count(match(store, PAGES)) == PAGES
    before = store.far.use().counters.read_pages, store.near.use().counters.read_pages
    assert store.page_count(match(store, PAGES)) == PAGES
    assert (store.far.use().counters.read_pages, store.near.use().counters.read_pages) == before


def test_a_page_that_no_page_store_has_keeps_all_of_them_back(store: LayeredStore) -> None:
    """Nothing is read, and the match ends where memory has all of a window."""
    store.near.evict(keys(store)[1])
    store.far.lose(keys(store)[1])
    assert store.page_count(match(store, PAGES)) == 0
    assert store.namespace.arena.counts[SlotState.MOVING] == 0
    assert store.page_count(match(store, 2)) == PAGES


def test_the_shared_page_store_is_asked_with_the_same_care(store: LayeredStore) -> None:
    """Not while it is away, without a place, too slowly, or after the call's time."""
    for key in keys(store):
        store.near.evict(key)
    store.far.state = StoreState.AWAY
    assert store.page_count(match(store, 1)) == 0
    store.far.state = StoreState.OPEN
    looks = len(store.far.looks)
    assert store.page_count(match(store, 1, remaining=0.0)) == 0
    looking = store.loader._sources[1].looking
    for _ in range(MOST_LOOKING):
        assert looking.take("uid-1", is_alone=True)
    assert store.page_count(match(store, 1)) == 0
    assert len(store.far.looks) == looks
    looking.give_back("uid-1")
    assert store.page_count(match(store, 1)) == PAGES


def test_a_part_that_is_not_worth_its_time_keeps_all_back(store: LayeredStore) -> None:
    """A window is of no use without each of its pages."""
    for key in keys(store)[:2]:
        store.near.evict(key)
    store.loader._sources[1].observe(1, 1.0)
    assert store.page_count(match(store, PAGES, speed=FASTEST)) == 0
    assert store.page_count(match(store, PAGES)) == PAGES


def test_a_late_part_keeps_the_others_waiting(store: LayeredStore) -> None:
    """The call goes on without them, and the next one finds all."""
    for key in keys(store)[:2]:
        store.near.evict(key)
    store.far.held = True
    assert store.page_count(match(store, PAGES, remaining=0.04)) == 0
    assert store.namespace.arena.counts[SlotState.MOVING] == PAGES
    store.far.let_go()
    assert store.page_count(match(store, PAGES)) == PAGES


def test_page_stores_that_go_away_during_a_match_are_no_error(store: LayeredStore) -> None:
    """The search for the path's pages ends with none left to ask for those of the group."""
    store.near.state = StoreState.AWAY
    store.evict()

    def go_away(_: float) -> None:
        store.far.state = StoreState.AWAY

    store.far.before_look = go_away
    assert store.page_count(match(store, 1)) <= PAGES
    assert store.far.state is StoreState.AWAY
