"""Workers that are killed while a device works for them: real stores, real processes.

``torch_device`` is as in ``device_scenarios``.
"""

import os
import signal
from typing import Any

from device.pages import page_count, prompt
from device.process import OPENING, device_process
from device.scenarios import LIMIT, OTHERS, TOKENS, slots, store_and_workers
from kvstore_client import connect_admin
from kvstore_client.testing import RunningStore, wait_until

# Often enough that some workers die within the call.
OPENINGS = 5


def a_killed_worker_s_kernels_write_nothing_more(torch_device: str, *, with_child: bool) -> None:
    """A killed worker's slots go to another worker, whose bytes stay there.

    The other worker sees that the page still changes right before the kill. ``with_child``: the
    killed worker leaves a forked child, which keeps all descriptors that it may keep.
    """
    with store_and_workers(2) as (store, (one, two)):
        one.ask("acquire", TOKENS)
        theirs = one.ask("reserved")
        child = one.ask("fork_sleeper") if with_child else 0
        try:
            assert one.ask("write_without_end")
            assert two.ask("page_changes", theirs[0])
            one.kill()
            assert wait_until(lambda: slots(store, "reserved") == 0, LIMIT)
            assert two.ask("page_stays", theirs[0])
            assert two.ask("acquire", OTHERS) == 0
            assert set(theirs) & set(two.ask("reserved"))
            assert len(two.ask("insert")) == page_count(OTHERS)
            two.ask("give_up")
            assert two.ask("hold", OTHERS) == len(OTHERS) - 1
            assert all(two.ask("reads_right") for _ in range(500))
            assert two.ask("device_type") == torch_device
            two.ask("release")
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


def a_worker_killed_as_it_opens_leaves_nothing(torch_device: str) -> None:
    """Workers that die while CUDA opens their memory take nothing from others, hold nothing."""
    with store_and_workers(1) as (store, (worker,)):
        worker.ask("write", TOKENS)
        assert worker.ask("hold", TOKENS) == len(TOKENS) - 1
        for _ in range(OPENINGS):
            with device_process(store.runtime_dir, wait_open=False, announces_open=True) as opening:
                assert opening.answer() == OPENING
                opening.kill()
        assert wait_until(lambda: _lease_count(store) == 1, LIMIT)
        assert (worker.ask("reads_right"), worker.ask("device_type")) == (True, torch_device)
        worker.ask("release")
        others = prompt(8)
        with device_process(store.runtime_dir) as later:
            later.ask("write", others)
            assert worker.ask("hold", others) == len(others) - 1
            assert worker.ask("reads_right")
            worker.ask("release")


def _lease_count(store: RunningStore) -> int:
    with connect_admin(store.runtime_dir) as admin:
        return len(admin.leases())


KILLS: list[Any] = [a_worker_killed_as_it_opens_leaves_nothing]
