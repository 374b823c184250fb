"""The parts of SGLang's linker on a real store: saves, lookups and loads of a device pool."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore_client import StoreBudget
from kvstore_client.engines.store_access import StoreAccess
from kvstore_client.testing import RunningStore, wait_until
from kvstore_client.values.packed_tokens import ONE_MORE, pack_tokens
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.engine.salts import RequestSalts
from sglang_rig.pools import PAGE, WINDOW_PAGES, page_of, plain_pages, plain_pool, wipe
from sglang_rig.rank import (
    IDENTITY,
    LIMIT,
    PAGE_BYTES,
    PAGES,
    PlainRank,
    WindowRank,
    rank_of,
    tokens_of,
    window_rank_of,
)

# One extent of 32 pages.
pytestmark = pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")


@pytest.fixture
def engine(fresh_store: RunningStore) -> Iterator[PlainRank]:
    """Provides an engine on a store of its own."""
    made = rank_of(fresh_store.runtime_dir)
    yield made
    made.close()


def test_another_engine_loads_what_one_saved(engine: PlainRank, fresh_store: RunningStore) -> None:
    """The pages land as they were, in other pages of another engine's pool."""
    tokens = tokens_of(0, 5)
    before = [page_of(engine.pool, number) for number in range(PAGES)]
    engine.save(tokens[: 3 * PAGE], [4, 5, 9])
    engine.save(tokens, [4, 5, 9, 1, 0])
    assert [engine.saved(), engine.saved()] == [True, True]
    assert engine.counts["stored_tokens"] == 5 * PAGE
    other = rank_of(fresh_store.runtime_dir)
    wipe(other.pool)
    assert other.find(tokens, 1) == 4
    assert other.load(1, [7, 8, 2, 15])
    for target, source in zip([7, 8, 2, 15], [5, 9, 1, 0], strict=True):
        assert torch.equal(page_of(other.pool, target), before[source])
    assert other.counts["loaded_tokens_1"] == 4 * PAGE
    other.close()


def test_only_missing_pages_are_copied(engine: PlainRank) -> None:
    """A second save of the same sequence copies nothing, and of a longer one the rest."""
    tokens = tokens_of(0, 4)
    for numbers in ([0, 1, 2, 3], [4, 5, 6, 7]):
        engine.save(tokens, numbers)
        assert engine.saved()
    assert engine.counts["save_bytes"] == 4 * PAGE_BYTES
    longer = tokens + tokens_of(900, 2)
    engine.save(longer, [0, 1, 2, 3, 10, 11])
    assert engine.saved()
    assert engine.counts["save_bytes"] == 6 * PAGE_BYTES


def test_a_save_waits_for_an_engine_that_saves_the_same(engine: PlainRank) -> None:
    """It copies nothing if the other engine ends, though it had begun before."""
    tokens = tokens_of(0, 2)
    held = engine.acquired(tokens)
    assert held.reservation is not None
    engine.save(tokens, [3, 4])
    for place in held.reservation.pages:
        engine.access.memory.page_tensor(place).fill_(7)
    held.reservation.insert(tokens, position=0)
    held.release()
    assert engine.saved()
    assert engine.counts["save_bytes"] in (0, 2 * PAGE_BYTES)
    match = engine.access.memory.match(pack_tokens(tokens) + ONE_MORE)
    with match:
        assert (engine.access.memory.page_tensor(match.pages[0]) == 7).all()


def test_a_save_takes_over_from_an_engine_that_hangs(engine: PlainRank) -> None:
    """After ``RETRY_SECONDS`` the pages are copied by whoever has them."""
    tokens = tokens_of(0, 2)
    held = engine.acquired(tokens)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.counts["save_bytes"] == 2 * PAGE_BYTES
    held.release()


def test_a_new_salt_is_saved_and_found(engine: PlainRank) -> None:
    """The first save of a salt waits until its namespace is open, and so does a lookup."""
    salt, tokens = RequestSalts("").of("another adapter", None), tokens_of(0, 2)
    engine.save(tokens, [3, 4], salt)
    assert engine.saved()
    assert engine.find(tokens) == 0
    assert engine.find(tokens, salt=salt) == 2
    engine.lookups.drop("request")
    unknown = RequestSalts("").of("a third one", None)
    found = EngineStore(engine.access).match(unknown, pack_tokens(tokens), StoreBudget(LIMIT))
    assert found.failure is None


def test_a_full_store_takes_the_first_pages_and_the_rest_later(engine: PlainRank) -> None:
    """A save tries again while the store has no room; what fits is in the store at once."""
    filler = engine.access.memory.reserve(start_page=0, page_count=30)
    tokens = tokens_of(0, 4)
    engine.save(tokens, [0, 1, 2, 3])
    assert wait_until(lambda: engine.access.memory.peek(pack_tokens(tokens) + ONE_MORE) > 0, LIMIT)
    filler.abort()
    assert engine.saved()
    assert engine.counts["stored_tokens"] == 4 * PAGE
    assert engine.counts["save_bytes"] == 4 * PAGE_BYTES


def test_without_a_store_nothing_is_saved_or_found(
    engine: PlainRank, fresh_store: RunningStore
) -> None:
    """The end of the store is a miss, and its return needs no restart of the engine."""
    tokens = tokens_of(0, 2)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.find(tokens) == 2
    fresh_store.kill()
    assert wait_until(lambda: not engine.access.usable, LIMIT)
    engine.save(tokens_of(500, 2), [3, 4])
    assert not engine.saved()
    assert engine.lookups.find("other", b"", tokens, 0) == 0
    # What the lookup promised before still lands: its memory stays mapped.
    wipe(engine.pool)
    assert engine.load(0, [1, 2])
    assert page_of(engine.pool, 1).any()
    fresh_store.start()
    assert wait_until(lambda: engine.access.usable and engine.access.memory.failure is None, LIMIT)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.lookups.find("again", b"", tokens, 0) == 2


def test_pins_of_an_ended_session_do_not_keep_the_engine_from_the_next_one(
    engine: PlainRank, fresh_store: RunningStore
) -> None:
    """Waiting requests drop the pages of a store that was killed."""
    tokens = tokens_of(0, 2)
    engine.save(tokens, [3, 4])
    assert engine.saved()
    assert engine.find(tokens) == 2
    fresh_store.kill()
    fresh_store.start()

    def usable() -> bool:
        engine.lookups.drop_ended()
        return engine.access.usable

    assert wait_until(lambda: not engine.access.usable, LIMIT)
    assert wait_until(usable, LIMIT)
    assert len(engine.lookups) == 0


def test_a_reset_drops_what_waits(engine: PlainRank) -> None:
    """After a reset no thread reads the pool, and no result of before is left."""
    held = engine.acquired(tokens_of(0, 2))
    engine.save(tokens_of(0, 2), [3, 4])
    engine.save(tokens_of(500, 2), [3, 4])
    engine.saves.reset()
    assert engine.saves.completed_count == 0
    held.release()
    engine.save(tokens_of(700, 2), [3, 4])
    assert engine.saved()


def test_the_start_of_an_engine_waits_for_its_store(
    fresh_store: RunningStore, tmp_path: Path
) -> None:
    """Its first request finds what is there; an absent store delays no start."""
    layout = plain_pages(plain_pool(1)).layout
    for folder, there in ((fresh_store.runtime_dir, True), (tmp_path, False)):
        access = StoreAccess(str(folder), IDENTITY, layout, name="tiny", call_timeout=LIMIT)
        assert access.wait_attached(LIMIT) is there
        assert access.tried
        assert (access.memory.failure is None) is there
        access.close()


@pytest.fixture
def windowed(fresh_store: RunningStore) -> Iterator[WindowRank]:
    """Provides an engine of a model with sliding windows, whose store has 48 slots."""
    made = window_rank_of(fresh_store.runtime_dir)
    yield made
    made.close()


@pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")
def test_another_engine_loads_windows_with_their_path(
    windowed: WindowRank, fresh_store: RunningStore
) -> None:
    """A hit ends where all windows are whole, and both pools have the pages as they were."""
    tokens = tokens_of(0, 4)
    path = [page_of(windowed.pool.full_kv_pool, number) for number in range(PAGES)]
    windows = [page_of(windowed.pool.swa_kv_pool, number) for number in range(PAGES)]
    windowed.save(tokens[: 3 * PAGE], [4, 5, 9], hanging=[2, 3])
    windowed.save(tokens, [4, 5, 9, 1])
    assert [windowed.saved(), windowed.saved()] == [True, True]
    other = window_rank_of(fresh_store.runtime_dir)
    for pool in (other.pool.full_kv_pool, other.pool.swa_kv_pool):
        wipe(pool)
    # The fourth page has no window, so no request can go on after it.
    assert other.find(tokens) == 3
    assert other.load(0, [7, 8, 2], windows=[14, 6])
    for target, source in zip([7, 8, 2], [4, 5, 9], strict=True):
        assert torch.equal(page_of(other.pool.full_kv_pool, target), path[source])
    for target, source in zip([14, 6], [2, 3], strict=True):
        assert torch.equal(page_of(other.pool.swa_kv_pool, target), windows[source])
    assert not page_of(other.pool.swa_kv_pool, 7).any()
    other.close()


@pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")
def test_windows_that_the_device_has_are_not_needed(windowed: WindowRank) -> None:
    """A hit behind two pages of the device needs the window of its own pages alone."""
    tokens = tokens_of(0, 3)
    windowed.save(tokens, [4, 5, 9], hanging=[2])
    assert windowed.saved()
    assert windowed.find(tokens) == 0
    assert windowed.find(tokens, device_pages=2) == 1
    before = page_of(windowed.pool.swa_kv_pool, 2)
    assert windowed.load(2, [1], windows=[8])
    assert torch.equal(page_of(windowed.pool.swa_kv_pool, 8), before)


@pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")
def test_windows_that_are_stored_are_not_copied_again(windowed: WindowRank) -> None:
    """A tail that was loaded is offered again, and costs a match."""
    tokens = tokens_of(0, 3)
    for _ in range(2):
        windowed.save(tokens, [4, 5, 9], hanging=[2, 3])
        assert windowed.saved()
    copied = windowed.counts["save_bytes"]
    windowed.save(tokens, [4, 5, 9], hanging=[2, 3])
    assert windowed.saved()
    assert windowed.counts["save_bytes"] == copied > 0


@pytest.mark.store("--tier1-bytes", "48KiB", "--extent-bytes", "48KiB")
def test_windows_without_room_are_saved_once_there_is_some(windowed: WindowRank) -> None:
    """The path is saved first, and no request finds it without its windows."""
    tokens = tokens_of(0, 2)
    memory = windowed.access.memory
    free = 48 * 1024 // memory.layout.page_bytes - 3
    filler = memory.reserve(start_page=0, page_count=free)
    windowed.save(tokens, [4, 5], hanging=[2, 3])
    assert wait_until(lambda: memory.peek(pack_tokens(tokens) + ONE_MORE) > 0, LIMIT)
    assert windowed.find(tokens) == 0
    filler.abort()
    assert windowed.saved()
    assert windowed.lookups.find("later", b"", tokens, 0) == 2


PATH_PAGES = 4
NODES = st.lists(
    st.tuples(st.integers(1, PATH_PAGES), st.integers(0, PATH_PAGES)), min_size=1, max_size=4
)


@pytest.mark.store("--tier1-bytes", "96KiB", "--extent-bytes", "96KiB")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NODES, st.integers(0, PATH_PAGES))
def test_a_hit_ends_at_the_deepest_page_with_a_whole_window(
    windowed: WindowRank, nodes: list[tuple[int, int]], device_pages: int
) -> None:
    """Whatever nodes were saved, and in whatever order: as a set of pages says."""
    # Each example has a namespace of its own.
    tokens, stored, salt = tokens_of(0, PATH_PAGES), set[int](), uuid4()
    for end, windows in nodes:
        hanging = list(range(min(windows, end)))
        windowed.save(tokens[: end * PAGE], list(range(end)), salt.bytes, hanging=hanging)
        assert windowed.saved()
        stored |= set(range(end - len(hanging), end))
    deepest = max(end for end, _ in nodes)
    whole = [
        end
        for end in range(deepest + 1)
        if all(page in stored for page in range(max(device_pages, end - WINDOW_PAGES), end))
    ]
    expected = max(0, max(whole) - device_pages)
    assert windowed.find(tokens, device_pages, salt.bytes) == expected
    windowed.lookups.drop("request")
