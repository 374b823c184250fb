"""A whole server process: its start, drain, stop and restart."""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.rpc.health.watchdog import LIVENESS
from kvstore.rpc.server import SERVICES
from kvstore.v1 import lease_pb2, store_pb2
from kvstore_client.testing import RunningStore, running_store, wait_until
from wire.attached_worker import AttachedWorker, Refused

LIMIT = 30.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def worker_of(store: RunningStore) -> Iterator[AttachedWorker]:
    """Attaches to a server and grants a lease."""
    worker = AttachedWorker(store.runtime_dir)
    try:
        worker.grant()
        worker.bind()
        yield worker
    finally:
        worker.close()


def health_of(worker: AttachedWorker, service: str = "") -> int:
    """Returns a server's health for a service."""
    stub = health_pb2_grpc.HealthStub(worker.channel)
    status: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT).status
    return status


def run_server(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a server that should end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "kvstore", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def ended(store: RunningStore) -> int:
    """Waits until a server ends by itself. Returns its exit status."""
    return store._started().wait(LIMIT)


def test_a_server_serves_by_every_name(fresh_store: RunningStore) -> None:
    """Health is SERVING for the server and for each service."""
    with worker_of(fresh_store) as worker:
        assert {health_of(worker, name) for name in ("", *SERVICES)} == {SERVING}


def test_its_folder_and_sockets_are_its_owner_s(fresh_store: RunningStore) -> None:
    """The folder has mode 0700, both sockets and the file lock 0600."""
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in fresh_store.runtime_dir.iterdir()
    }
    assert modes == {"kvstore.sock": 0o600, "attach.sock": 0o600, "kvstore.flock": 0o600}
    assert stat.S_IMODE(fresh_store.runtime_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_an_idle_server_at_once(fresh_store: RunningStore, number: int) -> None:
    """A signal ends a server without leases at once, with status 0 and without sockets."""
    os.kill(fresh_store.pid, number)
    assert ended(fresh_store) == 0
    assert [path.name for path in fresh_store.runtime_dir.iterdir()] == ["kvstore.flock"]
    assert "server_stopped" in fresh_store.log


def test_a_draining_server_lets_leases_finish() -> None:
    """A draining server is alive, refuses new leases, and ends with its last lease."""
    with running_store("--drain-grace", "60") as store, worker_of(store) as worker:
        newcomer = AttachedWorker(store.runtime_dir)
        os.kill(store.pid, signal.SIGTERM)
        assert wait_until(lambda: health_of(worker) == NOT_SERVING)
        assert health_of(worker, LIVENESS) == SERVING
        for refused in (newcomer.grant, worker.renew, worker.open_namespace):
            with pytest.raises(Refused) as caught:
                refused()
            assert caught.value.reason == "STORE_DRAINING"
            assert "google.rpc.RetryInfo" in caught.value.detail_types
        worker.revoke()
        newcomer.close()
        assert ended(store) == 0
        assert "drained=True" in store.log


def test_the_grace_is_the_end_of_waiting() -> None:
    """A server ends with status 0 after the grace, even if a lease remains."""
    with running_store("--drain-grace", "0") as store, worker_of(store):
        os.kill(store.pid, signal.SIGTERM)
        assert ended(store) == 0
        assert "drained=False" in store.log


@pytest.mark.usefixtures("executed")
def test_a_second_signal_ends_it_at_once() -> None:
    """A second signal ends the grace at once, and the next server starts without cleaning up."""
    with running_store("--drain-grace", "60") as store:
        with worker_of(store):
            os.kill(store.pid, signal.SIGTERM)
            assert wait_until(lambda: "drain_started" in store.log)
            os.kill(store.pid, signal.SIGTERM)
            assert ended(store) == -signal.SIGTERM
        store.start()


def test_a_second_server_is_refused_and_harms_nothing(fresh_store: RunningStore) -> None:
    """A second server on the same folder ends with status 1 and the holder's pid."""
    with worker_of(fresh_store) as worker:
        second = run_server("--runtime-dir", str(fresh_store.runtime_dir))
        assert (second.returncode, second.stdout) == (1, "")
        assert (
            f"another kvstore-server (pid {fresh_store.pid}) serves {fresh_store.runtime_dir}"
            in second.stderr
        )
        assert health_of(worker) == SERVING
        worker.renew()
        with worker_of(fresh_store) as newcomer:
            assert newcomer.epoch == worker.epoch


def test_a_killed_server_is_replaced_in_place(fresh_store: RunningStore) -> None:
    """After SIGKILL a server starts on the same paths with another epoch and no leases."""
    with worker_of(fresh_store) as before:
        fresh_store.kill()
        assert {"kvstore.sock", "attach.sock"} <= {
            p.name for p in fresh_store.runtime_dir.iterdir()
        }
        fresh_store.start()
        with worker_of(fresh_store) as after:
            assert after.epoch != before.epoch
            leases = after.ask(after.lease.ListLeases, lease_pb2.ListLeasesRequest()).leases
            assert [each.lease_id for each in leases] == [after.lease_id]
            with pytest.raises(Refused) as caught:
                after.ask(before.lease.RenewLease, before.renew_request())
            assert caught.value.reason == "STALE_EPOCH"
            with pytest.raises(Refused) as caught:
                before.renew()
            assert caught.value.reason == "CREDENTIAL_REQUIRED"


@pytest.mark.usefixtures("executed")
def test_nothing_is_written_to_stdout(tmp_path: Path) -> None:
    """A server writes nothing to stdout, and its log to stderr."""
    command = [sys.executable, "-m", "kvstore", "--runtime-dir", str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any("server_started" in line for line in process.stderr)
        process.terminate()
        stdout, stderr = process.communicate(timeout=LIMIT)
    assert (process.returncode, stdout) == (0, "")
    assert "server_stopped" in stderr


@pytest.mark.parametrize(
    ("status", "said", "arguments"),
    [
        (2, "tier1_bytes", ["--tier1-bytes", "much"]),
        (2, "tier1_bytes: has to be at least 4KiB", ["--tier1-bytes", "100"]),
        (2, "device: has to be cpu or cuda:N", ["--device", "gpu"]),
        (2, "--tier9-bytes", ["--tier9-bytes", "1"]),
        (2, "in this order", ["--min-ttl", "400"]),
        (1, "cannot be made", ["--runtime-dir", "/dev/null/x"]),
        (1, "shorter --runtime-dir", ["--runtime-dir", "/tmp/" + "x" * 100]),  # noqa: S108 - not made
    ],
)
def test_a_server_that_cannot_start_says_why(status: int, said: str, arguments: list[str]) -> None:
    """A server that cannot start says why in one line: status 2 for settings, 1 for the folder."""
    result = run_server(*arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is here")
@pytest.mark.usefixtures("executed")
def test_a_server_without_cupy_refuses_a_device(tmp_path: Path) -> None:
    """A server whose device is unusable ends with status 1 and says what to install."""
    folder = tmp_path / "run"
    result = run_server("--runtime-dir", str(folder), "--device", "cuda:0")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.search(r"^kvstore-server: .*pip install cupy-cuda13x", result.stderr, re.MULTILINE)
    assert [path.name for path in folder.iterdir()] == ["kvstore.flock"]


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    """A runtime folder that others may enter is refused."""
    tmp_path.chmod(0o755)
    result = run_server("--runtime-dir", str(tmp_path))
    assert (result.returncode, "chmod 700" in result.stderr) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "warning"), [("64KiB", "tier1_bytes_small"), ("1PiB", "tier1_bytes_beyond_memory")]
)
def test_a_budget_that_is_hardly_meant_is_warned_of(size: str, warning: str) -> None:
    """A store with very few pages, or more memory than the machine has, serves with a warning."""
    with running_store("--tier1-bytes", size) as store, worker_of(store):
        assert warning in store.log


def test_the_budget_and_the_index_are_the_flags() -> None:
    """Extents have the configured size, and capabilities name the configured index."""
    flags = ("--tier1-bytes", "1MiB", "--extent-bytes", "256KiB", "--prefix-cache-backend", "hash")
    with running_store(*flags) as store, worker_of(store) as worker:
        worker.open_namespace()
        found = worker.ask(worker.store.GetCapabilities, store_pb2.GetCapabilitiesRequest())
        (extent,) = found.extents
        assert found.prefix_cache_backend == "hash"
        assert "tier1_bytes_small" not in store.log
        assert extent.slot_count * extent.slot_bytes == 256 << 10
