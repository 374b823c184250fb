"""The health of a store whose calls hang: the watchdog in a real process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.v1 import store_pb2
from kvstore_client.calls.health import LIVENESS, READINESS, health_of
from kvstore_client.testing import RunningStore, running_store, wait_until
from processes.stuck_server import FOLDER, PROGRAM
from wire.attached_worker import AttachedWorker

LIMIT = 30.0


@pytest.fixture(scope="module")
def stuck_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provides the folder of the files at which the server hangs."""
    return tmp_path_factory.mktemp("stuck")


@pytest.fixture(scope="module")
def store(stuck_folder: Path) -> Iterator[RunningStore]:
    """Provides a server that tests can make hang."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(stuck_folder))
        with running_store(program=PROGRAM) as running:
            yield running


@pytest.fixture
def worker(store: RunningStore) -> Iterator[AttachedWorker]:
    """Provides a worker that may ask for statistics."""
    attached = AttachedWorker(store.runtime_dir)
    yield attached
    attached.close()


@pytest.mark.parametrize("part", ["owner", "calls"])
def test_a_stall_is_said_and_passes(
    store: RunningStore, worker: AttachedWorker, stuck_folder: Path, part: str
) -> None:
    """A server whose mutex is held, or whose threads are all busy, is alive and not ready."""
    fifo = stuck_folder / part
    os.mkfifo(fifo)
    stuck = worker.store.GetStats.future(
        store_pb2.GetStatsRequest(), timeout=LIMIT, metadata=worker.metadata
    )
    try:
        assert wait_until(lambda: said(worker, READINESS) == "NOT_SERVING")
        assert said(worker, LIVENESS) == "SERVING"
        # An operator is told the same, and by which status: it says no.
        assert ctl_health(store) == (1, "readiness: NOT_SERVING\n")
        assert ctl_health(store, "--live") == (0, "liveness: SERVING\n")
        # And the log says what is silent, and where each thread stands.
        assert wait_until(lambda: any(f"'{part}'" in line for line in losses(store)))
        assert "stuck_server.py" in losses(store)[-1]
    finally:
        with fifo.open("wb"):
            stuck.result(LIMIT)
        fifo.unlink()
    assert wait_until(lambda: said(worker, READINESS) == "SERVING")


def test_a_store_that_stands_still_ends_when_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hung store does not wait for its calls at SIGTERM, and exits with status 1."""
    os.mkfifo(tmp_path / "owner")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with running_store("--drain-grace", "0", program=PROGRAM) as stuck_store:
        asker = AttachedWorker(stuck_store.runtime_dir)
        request = store_pb2.GetStatsRequest()
        stuck = asker.store.GetStats.future(request, timeout=LIMIT, metadata=asker.metadata)
        assert wait_until(lambda: said(asker, READINESS) == "NOT_SERVING")
        os.kill(stuck_store.pid, signal.SIGTERM)
        assert stuck_store._started().wait(LIMIT) == 1
        assert "stop_overdue" in stuck_store.log
        assert stuck.exception(LIMIT) is not None
        asker.close()


def test_who_says_nothing_is_told_apart(store: RunningStore, tmp_path: Path) -> None:
    """kvstore-ctl health has different statuses for a hung store and a missing one."""
    store.suspend()
    try:
        status, text = ctl_health(store, "--timeout", "0.3")
        assert (status, text) == (3, "readiness: DEADLINE_EXCEEDED\n")
    finally:
        store.resume()
    store.runtime_dir = tmp_path
    assert ctl_health(store, "--json") == (3, '{\n  "readiness": "UNAVAILABLE"\n}\n')


def losses(store: RunningStore) -> list[str]:
    """Returns the log lines about lost health."""
    return [line for line in store.log.splitlines() if "health_lost" in line]


def said(worker: AttachedWorker, service: str) -> str:
    """Returns the server's health status."""
    return health_of(worker.channel, service, timeout=LIMIT)


def ctl_health(store: RunningStore, *arguments: str) -> tuple[int, str]:
    """Returns the status and output of kvstore-ctl health."""
    command = ["-m", "kvstore_ctl", "health", "--runtime-dir", str(store.runtime_dir)]
    result = subprocess.run(
        [sys.executable, *command, *arguments], capture_output=True, text=True, check=False
    )
    # Where nothing is heard it says from where.
    assert (result.stderr != "") is (result.returncode == 3)
    return result.returncode, result.stdout
