"""kvstore-ctl doctor against real stores, each in the state that it is to see."""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from other_user import POSSIBLE, as_user
from patterned_pages import IDENTITY, LAYOUT, SMALL_STORE, TOKENS, open_client, write_and_insert
from typer.testing import CliRunner
from worker_fleet import EXPIRED, Fleet, pool_arguments

from kvstore.v1 import store_pb2
from kvstore_client import (
    Admin,
    Client,
    Namespace,
    connect_admin,
    ctl_checks_store,
    ctl_doctor,
    errors,
)
from kvstore_client.ctl import app
from kvstore_client.ctl_checks_host import descriptors_check, server_pid, socket_check
from kvstore_client.ctl_findings import Finding, Outcome
from kvstore_client.host_facts import HostFacts
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import RunningStore, running_store, wait_until

SUPPORT = Path(__file__).parents[1] / "support"
SLOTS = 32
# A server of another version: the same program, which says so of itself.
OLDER = "import kvstore; kvstore.__version__ = '0.0.9'; import kvstore.__main__ as m; m.main()"
SERVER_CHECKS = {"liveness", "readiness", "answers"}


def prompt(number: int) -> list[int]:
    """Return a prompt of four pages and a token that begins like no other."""
    return [10_000 + number * 100 + each for each in range(len(TOKENS))]


def diagnose(runtime_dir: Path) -> tuple[int, dict[str, Any]]:
    """Run the command and return its exit status, and each check's finding by its name."""
    result = CliRunner().invoke(app, ["doctor", "--runtime-dir", str(runtime_dir), "--json"])
    answer = json.loads(result.stdout)
    return result.exit_code, {each["check"]: each for each in answer["checks"]}


def outcomes(found: dict[str, Any], names: set[str]) -> set[str]:
    """Return the outcomes of these checks."""
    return {found[name]["outcome"] for name in names}


@pytest.fixture(scope="module")
def store() -> Iterator[RunningStore]:
    """A store of 32 slots that looks at each page before it hands it out."""
    with running_store(*SMALL_STORE, "--verify-rate", "1") as running:
        yield running


@pytest.fixture
def client(store: RunningStore) -> Iterator[Client]:
    """A worker with an open namespace."""
    client, _ = open_client(store.runtime_dir)
    yield client
    client.close()


@pytest.fixture
def namespace(client: Client) -> Namespace:
    """The worker's namespace."""
    namespace = client.namespace(IDENTITY, LAYOUT)
    assert namespace.wait_open(30)
    return namespace


def test_a_store_that_is_well_is_said_to_be(store: RunningStore, client: Client) -> None:
    """Nothing failed, what concerns the store is ok, and a table says the same."""
    assert client.connected
    status, found = diagnose(store.runtime_dir)
    assert status == 0
    assert outcomes(found, {*SERVER_CHECKS, "socket", "versions", "memfd", "tier 3"}) == {"ok"}
    shown = CliRunner().invoke(app, ["doctor", "--runtime-dir", str(store.runtime_dir)])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in found)


def test_a_folder_open_to_others_is_seen(store: RunningStore) -> None:
    """As long as it is."""
    store.runtime_dir.chmod(0o705)
    finding = socket_check(RuntimeDir(store.runtime_dir))
    store.runtime_dir.chmod(0o700)
    assert (finding.outcome, "chmod 700" in finding.advice) == (Outcome.WARNING, True)


@pytest.mark.skipif(not POSSIBLE, reason="needs root")
def test_another_user_is_told_whose_it_is(store: RunningStore) -> None:
    """Who may not look into the folder, or use the sockets, learns by whom it may be asked."""
    paths = RuntimeDir(store.runtime_dir)
    paths.path.parent.chmod(0o711)
    for mode in (0o700, 0o711):
        paths.path.chmod(mode)
        finding = as_user(12_345, 12_345, lambda: socket_check(paths))
        assert (finding.outcome, "uid 0" in finding.advice) == (Outcome.FAILED, True), finding
    paths.path.chmod(0o700)


def test_descriptors_that_run_out_are_seen(store: RunningStore) -> None:
    """Of the server's process, whose limit is read while it runs."""
    facts = HostFacts()
    assert server_pid(facts, RuntimeDir(store.runtime_dir)) == store.pid
    soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
    used = facts.open_file_count(store.pid) or 0
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (used, hard))
    try:
        finding = descriptors_check(facts, store.pid)
    finally:
        resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert (finding.outcome, "LimitNOFILE" in finding.advice) == (Outcome.FAILED, True)


def finding_of(client: Client, name: str, **settings: float) -> Finding:
    """Return what a check makes of the store as it is now."""
    return getattr(ctl_checks_store, f"{name}_check")(client.admin.stats(), **settings)  # type: ignore[no-any-return]


def test_holds_that_are_forgotten_are_seen(client: Client, namespace: Namespace) -> None:
    """By their worker and its process."""
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS):
        finding = finding_of(client, "long_holds", long_hold=0.0)
    assert (finding.outcome, f"pid {os.getpid()}" in finding.found) == (Outcome.WARNING, True)
    assert client.flush(30)
    assert finding_of(client, "long_holds", long_hold=0.0).outcome is Outcome.OK


def test_few_hits_are_seen(client: Client, namespace: Namespace) -> None:
    """Once there were enough lookups to say so."""
    for number in range(1000, 1000 + ctl_checks_store.FEW):
        namespace.match(prompt(number)).release()
    finding = finding_of(client, "hit_rate")
    assert (finding.outcome, "kvstore-ctl identity" in finding.advice) == (Outcome.WARNING, True)


def test_pages_that_go_too_early_are_seen(client: Client, namespace: Namespace) -> None:
    """Prompts that come round are computed again where the pool holds only some of them."""
    for _ in range(3):
        for number in range(SLOTS // 4 + 2):
            write_and_insert(namespace, prompt(number))
    finding = finding_of(client, "thrash")
    assert (finding.outcome, "--tier1-bytes" in finding.advice) == (Outcome.WARNING, True), finding


def test_a_pool_that_is_held_is_seen(client: Client, namespace: Namespace) -> None:
    """Where lookups find no slots for what they lack."""
    assert finding_of(client, "room").outcome is Outcome.OK
    with namespace.reserve(start_page=0, page_count=SLOTS):
        for number in range(2000, 2000 + ctl_checks_store.FEW):
            namespace.acquire(prompt(number), total_page_count=4).release()
        finding = finding_of(client, "room")
    assert (finding.outcome, "kvstore-ctl leases" in finding.advice) == (Outcome.WARNING, True)


def test_salts_that_use_up_namespaces_are_seen(client: Client) -> None:
    """Many that differ by their salts alone, and as many as there may be."""
    salted = [client.namespace(replace(IDENTITY, salt=bytes([n])), LAYOUT) for n in range(3)]
    assert all(each.wait_open(30) for each in salted)
    listed = client.admin.namespaces()
    check = ctl_checks_store.namespaces_check
    assert check(listed, 10_000).outcome is Outcome.OK
    many = check(listed, 10_000, many_salts=4)
    assert (many.outcome, "4 differ by their salts" in many.found) == (Outcome.WARNING, True)
    assert check(listed, 5).outcome is Outcome.FAILED


def test_a_model_under_two_identities_is_seen(store: RunningStore, client: Client) -> None:
    """Two servers of one name that share nothing, with the factor that sets them apart."""
    assert diagnose(store.runtime_dir)[1]["identities"]["outcome"] == "ok"
    other = client.namespace(replace(IDENTITY, model_digest=b"quantized"), LAYOUT)
    assert other.wait_open(30)
    found = diagnose(store.runtime_dir)[1]["identities"]
    assert (found["outcome"], "differ in model" in found["found"]) == ("warning", True)


def test_pages_that_were_written_over_are_seen(client: Client, namespace: Namespace) -> None:
    """Once a match has looked at one."""
    assert finding_of(client, "corruption").outcome is Outcome.OK
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS) as match:
        namespace.page(match.pages[0])[:4] = b"oops"
    namespace.match(TOKENS).release()
    finding = finding_of(client, "corruption")
    assert (finding.outcome, "page_corrupt" in finding.advice) == (Outcome.FAILED, True)


def test_late_workers_and_a_store_s_end_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped, then its store as it drains, hangs and is dead."""
    with running_store(*pool_arguments(), "--drain-grace", "60") as store:
        fleet = Fleet(store)
        worker = fleet.spawn("late", ttl=2.0)
        worker.ask("write", list(range(64)))
        worker.ask("acquire", "open", list(range(100, 196)))
        worker.signal(signal.SIGSTOP)
        assert wait_until(lambda: [each.state for each in fleet.leases("late")] == [EXPIRED])
        stats = fleet.stats()
        for check in (ctl_checks_store.expired_check, ctl_checks_store.quarantine_check):
            finding = check(stats)
            assert (finding.outcome, f"pid {worker.pid}" in finding.advice) == (
                Outcome.WARNING,
                True,
            )
        os.kill(store.pid, signal.SIGTERM)
        assert wait_until(lambda: "NOT_SERVING" in str(diagnose(store.runtime_dir)))
        status, found = diagnose(store.runtime_dir)
        assert (status, found["readiness"]["outcome"]) == (1, "failed")
        assert found["liveness"]["outcome"] == "ok"
        monkeypatch.setattr(ctl_doctor, "TIMEOUT", 0.5)
        store.suspend()
        status, found = diagnose(store.runtime_dir)
        assert (status, outcomes(found, SERVER_CHECKS)) == (1, {"failed"})
        assert found["socket"]["outcome"] == "ok"
        store.kill()
        fleet.end()
        status, found = diagnose(store.runtime_dir)
        assert (status, outcomes(found, SERVER_CHECKS)) == (1, {"failed"})


def test_without_a_store_the_host_is_looked_at(tmp_path: Path) -> None:
    """It says where there is none, and what of this host can be seen."""
    status, found = diagnose(tmp_path / "none")
    assert (status, outcomes(found, {*SERVER_CHECKS, "socket"})) == (1, {"failed"})
    assert str(tmp_path) in found["socket"]["found"]
    assert found["memfd"]["outcome"] == "ok"
    assert "hit rate" not in found


@pytest.mark.skipif(find_spec("cupy") is not None, reason="the real cupy is here")
def test_a_store_on_a_device_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages are on a device of which files take the place, and which this process lacks."""
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
    """Ask more often than the tenant may."""
    for _ in range(10_000):
        admin.capabilities()


def test_an_older_server_whose_disk_fails_and_whose_tenant_floods(tmp_path: Path) -> None:
    """Its version, its tier 3 and the calls that were refused are each seen."""
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
        assert wait_until(lambda: "versions" in diagnose(store.runtime_dir)[1])
        _, found = diagnose(store.runtime_dir)
    for name, outcome, words in (
        ("versions", "warning", "0.0.9"),
        ("tier 3", "failed", "slab_failed"),
        ("refused requests", "warning", "mine"),
    ):
        assert found[name]["outcome"] == outcome, found[name]
        assert words in found[name]["found"] + found[name]["advice"]
