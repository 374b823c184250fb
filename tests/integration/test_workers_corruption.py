"""A worker overwrites a cached page, and the next worker does not get it."""

from collections.abc import Iterator

import pytest

from kvstore.storage.arenas import POISON
from kvstore_client import Client, ClientConfig
from pages.stamped_pages import IDENTITY, LAYOUT, page_count, prompt
from processes.worker_fleet import POOL_SLOTS, Fleet, Slots, running_fleet

TOKENS = prompt(1)
PAGES = page_count(TOKENS)
WIDTH = LAYOUT.page_tokens
LIMIT = 30.0


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Provides workers on a store of 64 pages that verifies matches and poisons freed slots."""
    with running_fleet("--debug-poison-freed-slots", verify_rate=1.0) as running:
        yield running


def test_a_page_that_a_worker_wrote_over_is_computed_again(fleet: Fleet) -> None:
    """A page with a flipped bit is not matched, is counted and logged, and is computed again."""
    writer, vandal = fleet.spawn("writer"), fleet.spawn("vandal")
    writer.ask("write", TOKENS)
    vandal.ask("match", "held", TOKENS)
    vandal.ask("corrupt", "held", 2, LAYOUT.page_bytes - 1)
    assert writer.ask("peek", TOKENS) == PAGES * WIDTH
    # What is right of it is reused, the rest written anew, by others than the first too.
    assert len(writer.ask("stamps", TOKENS)) == 2
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, cached=2, detached=PAGES - 2)
    assert writer.ask("write", TOKENS)["published"] == PAGES - 2
    assert len(vandal.ask("stamps", TOKENS)) == PAGES
    counters = fleet.stats().counters
    assert counters.corrupt_page_count == 1
    assert counters.removed_page_count == PAGES - 2
    assert counters.verified_page_count >= 3 * PAGES
    [line] = [each for each in fleet.store.log.splitlines() if "page_corrupt" in each]
    assert "page_position=2" in line
    assert "slot=2" in line
    assert str(TOKENS[2 * WIDTH]) not in line
    vandal.ask("release", "held")
    assert fleet.slots() == Slots(POOL_SLOTS - PAGES, cached=PAGES)


def test_who_reads_what_it_gave_back_sees_poison(fleet: Fleet) -> None:
    """A worker that reads a released page finds poison once the slot is free."""
    writer = fleet.spawn("writer")
    writer.ask("write", TOKENS)
    with Client(fleet.store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(LIMIT), namespace.failure
        with namespace.match(TOKENS) as match:
            late = [namespace.page(each) for each in match.pages]
        assert client.flush(LIMIT)
        assert all(len(set(each)) > 1 for each in late)
        fleet.evict(TOKENS[:WIDTH])
        assert all(bytes(each) == bytes([POISON]) * LAYOUT.page_bytes for each in late)
        del late
