"""The workers that tests spawn end with their test."""

import os
import signal
from pathlib import Path

import pytest

from kvstore_client.testing import running_store
from processes.worker_fleet import Fleet, pool_arguments


def fail_with_workers(pids: list[int]) -> None:
    """Fails as a test does, with a running and a stopped worker."""
    with running_store(*pool_arguments()) as store, Fleet(store) as fleet:
        stopped = fleet.spawn("stopped")
        pids += [fleet.spawn("running").pid, stopped.pid]
        stopped.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        pytest.fail("on purpose")


def test_a_test_that_fails_leaves_no_worker() -> None:
    """A failed test leaves no worker, not even a stopped one."""
    pids: list[int] = []
    with pytest.raises(pytest.fail.Exception, match="on purpose"):
        fail_with_workers(pids)
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False, False]
