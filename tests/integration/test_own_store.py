"""The store that a serving process starts, restarts and ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inference_worker.errors import WorkerError
from inference_worker.store.own_store import FIRST_WAIT, LARGEST_EXTENT, OwnStore, budget_arguments
from inference_worker.store.tied_process import tied_command
from kvstore.v1 import store_pb2
from kvstore_client import connect_admin
from kvstore_client.errors import StoreError
from kvstore_client.testing import wait_until
from wire.attached_worker import AttachedWorker

PAGE_BYTES = 64 << 10
# Starts a process that is tied to it, says which, and waits to be killed.
PARENT = """
import subprocess, sys
from inference_worker.store.tied_process import tied_command
import signal
child = subprocess.Popen(tied_command(signal.SIGKILL, "-c", "import time; time.sleep(600)"))
print(child.pid, flush=True)
child.wait()
"""
# A thread of it starts a store, and ends when there is something to read.
PARENT_OF_STORE = """
import signal, subprocess, sys, threading
from inference_worker.store.tied_process import tied_command
def start():
    store = ["-m", "kvstore", "--drain-grace", "60", "--runtime-dir", sys.argv[1]]
    child = subprocess.Popen(tied_command(signal.SIGTERM, *store))
    print(child.pid, flush=True)
    sys.stdin.readline()
threading.Thread(target=start).start()
threading.Event().wait()
"""


def capabilities(folder: Path) -> store_pb2.GetCapabilitiesResponse | None:
    """Returns the running store's capabilities, or None without a store."""
    try:
        with connect_admin(folder, timeout=10.0) as admin:
            return admin.capabilities()
    except StoreError:
        return None


async def test_it_comes_back_and_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A killed store is replaced on the same sockets, and closing leaves no process."""
    folder = tmp_path / "run"
    budget = budget_arguments(20, PAGE_BYTES)
    store = OwnStore(folder, ["--prefix-cache-backend", "hash", *budget])
    await store.start()
    try:
        first = capabilities(folder)
        assert first is not None
        assert first.prefix_cache_backend == "hash"
        assert store.pid is not None
        second = OwnStore(folder, [])
        with pytest.raises(WorkerError, match="status 1"):
            await second.start()
        await second.close()
        assert f"another kvstore-server (pid {store.pid}) serves" in capfd.readouterr().err
        with monkeypatch.context() as without:
            without.setattr(sys, "executable", str(tmp_path / "python"))
            os.kill(store.pid, signal.SIGKILL)
            failed = "the store could not be started"
            assert await asyncio.to_thread(wait_until, lambda: failed in caplog.text)

        def came_back() -> bool:
            found = capabilities(folder)
            return found is not None and found.store_epoch != first.store_epoch

        assert await asyncio.to_thread(wait_until, came_back)
    finally:
        await store.close()
    assert wait_until(lambda: not Path(f"/proc/{store.pid}").exists())


def test_one_that_answered_is_not_waited_for_longer_the_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait before a restart does not grow for a store that answered before it was killed."""

    def waits() -> list[float]:
        told = [each.args for each in caplog.records if "another starts" in each.msg]
        return [float(args[1]) for args in told if isinstance(args, tuple)]

    async def run() -> None:
        store = OwnStore(tmp_path / "run", budget_arguments(20, PAGE_BYTES))
        await store.start()
        try:
            for _ in range(3):
                assert await asyncio.to_thread(wait_until, lambda: store.answered)
                killed = store.pid
                assert killed is not None
                os.kill(killed, signal.SIGKILL)
                assert await asyncio.to_thread(wait_until, lambda: store.pid != killed)  # noqa: B023
        finally:
            await store.close()

    asyncio.run(run())
    assert len(waits()) == 3
    assert max(waits()) <= FIRST_WAIT


async def test_a_store_that_cannot_start_is_said(tmp_path: Path) -> None:
    """A wrong setting fails the start at once."""
    store = OwnStore(tmp_path / "run", ["--tier1-bytes", "nothing"])
    with pytest.raises(WorkerError, match="status 2"):
        await store.start()
    await store.close()


@pytest.mark.parametrize("pages", [1, 3, 16, 17, 16_384, 16_385, 100_001])
def test_a_budget_has_so_many_pages(pages: int) -> None:
    """A budget has all its pages up to 1 GiB, and loses less than one page per extent above."""
    told = budget_arguments(pages, PAGE_BYTES)
    tier_bytes, extent_bytes = int(told[1]), int(told[3])
    assert extent_bytes % PAGE_BYTES == 0
    assert extent_bytes <= LARGEST_EXTENT
    extents, rest = divmod(tier_bytes, extent_bytes)
    assert rest == 0
    assert pages - extents < tier_bytes // PAGE_BYTES <= pages
    assert extents == 1 or pages * PAGE_BYTES > LARGEST_EXTENT


def test_a_tied_process_ends_with_its_parent() -> None:
    """A tied process is killed with its parent, and does not run if the parent is already gone."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not alive(child))
    command = tied_command(signal.SIGKILL, "-c", "print('runs')")
    mine = str(os.getpid())
    orphan = [str(child) if each == mine else each for each in command]
    done = subprocess.run(orphan, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_store_whose_parent_is_killed_stops_in_order(tmp_path: Path) -> None:
    """A store whose parent is killed drains, despite one signal for each thread of the parent."""
    folder, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-c", PARENT_OF_STORE, str(folder)]
    pipe = subprocess.PIPE
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=out, text=True) as parent,
    ):
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert wait_until(lambda: capabilities(folder) is not None)
        worker = AttachedWorker(folder)
        worker.grant()
        worker.bind()
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert wait_until(lambda: "drain_started" in log.read_text())
        parent.kill()
    assert alive(child)
    worker.revoke()
    worker.close()
    assert wait_until(lambda: not alive(child))
    assert "drained=True" in log.read_text()
    assert "server_stopped" in log.read_text()
    assert [each.name for each in folder.iterdir()] == ["kvstore.flock"]


def alive(pid: int) -> bool:
    """Returns whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
