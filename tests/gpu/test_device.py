"""Pages in the memory of a GPU: a real store, real workers, real CUDA."""

from collections.abc import Callable

import pytest
from device_pages import page_count, prompt
from device_scenarios import (
    SCENARIOS,
    TOKENS,
    memory_goes_with_its_last_user,
    slots,
    store_and_workers,
)
from device_tiers import pages_go_down_and_come_back

from kvstore_client.testing import wait_until

GIB = 1 << 30
OTHERS = prompt(4, 5)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_device_pages(scenario: Callable[[str], None]) -> None:
    """Each scenario holds on the device as torch and cupy see it."""
    scenario("cuda")


def test_pages_go_down_and_come_back() -> None:
    """What went to tier 2 is on the device again as it is matched, with its bytes."""
    pages_go_down_and_come_back("cuda")


def test_memory_goes_with_its_last_user() -> None:
    """Two gibibytes of a dead store are there until the last worker that maps them lets go."""
    memory_goes_with_its_last_user(2 * GIB, GIB)


def test_a_release_waits_for_the_device() -> None:
    """Work that was under way on any stream is done when a release returns, with no wait given."""
    with store_and_workers(1) as (_, (worker,)):
        worker.ask("write", TOKENS)
        worker.ask("hold", TOKENS)
        assert worker.ask("release_with_work_under_way")


def test_a_killed_worker_s_kernels_write_nothing_more() -> None:
    """Slots that a killed worker's kernels wrote are another's, and stay as that one wrote them."""
    with store_and_workers(2) as (store, (one, two)):
        one.ask("acquire", TOKENS)
        theirs = set(one.ask("reserved"))
        one.ask("write_without_end")
        one.kill()
        assert wait_until(lambda: slots(store, "reserved") == 0)
        assert two.ask("acquire", OTHERS) == 0
        assert theirs & set(two.ask("reserved"))
        assert len(two.ask("insert")) == page_count(OTHERS)
        two.ask("give_up")
        assert two.ask("hold", OTHERS) == len(OTHERS) - 1
        assert all(two.ask("reads_right") for _ in range(500))
        two.ask("release")
