"""kvstore-ctl doctor on stores that end, fail, are old, or have their pages on a device."""

import os
import resource
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvstore.v1 import store_pb2
from kvstore_client import Admin, Client, connect_admin, errors
from kvstore_client.testing import running_store, wait_until
from kvstore_ctl.doctor import command, store_checks
from kvstore_ctl.doctor.findings import Verdict
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    SMALL_STORE,
    TOKENS,
    open_client,
    write_and_insert,
)
from processes.diagnosis import SERVER_CHECKS, diagnose, outcomes
from processes.holder_folder import HolderFolder
from processes.worker_fleet import EXPIRED, Fleet, pool_arguments

SUPPORT = Path(__file__).parents[1] / "support"
# A server of another version: the same program, which says so of itself.
OLDER = "import kvstore; kvstore.__version__ = '0.0.9'; import kvstore.server as m; m.run()"


def test_late_workers_and_a_store_s_end_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker past its TTL is reported, and then its store draining, hung and dead."""
    draining = ("--drain-grace", "60")
    with running_store(*pool_arguments(), *draining) as store, Fleet(store) as fleet:
        worker = fleet.spawn("late", ttl=5.0)
        worker.ask("write", list(range(64)))
        worker.ask("acquire", "open", list(range(100, 196)))
        worker.signal(signal.SIGSTOP)
        assert wait_until(lambda: [each.state for each in fleet.leases("late")] == [EXPIRED])
        stats = fleet.stats()
        for check in (store_checks.expired_check, store_checks.quarantine_check):
            finding = check(stats)
            assert (finding.outcome, f"pid {worker.pid}" in finding.advice) == (
                Verdict.WARNING,
                True,
            )
        os.kill(store.pid, signal.SIGTERM)
        assert wait_until(lambda: "NOT_SERVING" in str(diagnose(store.runtime_dir)))
        status, found = diagnose(store.runtime_dir)
        assert (status, found["readiness"]["outcome"]) == (1, "failed")
        assert found["liveness"]["outcome"] == "ok"
        monkeypatch.setattr(command, "TIMEOUT", 0.5)
        store.suspend()
        status, found = diagnose(store.runtime_dir)
        assert (status, outcomes(found, SERVER_CHECKS)) == (1, {"failed"})
        assert (found["socket"]["outcome"], found["GPU"]["outcome"]) == ("ok", "skipped")
        store.kill()
        status, found = diagnose(store.runtime_dir)
        # Its sockets are still there. One row says what to do.
        assert (status, found["socket"]["outcome"]) == (1, "failed")
        assert "no server listens" in found["socket"]["found"]
        assert outcomes(found, SERVER_CHECKS) == {"skipped"}


def test_without_a_store_the_host_is_looked_at(tmp_path: Path) -> None:
    """Without a store the doctor reports that and checks the host."""
    status, found = diagnose(tmp_path / "none")
    assert (status, found["socket"]["outcome"]) == (1, "failed")
    # One row says what to do, and none anything else.
    assert outcomes(found, {*SERVER_CHECKS, "memory", "GPU", "CUDA IPC"}) == {"skipped"}
    assert "host memory" not in found["GPU"]["found"] + found["CUDA IPC"]["found"]
    assert "arenas take 0" not in found["memory"]["found"]
    assert str(tmp_path) in found["socket"]["found"]
    assert found["memfd"]["outcome"] == "ok"
    assert "hit rate" not in found


@pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")
def test_a_store_on_a_device_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on a device is reported, and MPS in the doctor's environment is a failure."""
    folders = [str(SUPPORT / "shared_card"), str(SUPPORT)]
    monkeypatch.setenv("KVSTORE_TEST_CARD", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, *sys.path]))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    device = ("--device", "cuda:0", "--tier1-bytes", "8MiB", "--extent-bytes", "4MiB")
    with running_store(*device) as store, Client(store.runtime_dir) as client:
        # It has no part in them, and has the store make some.
        client.namespace(IDENTITY, LAYOUT)
        assert wait_until(lambda: diagnose(store.runtime_dir)[1]["CUDA IPC"]["outcome"] == "ok")
        status, found = diagnose(store.runtime_dir)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        _, with_mps = diagnose(store.runtime_dir)
    assert "pages are on device" in found["GPU"]["found"]
    assert found["GPU"]["outcome"] == ("ok" if status == 0 else "failed")
    assert "arenas take 0.0 MiB" in found["memory"]["found"]
    assert (with_mps["CUDA IPC"]["outcome"], "MPS" in with_mps["CUDA IPC"]["found"]) == (
        "failed",
        True,
    )


def flood(admin: Admin) -> None:
    """Makes more calls than the tenant's rate allows."""
    for _ in range(10_000):
        admin.capabilities()


def test_an_older_server_whose_disk_fails_and_whose_tenant_floods(tmp_path: Path) -> None:
    """An older server version, a failed tier 3 and refused calls are each reported."""
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        f"[tenants.mine]\nuids = [{os.geteuid()}]\nadmin = true\nrequests_per_second = 60\n"
    )
    tenants.chmod(0o600)
    flags = [*SMALL_STORE, "--tenants-file", str(tenants), "--tier3-write", "through"]
    flags += ["--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(4 << 20)]
    with running_store(*flags, program=("-c", OLDER)) as store:
        client, namespace = open_client(store.runtime_dir)
        # From here on no file of the store's may have a byte beyond.
        resource.prlimit(store.pid, resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))
        write_and_insert(namespace, TOKENS)
        failed = store_pb2.Tier3Stats.STATE_FAILED
        assert wait_until(lambda: client.admin.stats().tier_3.state == failed), store.log
        client.close()
        with connect_admin(store.runtime_dir) as admin, pytest.raises(errors.QuotaExceeded):
            flood(admin)
        found: dict[str, Any] = {}

        def answered() -> bool:
            """Runs the doctor. Returns whether its calls were answered."""
            found.update(diagnose(store.runtime_dir)[1])
            return "versions" in found

        assert wait_until(answered)
    for name, outcome, words in (
        ("versions", "warning", "0.0.9"),
        ("tier 3", "failed", "slab_failed"),
        ("refused requests", "warning", "mine"),
    ):
        assert found[name]["outcome"] == outcome, found[name]
        assert words in found[name]["found"] + found[name]["advice"]


def test_a_disk_that_could_not_be_opened_is_looked_up_in_the_log(tmp_path: Path) -> None:
    """A disk that could not be opened is reported with the name of its log line."""
    slab = ("--tier3-path", str(tmp_path / "nowhere" / "slab"), "--tier3-bytes", str(4 << 20))
    with running_store(*SMALL_STORE, *slab) as store:
        found = diagnose(store.runtime_dir)[1]["tier 3"]
        assert found["outcome"] == "failed"
        assert "tier3_unusable" in store.log
        assert "tier3_unusable" in found["advice"]


def test_whether_the_pages_outlive_the_server_is_said(tmp_path: Path) -> None:
    """The doctor knows a server without a holder, one that went on, and one behind its holder."""
    with running_store(*SMALL_STORE) as alone:
        found = diagnose(alone.runtime_dir)[1]["holder"]
        assert (found["outcome"], "all its pages are lost" in found["found"]) == ("warning", True)
    with HolderFolder(tmp_path / "holder") as holder:
        held = ("--holder", str(holder.path), "--no-holder-start")
        with running_store(*SMALL_STORE, *held) as store:
            found = diagnose(store.runtime_dir)[1]["holder"]
            assert (found["outcome"], "no journal is there" in found["found"]) == ("ok", True)
            client, namespace = open_client(store.runtime_dir)
            write_and_insert(namespace, TOKENS)
            client.close()
            store.kill()
            store.start()
            found = diagnose(store.runtime_dir)[1]["holder"]
            assert (found["outcome"], "; 4 pages recovered" in found["found"]) == ("ok", True)
            with connect_admin(store.runtime_dir) as admin:
                assert admin.stats().succession.instance == 2
            holder.kill()

            def is_behind() -> bool:
                """Returns whether the doctor says that the server waits for a holder."""
                seen = diagnose(store.runtime_dir)[1]["holder"]
                return seen["outcome"] == "warning" and str(holder.path) in seen["advice"]

            assert wait_until(is_behind)
            holder.start()
            assert wait_until(lambda: diagnose(store.runtime_dir)[1]["holder"]["outcome"] == "ok")
