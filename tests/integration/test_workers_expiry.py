"""A living worker past its TTL keeps its pages and slots until it returns or dies."""

import signal

import pytest

from kvstore_client import PageRef, errors
from kvstore_client.testing import wait_until
from pages.stamped_pages import PART_PAGES, page_count, prompt
from processes.worker_fleet import ACTIVE, EXPIRED, POOL_SLOTS, Fleet, Slots
from processes.worker_process import WorkerProcess

TTL = 5.0
CACHED = prompt(1, 2)
CACHED_PAGES = page_count(CACHED)
# What the worker is about to add to it when it is stopped.
LONGER = prompt(1, 2, 3)
PRESSURE = [prompt(4, number) for number in range(40)]


def stop_past_its_ttl(fleet: Fleet) -> tuple[WorkerProcess, set[PageRef]]:
    """Returns a stopped worker past its TTL, with a match, and the slots that it has written."""
    worker = fleet.spawn("stopped", ttl=TTL)
    worker.ask("write", CACHED)
    assert worker.ask("acquire", "open", LONGER) == len(CACHED) - 1
    places = set(worker.ask("fill", "open"))
    assert len(places) == PART_PAGES
    assert fleet.slots() == Slots(POOL_SLOTS - CACHED_PAGES - PART_PAGES, PART_PAGES, CACHED_PAGES)
    worker.signal(signal.SIGSTOP)
    assert wait_until(lambda: [each.state for each in fleet.leases("stopped")] == [EXPIRED])
    return worker, places


def test_a_living_holder_past_its_ttl_loses_nothing(fleet: Fleet) -> None:
    """A living worker past its TTL keeps slots and pins, and continues with a new lease."""
    other = fleet.spawn("other")
    stopped, places = stop_past_its_ttl(fleet)
    (lease,) = fleet.leases("stopped")
    assert (lease.quarantined_slot_count, lease.reserved_slot_count) == (PART_PAGES, 0)
    assert (lease.pin_count, lease.reservation_count) == (1, 1)
    assert fleet.stats().expired_lease_count == 1

    # Others match its pages, fill the pool three times over, and never get its slots.
    written = other.ask("stamps", CACHED)
    assert len(written) == CACHED_PAGES
    assert other.ask("churn", PRESSURE, 1)["published"] > 2 * POOL_SLOTS
    assert other.ask("stamps", CACHED) == written
    assert other.ask("peek", LONGER) == len(CACHED) - 1
    assert not places & other.ask("granted")
    slots = fleet.slots()
    assert (slots.quarantined, slots.reserved) == (PART_PAGES, 0)

    # Back again it finds everything as it was, and may publish nothing of it.
    stopped.signal(signal.SIGCONT)
    assert stopped.ask("check", "open") == written
    assert stopped.ask("own_pages_are_untouched", "open")
    with pytest.raises((errors.LeaseExpired, errors.StoreUnavailable)):
        stopped.ask("insert", "open", CACHED_PAGES, CACHED_PAGES + PART_PAGES)
    assert other.ask("peek", LONGER) == len(CACHED) - 1
    assert wait_until(lambda: stopped.ask("epoch") is None)
    assert fleet.slots().quarantined == PART_PAGES

    # Its release ends the quarantine, and it has a lease again without being told.
    stopped.ask("release", "open")
    assert wait_until(lambda: [each.state for each in fleet.leases("stopped")] == [ACTIVE])
    assert wait_until(lambda: stopped.ask("epoch") == other.ask("epoch"))
    assert fleet.settled()
    assert fleet.stats().expired_lease_count == 0
    assert wait_until(lambda: stopped.ask("write", LONGER)["published"] >= PART_PAGES)
    assert len(other.ask("stamps", LONGER)) == CACHED_PAGES + PART_PAGES


def test_a_quarantine_ends_with_its_holder(fleet: Fleet) -> None:
    """A worker killed while stopped past its TTL loses its quarantined slots and its pins."""
    other = fleet.spawn("other")
    stopped, _ = stop_past_its_ttl(fleet)
    assert fleet.slots().quarantined == PART_PAGES
    stopped.signal(signal.SIGKILL)
    assert stopped.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.slots() == Slots(POOL_SLOTS - CACHED_PAGES, 0, CACHED_PAGES))
    assert (fleet.leases("stopped"), fleet.stats().pin_count) == ([], 0)
    assert other.ask("peek", LONGER) == len(CACHED) - 1
    other.ask("churn", PRESSURE, 1)
    assert other.ask("peek", CACHED) == 0
