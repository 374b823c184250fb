"""Pages in the memory of a GPU: a real store, real workers, real CUDA."""

from collections.abc import Callable

import pytest

from device.kills import KILLS, a_killed_worker_s_kernels_write_nothing_more
from device.orders import ORDERS
from device.scenarios import SCENARIOS, TOKENS, memory_goes_with_its_last_user, store_and_workers
from device.tiers import pages_go_down_and_come_back

GIB = 1 << 30


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_device_pages(scenario: Callable[[str], None]) -> None:
    """Each scenario holds on the device as torch and cupy see it."""
    scenario("cuda")


def test_pages_go_down_and_come_back() -> None:
    """Pages that went to tier 2 are on the device again when they are matched, with their bytes."""
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


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a forked child"])
def test_a_killed_worker_s_kernels_write_nothing_more(*, with_child: bool) -> None:
    """Its slots go to another worker once its kernels ended, even if its child is alive."""
    a_killed_worker_s_kernels_write_nothing_more("cuda", with_child=with_child)


@pytest.mark.parametrize("scenario", [*KILLS, *ORDERS], ids=lambda each: each.__name__)
def test_device_orders(scenario: Callable[[str], None]) -> None:
    """Each of these orders also holds on the device."""
    scenario("cuda")
