"""Stores and workers on a device made of files. Everything except CUDA itself is real."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from device.kills import KILLS, a_killed_worker_s_kernels_write_nothing_more
from device.orders import ORDERS
from device.scenarios import SCENARIOS, a_view_outlives_its_store, memory_goes_with_its_last_user
from device.tiers import pages_go_down_and_come_back
from kvstore_client.testing import RunningStore, running_store, wait_until

SUPPORT = Path(__file__).parents[1] / "support"
MIB = 1 << 20
LIMIT = 60.0

pytestmark = pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every process that is started a cupy whose device is a folder."""
    folders = [str(SUPPORT / "shared_card"), str(SUPPORT)]
    monkeypatch.setenv("KVSTORE_TEST_CARD", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, *sys.path]))
    monkeypatch.syspath_prepend(folders[0])


@pytest.mark.parametrize("scenario", [*SCENARIOS, *KILLS, *ORDERS], ids=lambda each: each.__name__)
def test_device_pages(scenario: Callable[[str], None]) -> None:
    """The device scenarios pass in all our code above CUDA, on a stand-in of the device."""
    scenario("cpu")


@pytest.mark.parametrize("with_child", [False, True], ids=["alone", "with a forked child"])
def test_a_killed_worker_writes_nothing_more(*, with_child: bool) -> None:
    """A killed worker's slots are reused once it is dead, even if its forked child is alive."""
    a_killed_worker_s_kernels_write_nothing_more("cpu", with_child=with_child)


def test_pages_go_down_and_come_back() -> None:
    """Pages that were demoted to tier 2 are back on the device, with their bytes, after a match."""
    pages_go_down_and_come_back("cpu")


def test_a_successor_s_equal_handle_is_not_taken_for_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A successor with the same device handles is mapped only after views of the old store end."""
    monkeypatch.setenv("KVSTORE_TEST_CARD_PREFIX", "store")
    a_view_outlives_its_store("cpu")


@contextmanager
def occupied(card: Path, size: int) -> Iterator[None]:
    """Occupies that much of the device's memory as another user of it."""
    with (card / "somebody").open("wb") as file:
        file.truncate(size)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[tuple[RunningStore, "Future[None]", ExitStack]]:
    """Provides a server that waits for device memory, which another process occupies."""
    arguments = ("--device", "cuda:0", "--tier1-bytes", "40MiB")
    with (
        running_store(*arguments, start=False) as store,
        ExitStack() as others,
        ThreadPoolExecutor(1) as pool,
    ):
        others.enter_context(occupied(tmp_path, 32 * MIB))
        started = pool.submit(store.start)
        assert wait_until(lambda: "device_memory_awaited" in store.log)
        yield store, started, others


def test_a_server_waits_for_its_device(
    starting: tuple[RunningStore, "Future[None]", ExitStack],
) -> None:
    """A server serves only once the device has room for its budget."""
    _, started, others = starting
    assert not started.done()
    others.close()
    started.result(LIMIT)


def test_a_server_that_waits_can_be_stopped(
    starting: tuple[RunningStore, "Future[None]", ExitStack],
) -> None:
    """A signal ends a server that waits for memory, with status 1 and the missing amount."""
    store, started, _ = starting
    os.kill(store.pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match=r"status 1(.|\n)*33554432 bytes left of 67108864"):
        started.result(LIMIT)


@pytest.mark.parametrize(("reserve", "at_once"), [("all", 40 * MIB), ("grow", 0)])
def test_a_server_has_its_budget_before_it_serves(
    tmp_path: Path, reserve: str, at_once: int
) -> None:
    """With --tier1-reserve all, a server has its whole budget before it serves."""
    arguments = ("--device", "cuda:0", "--tier1-bytes", "40MiB", "--tier1-reserve", reserve)
    with running_store(*arguments):
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) == at_once


def test_memory_goes_with_its_last_user() -> None:
    """The memory of a dead store's extent stays until the last worker unmaps it."""
    memory_goes_with_its_last_user(16 * MIB, 0)
